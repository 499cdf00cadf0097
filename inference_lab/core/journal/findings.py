"""What the verdict over a conversation's legs says: mistakes of a gateway, and notes."""

from __future__ import annotations

from enum import Enum

import msgspec


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
