"""The counts that an answer's frames tell, each judged against the words before it."""

from collections.abc import Callable
from typing import Any

import msgspec

from inference_lab.core.apis.reading import ReadCounts
from inference_lab.core.oracle.verdict import Kind, Note, Report


class Miscount(msgspec.Struct, frozen=True):
    """A count that no words explain: where its frame begins, and the words that had come."""

    completion: int
    words: int
    offset: int


class Usage:
    """The usage of one answer. `between` says how many tokens may have been counted by now, at least and at most.

    `last` is the last usage object as it was sent; `completion_tokens` what the last one of those says that stand on
    their own or after the finish; `is_seen` whether any count above zero came.
    """

    def __init__(self, report: Report, between: Callable[[], tuple[int, int]]) -> None:
        self._report, self._between = report, between
        self._miscount: Miscount | None = None
        self._last_miscount: Miscount | None = None
        self.last: dict[str, Any] | None = None
        self.completion_tokens: int | None = None
        self.is_seen = False

    def take(self, counts: ReadCounts, *, is_final: bool) -> None:
        """Counts. Those that ride on text may be running totals and are only added up; all zeros are none."""
        self.last = counts.sent
        prompt, completion, total = counts.prompt, counts.completion, counts.total
        if completion is None:
            return
        if prompt is not None and total is not None and prompt + completion != total:
            sentence = f"usage does not add up: {prompt} + {completion} is not {total}"
            self._report.find(Kind.USAGE_SUM, sentence)
        if not (prompt or completion or total):
            return
        self.is_seen = True
        if is_final:
            if self.completion_tokens == completion:
                self._report.note(Note.USAGE_REPEATED)
            self.completion_tokens = completion
            self._miscount = self._miscount or self._last_miscount
            least, most = self._between()
            wrong = None if least <= completion <= most else Miscount(completion, *self._now)
            self._last_miscount = wrong

    @property
    def _now(self) -> tuple[int, int]:
        return self._report.words_so_far(), self._report.offset

    def miscount(self, *, died: bool) -> Miscount | None:
        """The first count that was wrong when it came; at a normal end the last one is for the judge to compare."""
        return self._miscount or (self._last_miscount if died else None)
