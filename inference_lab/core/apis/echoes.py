"""An echo as the pieces of an answer, for APIs whose writers take an echo's text in one piece and a call's in two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.end import Spoken
from inference_lab.core.answer.pieces import Piece
from inference_lab.core.stream.events import NOTHING, TURN, Delivered, DeliveredSoFar, Part, Turn

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.prompts.echo import Echo

_TURN_PIECES: Final = 512
_TEXT: Final = Delivered(content_frames=1, spoken=Spoken(text=True))
_CALL: Final = Delivered(content_frames=1, spoken=Spoken(calls_begun=1))


def echo_frames(writer: StreamWriter, echo: Echo) -> Iterator[tuple[bytes, Delivered]]:
    """The content frames of an echo, and what each says: its words are its client's own."""
    for piece, said in _pieces_of(echo):
        for frame in writer.content(piece):
            yield frame.data, said if frame.part is Part.CONTENT else NOTHING


def told_whole(writer: StreamWriter, echo: Echo) -> Generator[Turn, None, Delivered]:
    """Write all of an echo, and return what it says where it is not streamed, in turns where it has many calls."""
    told = DeliveredSoFar()
    for number, (_, said) in enumerate(echo_frames(writer, echo), 1):
        told.add(said)
        if number % _TURN_PIECES == 0:
            yield TURN
    return msgspec.structs.replace(told.total, content_frames=0)


def json_object_of(arguments: str) -> dict[str, Any] | None:
    """The object that a call's arguments are; None if they are none."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _pieces_of(echo: Echo) -> Iterator[tuple[Piece, Delivered]]:
    if echo.text:
        yield Piece("text", echo.text, echo.text, 0, 0), _TEXT
    for index, call in enumerate(echo.tool_calls):
        yield Piece("call", "", "", 0, 0, name=call.name, call=index), _CALL
        if call.arguments:
            closed = int(json_object_of(call.arguments) is not None)
            said = Delivered(1, spoken=Spoken(calls_closed=closed), calls=((index, call.arguments),))
            yield Piece("call", call.arguments, call.arguments, 0, 0, call=index), said
