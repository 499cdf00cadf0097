"""How an answer ended: one pure function of what its frames said.

The oracle asks it of the bytes that a client received, the journal of the frames that went out, so that the two cannot
contradict each other about the same bytes. Both add up `Spoken` values, one a frame; nothing else about an answer
decides how it ended. How the transport ended does not come in: a death that nobody can see is the oracle's to name.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

NORMAL_FINISHES: Final = frozenset({"stop", "length", "tool_calls"})
"""The finish reasons of an answer that is whole."""


class End(Enum):
    """The end of an answer. All but `WHOLE` are deaths."""

    WHOLE = "whole"
    """A normal finish, and nothing that contradicts it."""
    ERROR = "error"
    """An error that a client sees, whatever was said before and after it."""
    UNUSUAL_FINISH = "unusual_finish"
    """A finish reason that is no normal one, which shows the death."""
    CUT = "cut"
    """No finish at all."""
    EMPTY = "empty"
    """A finish `stop` or `tool_calls`, and not a single word."""
    REASONING_ONLY = "reasoning_only"
    """A finish `stop` after reasoning alone; a healthy answer that runs out there says `length`."""
    OPEN_CALL = "open_call"
    """A finish `stop` or `tool_calls` inside a call."""
    PHANTOM_CALL = "phantom_call"
    """A finish `tool_calls` without a whole call, or a call whose arguments say nothing."""


class Spoken(msgspec.Struct, frozen=True, gc=False):
    """What frames said, as far as it decides how their answer ended.

    `finish` is the first finish reason, `error` an error that a client sees. `text` and `reasoning` tell whether there
    was any text of these channels that is not empty. A call is begun by its announcement and closed by the end of its
    arguments; an empty one is closed and has no text in its arguments.
    """

    finish: str | None = None
    error: bool = False
    text: bool = False
    reasoning: bool = False
    calls_begun: int = 0
    calls_closed: int = 0
    calls_empty: int = 0

    def __add__(self, other: Spoken) -> Spoken:
        """What both said, the other after this one."""
        return Spoken(
            self.finish if self.finish is not None else other.finish,
            self.error or other.error,
            self.text or other.text,
            self.reasoning or other.reasoning,
            self.calls_begun + other.calls_begun,
            self.calls_closed + other.calls_closed,
            self.calls_empty + other.calls_empty,
        )


SILENCE: Final = Spoken()


def end_of(spoken: Spoken, *, may_be_empty: bool = False) -> End:
    """How the answer ended that said this.

    `may_be_empty`: it is a leg of an answer whose first words came before, so there may be nothing left to say.
    """
    if spoken.error:
        return End.ERROR
    if spoken.finish is None:
        return End.CUT
    if spoken.finish not in NORMAL_FINISHES:
        return End.UNUSUAL_FINISH
    if spoken.calls_empty and not may_be_empty:
        return End.PHANTOM_CALL
    if spoken.finish == "length":  # it may run out anywhere: in its markup, its reasoning, a call
        return End.WHOLE
    return _end_of_finished(spoken, may_be_empty=may_be_empty)


def _end_of_finished(spoken: Spoken, *, may_be_empty: bool) -> End:
    """As `end_of`, for a finish that says that nothing is left to say."""
    if spoken.calls_begun > spoken.calls_closed:
        return End.OPEN_CALL
    has_call = spoken.calls_closed > 0
    if not (spoken.text or spoken.reasoning or has_call):
        return End.WHOLE if may_be_empty else End.EMPTY
    if spoken.finish == "tool_calls" and not has_call:
        return End.PHANTOM_CALL
    if not (spoken.text or has_call):
        return End.REASONING_ONLY
    return End.WHOLE
