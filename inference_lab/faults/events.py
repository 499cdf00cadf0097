"""The events of a script: what a response does, as values, before any socket is involved.

Two more stand only inside the making of a script: a torn frame before it is cut, and the fault point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from inference_lab.faults.death import Close

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Head(msgspec.Struct, frozen=True):
    """The response's status and headers (lower-case names).

    The body is framed in chunks, and with `content_length` carries that header; `chunked` false: as the bytes come.
    After a whole response a connection that stays idle for `idle_ms` is closed.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    chunked: bool = True
    content_length: int | None = None
    idle_ms: int | None = None


class Said(msgspec.Struct, frozen=True, gc=False):
    """What has been said once a piece of a stream is out: whole content frames, whole words of the answer, `[DONE]`.

    A word that is said again counts once.
    """

    content_frames: int = 0
    words: int = 0
    done: bool = False

    def __add__(self, other: Said) -> Said:
        return Said(
            self.content_frames + other.content_frames, self.words + other.words, self.done or other.done
        )


NOTHING: Final = Said()
SAID_DONE: Final = Said(done=True)
ONE_WORD: Final = Said(content_frames=1, words=1)


def said(words: int) -> Said:
    """What a content frame says that ends so many words."""
    return ONE_WORD if words == 1 else Said(content_frames=1, words=words)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as one HTTP chunk; `alone`: in a send of its own."""

    data: bytes
    alone: bool = False
    said: Said = NOTHING


class Burst(msgspec.Struct, frozen=True, gc=False):
    """Content frames of a word each, each `every_ms` after the one before: what a plain stream mostly consists of."""

    frames: list[bytes]
    every_ms: int = 0


class Raw(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as they are: broken framing, or a piece of a chunk.

    `is_framing`: they are only what chunks have around their data, which a stream without chunks goes without.
    """

    data: bytes
    said: Said = NOTHING
    is_framing: bool = False


class Pause(msgspec.Struct, frozen=True, gc=False):
    """The next event is due `ms` milliseconds (up to u64) after the moment this one was due."""

    ms: int


class Await(msgspec.Struct, frozen=True, gc=False):
    """The next event is due once the engine has produced `tokens` more tokens."""

    tokens: int


class Torn(msgspec.Struct, frozen=True, gc=False):
    """A whole frame of which only a part is to go out, once it is spelled as the stream wants it.

    `said` is what the whole of it would say.
    """

    data: bytes
    said: Said


class FaultPoint(msgspec.Struct, frozen=True, gc=False):
    """A mark between two events: the N content frames are out. Framing breaks here, if it is to break."""


FAULT_POINT: Final = FaultPoint()

Event: TypeAlias = Head | Frame | Burst | Raw | Pause | Await | Close
Draft: TypeAlias = Head | Frame | Burst | Raw | Pause | Await | Close | Torn | FaultPoint

_Of = TypeVar("_Of", Event, Draft)


def single(events: Iterable[_Of]) -> Iterator[_Of]:
    """The events with each burst as the frames and pauses it stands for."""
    for event in events:
        if isinstance(event, Burst):
            for place, frame in enumerate(event.frames):
                if place and event.every_ms:
                    yield Pause(event.every_ms)
                yield Frame(frame, said=ONE_WORD)
        else:
            yield event
