"""An echo: an answer whose text and calls the client has written into its prompt."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.end import Spoken
from inference_lab.core.identity import call_id
from inference_lab.core.stream.events import NOTHING, TURN, Delivered, DeliveredSoFar, Turn
from inference_lab.core.stream.read_back import said_in

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from inference_lab.core.apis.chat.writer import ChatWriter
    from inference_lab.core.apis.contract import Completion
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.core.prompts.messages import Call

_TEXT: Final = Delivered(content_frames=1, spoken=Spoken(text=True))
"""What a frame of an echo's text says."""
_TURN_FRAMES: Final = 16
"""So many frames of calls are read back before others have their turn: some milliseconds."""
_TURN_CALLS: Final = 512


def echo_frames(writer: ChatWriter, echo: Echo) -> Iterator[tuple[bytes, Delivered]]:
    """The content frames of an echo: its text cut before each blank, then two frames per call.

    They are made as they are sent, and nothing is kept of one that is. Its words are the client's own: they tell no
    place in an answer.
    """
    pieces, calls = echo.text_pieces(), echo.tool_calls
    return chain(((writer.text(piece), _TEXT) for piece in pieces), _call_frames(writer, calls))


def _call_frames(writer: ChatWriter, calls: Iterable[Call]) -> Iterator[tuple[bytes, Delivered]]:
    for index, call in enumerate(calls):
        frames = (writer.announcement(index, call.name), writer.arguments(index, call.arguments))
        # Calls are read back: whether their arguments close, and say anything, is the client's own doing.
        for frame, said, told in zip(frames, said_in(frames), ("", call.arguments), strict=True):
            yield frame, msgspec.structs.replace(said, words=0, calls=((index, told),))


def said_by_echo(writer: ChatWriter, echo: Echo) -> Generator[Turn, None, Delivered]:
    """What an echo that is not streamed says, found in turns where it has many calls; it has no frames."""
    told = DeliveredSoFar(Delivered(spoken=_TEXT.spoken) if echo.text else NOTHING)
    for number, (_, said) in enumerate(_call_frames(writer, echo.tool_calls), 1):
        told.add(said)
        if number % _TURN_FRAMES == 0:
            yield TURN
    return msgspec.structs.replace(told.total, content_frames=0)


def echo_message(echo: Echo, completion: Completion) -> Generator[Turn, None, dict[str, Any]]:
    """The message of an echo that is not streamed, made in turns where it has many calls."""
    calls: list[dict[str, Any]] = []
    for index, call in enumerate(echo.tool_calls):
        function = {"name": call.name, "arguments": call.arguments}
        calls.append({"id": call_id(completion.id, index), "type": "function", "function": function})
        if len(calls) % _TURN_CALLS == 0:
            yield TURN
    message: dict[str, Any] = {"role": "assistant", "content": echo.text or None}
    return message | {"tool_calls": calls} if calls else message
