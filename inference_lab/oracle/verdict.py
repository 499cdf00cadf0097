"""What `verify` finds out: findings, notes and the verdict over them."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Literal

import msgspec

FINDING_LIMIT: Final = 100
"""Findings kept; the rest are counted."""

Outcome = Literal["whole", "honest prefix", "wrong"]
EXIT_CODES: Final[dict[Outcome, int]] = {"whole": 0, "honest prefix": 1, "wrong": 2}


class Kind(Enum):
    """What a finding says is wrong."""

    GAP = "gap"
    REPEAT = "repeat"
    RESTART = "restart"
    REORDER = "reorder"
    FOREIGN_WORD = "foreign_word"
    TORN_WORD = "torn_word"
    BLANK = "blank"
    OTHER_TEXT = "other_text"
    TOO_MANY_WORDS = "too_many_words"
    ID_CHANGED = "id_changed"
    MODEL_CHANGED = "model_changed"
    SECOND_ROLE = "second_role"
    SECOND_CALL = "second_call"
    TWO_FINISHES = "two_finishes"
    TEXT_AFTER_FINISH = "text_after_finish"
    TEXT_AFTER_DONE = "text_after_done"
    NOT_JSON = "not_json"
    TOO_LONG = "too_long"
    USAGE_SUM = "usage_sum"
    USAGE_WORDS = "usage_words"
    SILENT_TRUNCATION = "silent_truncation"


COUNT_FINDINGS: Final = frozenset({Kind.GAP, Kind.REPEAT, Kind.RESTART, Kind.TORN_WORD, Kind.OTHER_TEXT})
"""Findings after which the number of words is known to be off: to count them would say it again."""


class Note(Enum):
    """What is unusual but right."""

    CREATED_CHANGED = "created_changed"
    ROLE_REPEATED = "role_repeated"
    FINISH_REPEATED = "finish_repeated"
    USAGE_REPEATED = "usage_repeated"
    DONE_REPEATED = "done_repeated"
    DONE_WITHOUT_FINISH = "done_without_finish"
    NOT_JSON = "not_json"
    NO_USAGE = "no_usage"
    COMMENTS = "comments"
    UNKNOWN_LINES = "unknown_lines"


class Finding(msgspec.Struct, frozen=True):
    """One error: its kind, a sentence, its word index and channel, the byte where its frame begins.

    Where it is about no single word, `word` is the number of words of all channels before it. `count` is how
    many in a row are meant.
    """

    kind: Kind
    message: str
    offset: int
    word: int
    channel: str | None = None
    count: int = 1

    def __str__(self) -> str:
        place = [self.channel] if self.channel else []
        place += [f"word {self.word}", f"byte {self.offset}"]
        times = f" ({self.count} in a row)" if self.count > 1 else ""
        return f"{self.kind.value}: {', '.join(place)}: {self.message}{times}"


class Verdict(msgspec.Struct, frozen=True):
    """The judgement of one stream.

    `outcome` is `whole` (a normal end, nothing missing), `honest prefix` (died, and so visibly; what came is
    right) or `wrong`. `words` counts each channel's whole words; `finding_count` counts findings that were
    not kept too.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    finding_count: int
    notes: dict[Note, int]
    tag: str | None
    words: dict[str, int]
    finish: str | None
    done: bool
    error: bool
    completion_tokens: int | None
    byte_count: int

    @property
    def is_whole(self) -> bool:
        """A normal end, and nothing missing."""
        return self.outcome == "whole"

    @property
    def is_honest_prefix(self) -> bool:
        """The stream died and shows it, and what came is right."""
        return self.outcome == "honest prefix"

    @property
    def exit_code(self) -> int:
        """0 whole, 1 honest prefix, 2 wrong."""
        return EXIT_CODES[self.outcome]

    def lines(self) -> Iterator[str]:
        """What a person reads: the verdict, then a line per finding."""
        words = ", ".join(f"{count} {channel}" for channel, count in self.words.items()) or "none"
        said = self.finish or ("[DONE]" if self.done else "none")
        finish = "error frame" if self.error else said
        yield f"{self.outcome}: words {words}; finish {finish}; findings {self.finding_count}"
        yield from map(str, self.findings)
        left = self.finding_count - len(self.findings)
        if left:
            yield f"and {left} more"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        """One line with the first finding: what a failed assertion shows, and test runners cut at 240 characters."""
        first = "".join(f"; {finding}" for finding in self.findings[:1])
        left = self.finding_count - 1
        return f"<{next(self.lines())}{first}{f'; and {left} more' if left > 0 else ''}>"


class Report(msgspec.Struct):
    """Findings and notes as they come, in bounded memory.

    `offset` is where the current frame begins, `words_so_far` tells how many words all channels have said.
    """

    offset: int = 0
    words_so_far: Callable[[], int] = lambda: 0
    finding_count: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    notes: dict[Note, int] = msgspec.field(default_factory=dict)
    kinds: set[Kind] = msgspec.field(default_factory=set)

    def find(
        self,
        kind: Kind,
        message: str,
        channel: str | None = None,
        word: int | None = None,
        *,
        offset: int | None = None,
        count: int = 1,
    ) -> int:
        """Add a finding, of the current frame unless `offset` says another; its place among those kept, or -1."""
        self.kinds.add(kind)
        self.finding_count += 1
        if len(self.findings) == FINDING_LIMIT:
            return -1
        place = self.words_so_far() if word is None else word
        begins = self.offset if offset is None else offset
        self.findings.append(Finding(kind, message, begins, place, channel, count))
        return len(self.findings) - 1

    def extend(self, place: int) -> None:
        """Count one more in a row for the finding kept at `place`."""
        if place >= 0:
            found = self.findings[place]
            self.findings[place] = msgspec.structs.replace(found, count=found.count + 1)

    def relabel(self, place: int, kind: Kind, message: str) -> None:
        """What came later shows a finding in another light."""
        self.kinds.add(kind)
        if place >= 0:
            self.findings[place] = msgspec.structs.replace(self.findings[place], kind=kind, message=message)

    def note(self, note: Note, count: int = 1) -> None:
        """Count a note."""
        self.notes[note] = self.notes.get(note, 0) + count
