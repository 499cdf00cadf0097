"""What a death puts into frames of the answer beside what they say: counts of tokens, an empty finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.apis.contract import Counts
from inference_lab.core.stream.events import Said

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.faults.death import Death


class Inserts:
    """Those of `death` on a `writer`. `tokens` are always the ids of the answer said so far."""

    def __init__(self, death: Death, writer: StreamWriter, prompt_tokens: int) -> None:
        self._death = death
        self._dialect = writer.dialect
        self._prompt_tokens = prompt_tokens
        self.in_each = death.empty_finish or death.usage.endswith("_chunk")
        """Whether there are any in every frame."""

    def counts(self, tokens: int) -> Counts:
        """The usage that is told."""
        death = self._death
        # The stop token of an instant stop is counted, though it says nothing.
        off_by = death.usage_off_by if isinstance(death.usage_off_by, int) else int(death.instant_stop)
        return Counts(self._prompt_tokens + death.bos_shift, max(0, tokens + off_by))

    def into_each(self, frame: bytes, told: Said, tokens: int) -> tuple[bytes, Said]:
        """The frame with what every frame has, and what it says then, where it said what is `told`."""
        if not self.in_each:
            return frame, told
        death = self._death
        if death.empty_finish:
            frame = frame.replace(self._dialect.open_finish, self._dialect.empty_finish)
        if death.usage == "every_chunk":
            return self.with_counts(frame, told, self.counts(tokens))
        if death.usage == "null_every_chunk":
            return _followed_by(frame, b"null"), told
        if death.usage == "zero_every_chunk":
            return self.with_counts(frame, told, Counts(0, 0))
        return frame, told

    def with_counts(self, frame: bytes, told: Said, counts: Counts) -> tuple[bytes, Said]:
        """The frame with counts behind its choices, and what it says then."""
        usage = counts.json(total_first=self._dialect.total_first)
        return _followed_by(frame, usage), told + Said(usage=usage)


def _followed_by(frame: bytes, usage: bytes) -> bytes:
    """The frame with `usage` behind its choices, in place of a null that the dialect has there."""
    return frame.removesuffix(b"}\n\n").removesuffix(b',"usage":null') + b',"usage":' + usage + b"}\n\n"
