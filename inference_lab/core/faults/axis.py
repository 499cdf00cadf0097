"""What a line of `Death` says of an axis: what it acts on, what it does, and the values that it takes."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec

from inference_lab.core.faults.values import Choice, Flag, ValueKind


class Phase(Enum):
    """What an axis acts on."""

    CONTENT = "content"
    """The content frames and what stands among them, the finish included."""
    PACE = "pace"
    ERROR = "error"
    COUNTS = "counts"
    TERMINAL = "terminal"
    LEG = "leg"
    """What only a later leg of an answer can do wrong."""
    REQUEST = "request"
    REACH = "reach"
    """How far a response gets, and what it is instead of a stream."""
    OPENING = "opening"
    """What a whole answer can show too, under the head of a stream."""
    SPELLING = "spelling"
    """How SSE is written."""
    FRAMING = "framing"
    END = "end"
    WRITER = "writer"
    LABEL = "label"
    """What changes nothing about the response."""


class Axis(msgspec.Struct, frozen=True):
    """What an axis acts on, one line of what it does, and the values it takes, where its type does not list them."""

    phase: Phase
    help: str
    kind: ValueKind = Flag()


def axis_of(hint: Any) -> Axis:  # noqa: ANN401 - a type
    """The axis of an annotation, whose values a `Literal` lists itself."""
    values, axis = get_args(hint)
    assert isinstance(axis, Axis)  # noqa: S101 - what every line has
    return (
        msgspec.structs.replace(axis, kind=Choice(*get_args(values)))
        if get_origin(values) is Literal
        else axis
    )
