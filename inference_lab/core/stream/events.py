"""The events of a script: what a response does, as values, before any socket is involved.

What only the transfer coding can show is named here, and spelled where it is sent (`chunks`). Two more stand only
inside the making of a script: a torn frame before it is cut, and the fault point. A `Turn` is for who carries the
script out, and shows nowhere.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import msgspec

from inference_lab.core.answer.end import SILENCE, Spoken
from inference_lab.core.answer.pieces import Piece
from inference_lab.core.faults.death import Close

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from inference_lab.core.answer.pieces import Pieces


BodyEnd: TypeAlias = Literal["stream", "length", "none"]
"""How a body ends for its reader: where the transport says so (chunks on HTTP/1.1), after its length, or not at all."""


class Head(msgspec.Struct, frozen=True):
    """The response's status and headers (lower-case names).

    `content_length` is sent with any `framing`. After a whole response a connection that stays idle for `idle_ms` is
    closed; `closes`: this response is its last.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    framing: BodyEnd = "stream"
    content_length: int | None = None
    idle_ms: int | None = None
    closes: bool = False


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """What has been said once a piece of a stream is out, to a client that reads as an SSE parser does.

    Whole content frames, whole words of the answer (one that is said again counts once), `done` by a terminal frame,
    and `spoken`, which decides how the answer ended. `usage` is the last one's JSON, `calls` are fragments of calls'
    arguments, each after its call's number. `unreadable`: it ends with a frame that is no JSON, and that no text
    follows. `hangs`: there will be nothing but heartbeats any more.
    """

    content_frames: int = 0
    words: int = 0
    done: bool = False
    spoken: Spoken = SILENCE
    usage: bytes | None = None
    unreadable: bool = False
    hangs: bool = False
    calls: tuple[tuple[int, str], ...] = ()

    def __add__(self, other: Delivered) -> Delivered:
        """What both said, the other after this one."""
        both = self.then(other)
        calls = self.calls + other.calls
        return msgspec.structs.replace(both, calls=calls) if calls else both

    def then(self, other: Delivered) -> Delivered:
        """As the sum, without the text of the calls: it costs the same however much has been said."""
        return Delivered(
            self.content_frames + other.content_frames,
            self.words + other.words,
            self.done or other.done,
            self.spoken if other.spoken is SILENCE else self.spoken + other.spoken,
            self.usage if other.usage is None else other.usage,
            other.unreadable or (self.unreadable and not other.content_frames),
            self.hangs or other.hangs,
        )

    def again(self) -> Delivered:
        """What saying it once more adds."""
        return msgspec.structs.replace(self, words=0, spoken=SILENCE)

    @property
    def whole_spoken(self) -> Spoken:
        """As `spoken`, when nothing more comes: a client fails at a last frame that it cannot read."""
        return self.spoken + Spoken(error=True) if self.unreadable else self.spoken


NOTHING: Final = Delivered()
SAID_DONE: Final = Delivered(done=True)
HANGING: Final = Delivered(hangs=True)
UNREADABLE: Final = Delivered(unreadable=True)
AN_ERROR: Final = Delivered(spoken=Spoken(error=True))
_TEXT: Final = Spoken(text=True)
_THOUGHT: Final = Spoken(reasoning=True)
ONE_WORD: Final = Delivered(content_frames=1, words=1, spoken=_TEXT)
ONE_THOUGHT: Final = Delivered(content_frames=1, words=1, spoken=_THOUGHT)


def said_of(piece: Piece) -> Delivered:
    """What a content frame says that carries this piece."""
    if piece.channel == "call":
        is_closed = piece.delta.endswith('"}')  # no word has a quote in it
        spoken = Spoken(calls_begun=int(piece.name is not None), calls_closed=int(is_closed))
        is_told = piece.delta or piece.name is not None
        calls = ((piece.call, piece.delta),) if is_told else ()
        return Delivered(content_frames=1, words=piece.words, spoken=spoken, calls=calls)
    if piece.words == 1:
        return ONE_WORD if piece.channel == "text" else ONE_THOUGHT
    return Delivered(1, piece.words, spoken=_TEXT if piece.channel == "text" else _THOUGHT)


class DeliveredSoFar:
    """What has been said by one thing after the other: a sum of `Delivered` that costs no more the longer it gets."""

    def __init__(self, begin: Delivered = NOTHING) -> None:
        self._said = begin
        self._calls = list(begin.calls)  # beside it: a sum of tuples copies all of them each time

    def add(self, said: Delivered) -> None:
        """This comes after what was said before."""
        self._said = self._said.then(said)
        self._calls += said.calls

    @property
    def total(self) -> Delivered:
        """All of it."""
        return msgspec.structs.replace(self._said, calls=tuple(self._calls)) if self._calls else self._said


def said_of_whole(pieces: Pieces, finish: str, usage: bytes) -> Delivered:
    """What a JSON answer says that holds all of these pieces; it has no frames."""
    told = DeliveredSoFar(Delivered(spoken=Spoken(finish=finish), usage=usage))
    for part in pieces.segments:
        if isinstance(part, Piece):
            told.add(said_of(part))
        elif part.channel == "call":
            for piece in part:
                told.add(said_of(piece))
        elif part.stop is not None and part.stop > part.start:
            spoken = _TEXT if part.channel == "text" else _THOUGHT
            told.add(Delivered(words=part.stop - part.start, spoken=spoken))
    return msgspec.structs.replace(told.total, content_frames=0)


def finished(reason: str, usage: bytes | None = None) -> Delivered:
    """What a frame says that carries a finish reason, of which an empty one is none."""
    return Delivered(spoken=Spoken(finish=reason or None), usage=usage)


class Part(Enum):
    """What a frame is, in every API: edits go by it."""

    OTHER = "other"
    OPENING = "opening"
    COMMENT = "comment"
    """What a dialect puts before each content frame."""
    BLOCK_START = "block_start"
    CONTENT = "content"
    BLOCK_END = "block_end"
    FINISH = "finish"
    USAGE = "usage"
    """Where the counts have a frame of their own."""
    TERMINAL = "terminal"
    PING = "ping"
    """A sign of life in a silence."""
    ERROR = "error"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as one HTTP chunk; `alone`: in a send of its own."""

    data: bytes
    alone: bool = False
    said: Delivered = NOTHING
    part: Part = Part.OTHER


class Burst(msgspec.Struct, frozen=True, gc=False):
    """Content frames of a word each, each `every_ms` after the one before: what a plain stream mostly consists of.

    `said` is what each of them says. `awaited`: each but the first is due with one more token of the engine instead.
    """

    frames: list[bytes]
    every_ms: int = 0
    said: Delivered = ONE_WORD
    awaited: bool = False


class Long(msgspec.Struct, frozen=True, gc=False):
    """One frame with so many blanks in it that it is sent in pieces."""

    prefix: bytes
    blanks: int
    suffix: bytes
    said: Delivered = NOTHING


class Break(msgspec.Struct, frozen=True, gc=False):
    """Framing that is broken here: by a value of `chunk_error`, or `raw` bytes that somebody recorded."""

    kind: Literal["no_crlf", "bad_size", "response_inside", "raw"]
    data: bytes = b""
    said: Delivered = NOTHING


class Stub(msgspec.Struct, frozen=True, gc=False):
    """The beginning of a `chunk`, with `data` in it, or of the `terminator`; the rest never comes."""

    kind: Literal["chunk", "terminator"]
    data: bytes = b""


class Trailers(msgspec.Struct, frozen=True, gc=False):
    """The end of the body, with fields after it."""

    fields: tuple[tuple[bytes, bytes], ...]


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
    said: Delivered


class FaultPoint(msgspec.Struct, frozen=True, gc=False):
    """A mark between two events: the N content frames are out. Framing breaks here, if it is to break."""


FAULT_POINT: Final = FaultPoint()


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What comes next takes long to make, and only a part of it is made: the others may have their turn."""


TURN: Final = Turn()
TURN_BYTES: Final = 65_536
"""After so much has been made and held there is a `Turn`: a thousand frames of a word, or nine of a thousand words."""

Special: TypeAlias = Long | Break | Stub | Trailers
Event: TypeAlias = Head | Frame | Burst | Special | Pause | Await | Close | Turn
Draft: TypeAlias = Event | Torn | FaultPoint

_Of = TypeVar("_Of", Event, Draft)


def single(events: Iterable[_Of]) -> Iterator[_Of]:
    """The events with each burst as the frames and pauses it stands for."""
    for event in events:
        if isinstance(event, Burst):
            for place, frame in enumerate(event.frames):
                if place and event.every_ms:
                    yield Pause(event.every_ms)
                elif place and event.awaited:
                    yield Await(1)
                yield Frame(frame, said=event.said, part=Part.CONTENT)
        else:
            yield event
