"""What `verify` finds out: findings, notes and the verdict over them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, Literal

import msgspec

from inference_lab.core.apis.reading import NAME_OF_END
from inference_lab.core.one_line import short_line

_SHOWN_CHARACTERS: Final = 80
_MESSAGE_CHARACTERS: Final = 1000
"""Of a finding's sentence; more than one has that quotes two values, unless they are numbers of a thousand digits."""
_PLAIN_WORD: Final = re.compile("[A-Za-z0-9_.-]{1,60}")
FINDING_LIMIT: Final = 100
"""Findings kept, of those that count and of those that are ignored; the rest are counted."""

Outcome = Literal["whole", "honest prefix", "wrong"]
EXIT_CODES: Final[dict[Outcome, int]] = {"whole": 0, "honest prefix": 1, "wrong": 2}


class Weight(Enum):
    """What a finding is about."""

    TEXT = "text"
    """What a client takes for the answer and for its end."""
    SHAPE = "shape"
    """Ids, model, roles, choices, finishes, the order of events."""
    ACCOUNTING = "accounting"
    """What the answer says that it cost."""


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
    OTHER_CHOICE = "other_choice"
    TWO_FINISHES = "two_finishes"
    TEXT_AFTER_FINISH = "text_after_finish"
    TEXT_AFTER_DONE = "text_after_done"
    TEXT_AFTER_ERROR = "text_after_error"
    NOT_JSON = "not_json"
    TOO_LONG = "too_long"
    NOT_A_STREAM = "not_a_stream"
    USAGE_SUM = "usage_sum"
    USAGE_WORDS = "usage_words"
    USAGE_LOST = "usage_lost"
    PHANTOM_CALL = "phantom_call"
    FINISH_CHANGED = "finish_changed"
    SILENT_TRUNCATION = "silent_truncation"
    EVENT_NAME = "event_name"
    EVENT_ORDER = "event_order"
    BLOCK_INDEX = "block_index"
    BLOCK_TYPE = "block_type"
    UNCLOSED_BLOCK = "unclosed_block"
    SIGNATURE = "signature"
    SEQUENCE_NUMBER = "sequence_number"
    ITEM_INDEX = "item_index"
    ITEM_ID = "item_id"
    UNFINISHED_ITEM = "unfinished_item"
    OUTPUT_ITEMS = "output_items"
    DONE_TEXT = "done_text"

    @property
    def weight(self) -> Weight:
        """What it is about."""
        return _WEIGHTS.get(self, Weight.TEXT)


_WEIGHTS: Final[Mapping[Kind, Weight]] = {
    **dict.fromkeys((Kind.ID_CHANGED, Kind.MODEL_CHANGED, Kind.SECOND_ROLE), Weight.SHAPE),
    **dict.fromkeys((Kind.OTHER_CHOICE, Kind.TWO_FINISHES), Weight.SHAPE),
    **dict.fromkeys((Kind.EVENT_NAME, Kind.EVENT_ORDER, Kind.BLOCK_INDEX), Weight.SHAPE),
    **dict.fromkeys(
        (Kind.SEQUENCE_NUMBER, Kind.ITEM_ID, Kind.ITEM_INDEX, Kind.UNFINISHED_ITEM, Kind.OUTPUT_ITEMS),
        Weight.SHAPE,
    ),
    **dict.fromkeys((Kind.BLOCK_TYPE, Kind.UNCLOSED_BLOCK, Kind.SIGNATURE), Weight.SHAPE),
    **dict.fromkeys((Kind.USAGE_SUM, Kind.USAGE_WORDS, Kind.USAGE_LOST), Weight.ACCOUNTING),
}
"""Of the findings that are about anything but what a client reads."""

COUNT_FINDINGS: Final = frozenset({Kind.GAP, Kind.REPEAT, Kind.RESTART, Kind.TORN_WORD, Kind.OTHER_TEXT})
"""Findings after which the number of words is known to be off: to count them would say it again."""


WORD_FINDINGS: Final = COUNT_FINDINGS | {Kind.REORDER, Kind.FOREIGN_WORD, Kind.BLANK}
"""Findings after which the text is not this answer's words, one after the other."""


def kinds_named(names: Iterable[str]) -> frozenset[Kind]:
    """The findings of these names, each that of a finding or of a weight.

    Raises:
        ValueError: neither.
    """
    found: set[Kind] = set()
    for name in names:
        kinds = {kind for kind in Kind if name in {kind.value, kind.weight.value}}
        if not kinds:
            weights = ", ".join(weight.value for weight in Weight)
            known = ", ".join(kind.value for kind in Kind)
            raise ValueError(f"{name!r} is no finding and no weight; weights: {weights}; findings: {known}")
        found |= kinds
    return frozenset(found)


class Note(Enum):
    """What is unusual but right."""

    CREATED_CHANGED = "created_changed"
    ROLE_REPEATED = "role_repeated"
    FINISH_REPEATED = "finish_repeated"
    USAGE_REPEATED = "usage_repeated"
    DONE_REPEATED = "done_repeated"
    DONE_WITHOUT_FINISH = "done_without_finish"
    UNUSUAL_FINISH = "unusual_finish"
    ERROR_AFTER_END = "error_after_end"
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

    @property
    def weight(self) -> Weight:
        """What it is about."""
        return self.kind.weight

    def __str__(self) -> str:
        place = [self.channel] if self.channel else []
        place += [f"word {self.word}", f"byte {self.offset}"]
        times = f" ({self.count} in a row)" if self.count > 1 else ""
        return f"{self.kind.value}: {', '.join(place)}: {self.message}{times}"


class Verdict(msgspec.Struct, frozen=True):
    """The judgement of one stream.

    `outcome` is `whole` (a normal end, nothing missing), `honest prefix` (died, and so visibly; what came is
    right) or `wrong`. `words` counts each channel's whole words; `finding_counts` says how many findings there were of
    each weight, those that were not kept included; `ignored` are those that were not to count.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    finding_counts: dict[Weight, int]
    notes: dict[Note, int]
    tag: str | None
    words: dict[str, int]
    finish: str | None
    done: bool
    error: bool
    completion_tokens: int | None
    byte_count: int

    @property
    def finding_count(self) -> int:
        """How many findings there were, those that were not kept included."""
        return sum(self.finding_counts.values())

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

    @property
    def shown_finish(self) -> str:
        """The finish reason as a line may have it: in quotes, and cut, unless it is a plain word."""
        finish = self.finish or ""
        return finish if _PLAIN_WORD.fullmatch(finish) else shown(finish)

    def lines(self) -> Iterator[str]:
        """What a person reads: the verdict, then a line per finding."""
        words = ", ".join(f"{count} {channel}" for channel, count in self.words.items()) or "none"
        ends = [self.shown_finish] if self.finish else []
        ends += ["error frame"] if self.error else []
        ends += [] if ends else [NAME_OF_END if self.done else "none"]
        weights = ", ".join(f"{count} {weight.value}" for weight, count in self.finding_counts.items())
        findings = f"{self.finding_count} ({weights})" if weights else "0"
        yield f"{self.outcome}: words {words}; finish {'; '.join(ends)}; findings {findings}"
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


def shown(value: object) -> str:
    """A value of the stream, as messages quote it; `…` stands after what is cut."""
    text = str(value)
    cut = text[:_SHOWN_CHARACTERS]
    return (cut if isinstance(value, int) else repr(cut)) + "…" * (len(text) > _SHOWN_CHARACTERS)


def _sentence(message: str) -> str:
    return short_line(message, _MESSAGE_CHARACTERS)


class Report(msgspec.Struct):
    """Findings and notes as they come, in bounded memory.

    `offset` is where the current frame begins, `words_so_far` tells how many words all channels have said.
    `ignored` are findings that are not to count.
    """

    ignored: frozenset[Kind] = frozenset()
    offset: int = 0
    words_so_far: Callable[[], int] = lambda: 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    notes: dict[Note, int] = msgspec.field(default_factory=dict)
    counts: dict[Kind, int] = msgspec.field(default_factory=dict)
    _kept: list[int] = msgspec.field(default_factory=lambda: [0, 0])

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """Which findings there are, and how often."""
        return self.counts

    @property
    def finding_counts(self) -> dict[Weight, int]:
        """How many findings count, by weight."""
        found = dict.fromkeys(Weight, 0)
        for kind, count in self.counts.items():
            if kind not in self.ignored:
                found[kind.weight] += count
        return {weight: count for weight, count in found.items() if count}

    def kept(self, *, ignored: bool) -> tuple[Finding, ...]:
        """The first findings that count, or of those that do not."""
        return tuple(found for found in self.findings if (found.kind in self.ignored) is ignored)

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
        """Add a finding, of the current frame unless `offset` says another; its place among those kept, or -1.

        The sentence is kept as a line: whoever shows it needs no rule of their own.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        is_ignored = kind in self.ignored
        if self._kept[is_ignored] == FINDING_LIMIT:
            return -1
        self._kept[is_ignored] += 1
        place = self.words_so_far() if word is None else word
        begins = self.offset if offset is None else offset
        self.findings.append(Finding(kind, _sentence(message), begins, place, channel, count))
        return len(self.findings) - 1

    def extend(self, place: int) -> None:
        """Count one more in a row for the finding kept at `place`."""
        if place >= 0:
            found = self.findings[place]
            self.findings[place] = msgspec.structs.replace(found, count=found.count + 1)

    def relabel(self, place: int, was: Kind, kind: Kind, message: str) -> None:
        """What came later shows a finding, which `was` another, in another light."""
        self.counts[was] -= 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if place >= 0:
            self.findings[place] = msgspec.structs.replace(
                self.findings[place], kind=kind, message=_sentence(message)
            )

    def note(self, note: Note, count: int = 1) -> None:
        """Count a note."""
        self.notes[note] = self.notes.get(note, 0) + count
