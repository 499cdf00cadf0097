"""What the verdict says of each leg in view of those before it: mistakes of a gateway, and notes. Pure."""

from __future__ import annotations

from email.utils import mktime_tz, parsedate_tz
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.reading import NAME_OF_END
from inference_lab.core.journal.row import Unplanned, changed

if TYPE_CHECKING:
    from inference_lab.core.journal.row import Row

SILENT_MS: Final = 1000
"""So long without a content frame is silence."""
SLOW_MS: Final = 2000
"""Four content frames that take so long are slow."""
_SLACK_S: Final = 0.01
"""What a client's timer and an answer's way may take off a wait."""


class Kind(Enum):
    """What a gateway got wrong."""

    GAP = "gap"
    """A leg asks for words further on than have been delivered."""
    OVERLAP = "overlap"
    """A leg asks once more for words that have been delivered."""
    RESTART = "restart"
    """A leg starts over although words have been delivered."""
    AFTER_DONE = "after_done"
    """A leg although the answer had come to its end, its terminal frame and a finish reason that means it."""
    AFTER_CLIENT_LEFT = "after_client_left"
    """A leg after one that the client itself broke off although it was neither silent nor slow."""
    RETRIED_TOO_EARLY = "retried_too_early"
    """A leg before the time that an earlier one's `retry-after` had told."""
    CHANGED = "changed"
    """A leg with other sampling parameters, seed or stop than the one before."""
    INVENTED_ARGUMENTS = "invented_arguments"
    """A leg whose history holds a call with arguments that were never sent."""


class Note(Enum):
    """What is worth knowing, and no mistake."""

    RETRY = "retry"
    """The same place asked for again after a leg that delivered nothing."""
    RERENDERED = "rerendered"
    """Another prompt, taken for a leg of this conversation by its tag and its test."""
    CONCURRENT = "concurrent"
    """A leg that began before the one before it had ended."""
    SENT_TWICE = "sent_twice"
    """A leg whose very request was sent a second time while the first was being answered."""
    GAVE_UP_ON_SILENCE = "gave_up_on_silence"
    """A leg after one that was silent, which the client has left."""
    GAVE_UP_ON_RATE = "gave_up_on_rate"
    """A leg after one that was slow, which the client has left."""
    LEFT_EARLY = "left_early"
    """A last leg that its client left while it was talking."""


class Finding(msgspec.Struct, frozen=True):
    """A mistake at leg number `leg`, in a sentence."""

    kind: Kind
    leg: int
    message: str


class Remark(msgspec.Struct, frozen=True):
    """A note on leg number `leg`."""

    kind: Note
    leg: int


class Between:
    """Goes through a conversation's legs in the order of time; `leg` says what is wrong with the next one."""

    def __init__(self, first: Row) -> None:
        self._first = first
        self._before: Row | None = None
        self._number = 0
        self._held: int | None = first.progress or 0  # words of the answer that the client holds, at most
        self._is_exact = True  # and at least, since it has read all there was
        self._due: dict[object, tuple[float, float, str, int]] = {}

    def leg(self, row: Row) -> tuple[list[Finding], list[Remark]]:
        """What is to be said of the next leg."""
        found: list[Finding] = []
        noted: list[Note] = []
        if self._before is not None:
            self._judge_departure(self._before, found, noted)
            self._judge_place(self._before, row, found, noted)
            self._judge_wait(row, found)
            names = changed(self._before.parameters, row.parameters)
            if names:
                told = ", ".join(
                    f"{name} {_shown(self._before, name)} → {_shown(row, name)}" for name in names
                )
                found.append(Finding(Kind.CHANGED, self._number, told))
        remarks = [Remark(note, self._number) for note in noted]
        self._take(row)
        return found, remarks

    def _take(self, row: Row) -> None:
        if row.words is None:
            self._held = None
        elif row.words:
            self._held = row.reached
            self._is_exact = not row.bytes_unsent and row.peer != "rst"
        wait = _wait_s(row)
        if wait is not None:
            self._due[_server(row)] = end_s(row), wait, str(row.retry_after), self._number
        self._before = row
        self._number += 1

    def _judge_departure(self, before: Row, found: list[Finding], noted: list[Note]) -> None:
        """Whether it was the client that ended the leg before, and why."""
        if before.done_sent and is_whole(before):
            found.append(
                Finding(
                    Kind.AFTER_DONE, self._number, f"leg {self._number - 1} had come to its {NAME_OF_END}"
                )
            )
        if before.ending != Unplanned.CLIENT_LEFT or before.silent_ms is None:
            return
        if before.silent_ms >= SILENT_MS:
            noted.append(Note.GAVE_UP_ON_SILENCE)
        elif is_slow(before):
            noted.append(Note.GAVE_UP_ON_RATE)
        elif is_talking(before):
            told = f"leg {self._number - 1} was broken off by its client"
            found.append(Finding(Kind.AFTER_CLIENT_LEFT, self._number, told))

    def _judge_place(self, before: Row, row: Row, found: list[Finding], noted: list[Note]) -> None:
        """Whether it goes on where the words that its client holds end."""
        held, asked = self._held, row.progress or 0
        is_concurrent = overlap(before, row)
        if held is not None and asked > held:
            gap = f"it goes on behind {_words(asked)}, and {held} had been delivered"
            found.append(Finding(Kind.GAP, self._number, gap))
        elif held is not None and asked < held and self._is_exact and not is_concurrent:
            told = f"it goes on behind {_words(asked)}, and {held} had been delivered"
            if not asked:
                told = f"it starts over, and {_words(held)} had been delivered"
            found.append(Finding(Kind.OVERLAP if asked else Kind.RESTART, self._number, told))
        if (
            row.progress == before.progress
            and before.reached in {None, before.progress}
            and before.words == 0
        ):
            noted.append(Note.RETRY)
        if row.prompt != self._first.prompt:
            noted.append(Note.RERENDERED)
        if is_concurrent:
            noted.append(Note.CONCURRENT)

    def _judge_wait(self, row: Row, found: list[Finding]) -> None:
        """Whether it comes before the time that its server had told."""
        due = self._due.get(_server(row))
        if due is None:
            return
        ended, wait, header, number = due
        waited = row.time - ended
        if waited < wait - _SLACK_S:
            told = f"it comes {waited:.2f} s after leg {number}, whose retry-after ({header}) asks for {wait:.2f} s"
            found.append(Finding(Kind.RETRIED_TOO_EARLY, self._number, told))


def is_whole(row: Row) -> bool:
    """Whether an answer has come to its end, streamed or not, and its client has it."""
    return ends_whole(row) and not row.bytes_unsent


def ends_whole(row: Row) -> bool:
    """Whether what was sent is a whole answer."""
    if row.state == "open" or row.status != 200 or not row.ends_well:
        return False
    # A journal of earlier has no finish, and says of `ends_well` only what was to be sent.
    return row.finish is not None or row.done_sent or row.ending == row.ending_asked


def is_talking(row: Row) -> bool:
    """Whether the answer was still to go on: nothing had told its client otherwise."""
    return row.finish is None and not (row.done_sent or row.error_sent)


def is_slow(row: Row) -> bool:
    """Whether its last words came slowly."""
    return row.last_four_ms is not None and row.last_four_ms >= SLOW_MS


def overlap(before: Row, row: Row) -> bool:
    """Whether a request came while the one before was still being answered."""
    return row.time < end_s(before)


def end_s(row: Row) -> float:
    """When it had been answered, as far as is known: of what lasts never, of a server that was lost at once."""
    if row.duration_ms is None:
        return inf if row.state == "open" else row.time
    return row.time + row.duration_ms / 1000


def _server(row: Row) -> object:
    """Whose `retry-after` it is: that of another port or model says nothing of this one."""
    return row.port, row.model


def _wait_s(row: Row) -> float | None:
    """What the leg's `retry-after` asks for, in seconds from its end; None for what is no time."""
    told = (row.retry_after or "").strip()
    if told.isascii() and told.isdigit() and len(told) <= 9:
        return float(told)
    date = parsedate_tz(told)
    try:
        return None if date is None else mktime_tz(date) - end_s(row)
    except (ValueError, OverflowError):
        return None


def _words(count: int) -> str:
    return "1 word" if count == 1 else f"{count} words"


def _shown(row: Row, name: str) -> str:
    value = row.parameters.get(name)
    return "not set" if value is None else msgspec.json.encode(value).decode()
