"""The verdict over the server's side: the legs of a conversation in order, and what a gateway did wrong between them.

Pure: rows in, findings out. What the gateway's own client received is `oracle`'s to judge.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from inference_lab.journal.filters import Filter
from inference_lab.journal.row import DRAWN_WITH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inference_lab.journal.row import Row

_SILENCE: Final = re.compile(r";(?:(?:pause|ttft)_ms=|(?:delay|gap)_ms=\d{4})")
"""A silence in a directive's canonical spelling: one that is asked for, or a second and more between frames."""


class Kind(Enum):
    """What a gateway got wrong."""

    GAP = "gap"
    """A leg asks for words further on than have been delivered."""
    OVERLAP = "overlap"
    """A leg asks once more for words that have been delivered."""
    RESTART = "restart"
    """A leg starts over although words have been delivered."""
    AFTER_DONE = "after_done"
    """A leg although the answer had come to its end, `[DONE]` and a finish reason that means it."""
    AFTER_CLIENT_LEFT = "after_client_left"
    """A leg behind one that the client itself broke off although it was not silent."""
    CHANGED = "changed"
    """A leg with other sampling parameters, seed or stop than the one before."""


class Note(Enum):
    """What is worth knowing, and no mistake."""

    RETRY = "retry"
    """The same place asked for again behind a leg that delivered nothing."""
    RERENDERED = "rerendered"
    """Another prompt, taken for a leg of this conversation by its tag and its test."""
    CONCURRENT = "concurrent"
    """A leg that began before the one in front of it had ended."""
    GAVE_UP_ON_SILENCE = "gave_up_on_silence"
    """A leg behind one that was silent, which the client has left."""


class Finding(msgspec.Struct, frozen=True):
    """A mistake at leg number `leg`, in a sentence."""

    kind: Kind
    leg: int
    message: str


class Remark(msgspec.Struct, frozen=True):
    """A note on leg number `leg`."""

    kind: Note
    leg: int


class Leg(msgspec.Struct, frozen=True):
    """What is of interest of a row, under the row's names; `asked_at` is its time.

    `max_tokens` is the limit that was sent, under either name, and is not judged: what is left of it is the tokenizer's
    to say.
    """

    id: int
    asked_at: float
    path: str
    prompt: str | None
    progress: int
    max_tokens: int | None
    words: int
    reached: int | None
    trigger: str | None
    fault: str | None
    status: int | None
    state: str
    ending: str | None
    peer: str | None
    done_sent: bool
    bytes_unsent: int


class Conversation(msgspec.Struct, frozen=True):
    """One answer's legs in the order in which they were asked for, and what is to be said of them.

    `end` is how the last leg leaves the answer: `whole`, `dead`, or `open` while it lasts.
    """

    prompt: str
    tag: str | None
    test: str | None
    end: Literal["whole", "dead", "open"]
    legs: tuple[Leg, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Remark, ...]


def verdicts(
    fetch: Callable[[Filter], Iterable[Row]], *, prompt: str | None, test: str | None
) -> list[Conversation]:
    """The conversations with this key or of this test; `fetch` gives the rows that match a filter.

    Legs that were rendered anew have another key, so the rows of a key's tests are looked through too.
    """
    found = {row.id: row for row in fetch(Filter(prompt=prompt, test=test))}
    if test is None:
        for related in sorted({row.test for row in found.values() if row.test is not None}):
            found.update((row.id, row) for row in fetch(Filter(test=related)))
    judged = [judge(rows) for rows in joined(found.values())]
    return [one for one in judged if prompt is None or any(leg.prompt == prompt for leg in one.legs)]


def joined(rows: Iterable[Row]) -> list[list[Row]]:
    """Completions grouped into conversations, each in the order of time.

    A conversation is told by test and key. A leg under another key joins the one of its test whose tag its words have.
    A first leg behind a whole answer, or beside one that lasts, begins another conversation.
    """
    conversations: list[list[Row]] = []
    by_key: dict[tuple[str | None, str], list[Row]] = {}
    by_tag: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.time, row.id)):
        if row.prompt is None or row.progress is None:
            continue
        group = by_key.get((row.test, row.prompt))
        if group is None and row.progress and row.test is not None and row.tag is not None:
            group = by_tag.get((row.test, row.tag))
        if group is None or (not row.progress and (_is_whole(group[-1]) or _overlaps(group[-1], row))):
            group = by_key[row.test, row.prompt] = []
            conversations.append(group)
        if row.test is not None and row.tag is not None:
            by_tag[row.test, row.tag] = group
        group.append(row)
    return conversations


def judge(rows: list[Row]) -> Conversation:
    """One conversation's rows in the order of time."""
    findings: list[Finding] = []
    notes: list[Remark] = []
    delivered = _Delivered(rows[0].progress or 0)
    for number, row in enumerate(rows):
        if number:
            before = rows[number - 1]
            findings += _between(number, before, row, delivered)
            notes += _noted(number, rows[0], before, row)
        delivered.take(row)
    first = rows[0]
    return Conversation(
        str(first.prompt),
        first.tag,
        first.test,
        _end_of(rows[-1]),
        tuple(map(_leg, rows)),
        tuple(findings),
        tuple(notes),
    )


def _end_of(last: Row) -> Literal["whole", "dead", "open"]:
    if last.state == "open":
        return "open"
    return "whole" if _is_whole(last) else "dead"


class _Delivered:
    """The words that a client holds: at most `words`, and exactly as many where it has read all there was."""

    def __init__(self, words: int) -> None:
        self.words: int | None = words
        self.is_exact = True

    def take(self, row: Row) -> None:
        if row.words:
            self.words = row.reached
            self.is_exact = not row.bytes_unsent and row.peer != "rst"


def _between(number: int, before: Row, row: Row, delivered: _Delivered) -> list[Finding]:
    found = []
    if before.done_sent and before.ends_well:
        found.append(Finding(Kind.AFTER_DONE, number, f"leg {number - 1} had come to its [DONE]"))
    elif before.ending == "client_left" and not before.done_sent and not _was_silent(before):
        found.append(
            Finding(Kind.AFTER_CLIENT_LEFT, number, f"leg {number - 1} was broken off by its client")
        )
    held, asked = delivered.words, row.progress or 0
    if held is not None and asked > held:
        gap = f"it goes on behind {_words(asked)}, and {held} had been delivered"
        found.append(Finding(Kind.GAP, number, gap))
    elif held is not None and asked < held and delivered.is_exact:
        told = f"it goes on behind {_words(asked)}, and {held} had been delivered"
        if not asked:
            told = f"it starts over, and {_words(held)} had been delivered"
        found.append(Finding(Kind.OVERLAP if asked else Kind.RESTART, number, told))
    changed = [name for name in DRAWN_WITH if before.parameters.get(name) != row.parameters.get(name)]
    if changed:
        told = ", ".join(f"{name} {_shown(before, name)} → {_shown(row, name)}" for name in changed)
        found.append(Finding(Kind.CHANGED, number, told))
    return found


def _noted(number: int, first: Row, before: Row, row: Row) -> list[Remark]:
    kinds = []
    if row.progress == before.progress and before.reached in {None, before.progress} and not before.words:
        kinds.append(Note.RETRY)
    if row.prompt != first.prompt:
        kinds.append(Note.RERENDERED)
    if _overlaps(before, row):
        kinds.append(Note.CONCURRENT)
    if before.ending == "client_left" and _was_silent(before):
        kinds.append(Note.GAVE_UP_ON_SILENCE)
    return [Remark(kind, number) for kind in kinds]


def _is_whole(row: Row) -> bool:
    """Whether an answer has come to its end, streamed or not: a client may count on nothing behind its `[DONE]`."""
    if row.state == "open" or row.status != 200 or not row.ends_well:
        return False
    return row.done_sent or row.ending == row.ending_asked


def _overlaps(before: Row, row: Row) -> bool:
    """Whether a request came while the one before was still being answered."""
    return before.duration_ms is None or row.time < before.time + before.duration_ms / 1000


def _was_silent(row: Row) -> bool:
    return row.ending_asked == "hang" or _SILENCE.search(row.fault or "") is not None


def _words(count: int) -> str:
    return "1 word" if count == 1 else f"{count} words"


def _shown(row: Row, name: str) -> str:
    value: Any = row.parameters.get(name)
    return "not set" if value is None else msgspec.json.encode(value).decode()


def _leg(row: Row) -> Leg:
    limits = (row.parameters.get(name) for name in ("max_completion_tokens", "max_tokens"))
    told: dict[str, Any] = {
        "asked_at": row.time,
        "progress": row.progress or 0,
        "max_tokens": next((limit for limit in limits if isinstance(limit, int)), None),
    }
    names = [field for field in Leg.__struct_fields__ if field not in told]
    return Leg(**told, **{field: getattr(row, field) for field in names})
