"""The frames of a death that is a stream, in plain SSE and with their pauses; dressing and framing come later."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.faults.content import Source, frame_at, frames_in, grouped
from inference_lab.faults.death import ALL, EMPTY_EACH, NONE, UNLIMITED, Death
from inference_lab.faults.errors import error_block
from inference_lab.faults.events import Event, Frame, Pause, Raw
from inference_lab.shapes import DONE, Counts, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.pieces import Piece

_E_ACUTE: Final = "é"
_BLOCK_BYTES: Final = 65_536

HEARTBEATS: Final = {
    "ping": b": ping\n\n",
    "bare": b":\n\n",
    "keep_alive": b": keep-alive\n\n",
    "openrouter": b": OPENROUTER PROCESSING\n\n",
    "event": b"event: ping\ndata: {}\n\n",
    "empty_data": b"data:\n\n",
}


class FaultPoint(msgspec.Struct, frozen=True):
    """A mark between two events: the N content frames are out. Framing breaks here, if it is to break."""


FAULT_POINT: Final = FaultPoint()


class DeathStream:
    """Writes the events of `death` on an endpoint's `shape`; `source` gives the answer.

    The first frame is due at once, each further one `delay_ms` after the one before; `[DONE]` follows without a delay.
    """

    def __init__(
        self, death: Death, shape: Shape, source: Source, *, prompt_tokens: int, include_usage: bool
    ) -> None:
        self._death = death
        self._shape = shape
        self._source = source
        self._prompt_tokens = prompt_tokens
        self._usage_asked = include_usage
        self._pause = Pause(death.delay_ms) if death.delay_ms else None
        self._first = True
        self._tokens = 0
        self._words = 0
        self._pieces = source.endless(death.content)
        self._dresses = death.finish == EMPTY_EACH or death.usage.endswith("_chunk")
        self._behind: Iterator[Piece] = iter(())
        dialect = shape.dialect
        self._comment = Frame(dialect.comment) if dialect.comment and "comments" not in death.given else None
        # A content frame; chosen once, since it is said of each.
        self._say = self._frame if self._comment is None else self._say_with_comment
        self._begun = False  # a content frame is out
        self._rides = dialect.finish_rides and "text_in_finish" not in death.given and _may_ride(death)
        self._held: Piece | None = None  # the piece that the finish rides on
        self._finished = False
        self._check()

    def _check(self) -> None:
        """Make the frames that a death may not be able to tear or pad, before anything is sent."""
        death = self._death
        if death.after_chunks == ALL:
            frames = frames_in(self._source.words, death.tokens_per_frame)
        else:
            frames = int(death.after_chunks)
        if (death.at == "role" or death.role_again) and self._shape.opening is None:
            key = "at=role" if death.at == "role" else "role_again"
            raise ValueError(f"{key} needs a role frame, which {self._shape.dialect.name} does not have here")
        if death.tear.word in {"utf8", "byte"}:
            self._torn(frame_at(self._pieces, frames, death.tokens_per_frame), first=frames == 0)
        if death.frame_bytes is not None and death.at == "frames":
            last = frame_at(self._pieces, frames - 1, death.tokens_per_frame)
            frame = self._shape.content(last, first=frames == 1)
            if death.frame_bytes < len(self._dressed(frame)):
                raise ValueError(
                    f"frame_bytes={death.frame_bytes} is less than the frame's {len(frame)} bytes"
                )

    def events(self) -> Iterator[Event | FaultPoint]:
        """Everything up to the close."""
        death, shape = self._death, self._shape
        yield from self._silence(death.ttft_ms)
        if shape.opening is not None and death.at in {"frames", "role"}:
            yield from self._frame(shape.opening)
            if death.role_again:
                yield from self._frame(shape.opening)
        if death.at == "frames":
            yield from self._content()
        else:
            yield FAULT_POINT
        if death.tear.word != "none":
            return
        if death.error != "none":
            yield from self._frame(error_block(death, shape.completion, shape.kind), dress=False)
        if death.at == "frames":
            yield from self._finish()
        if death.done != "false":
            yield Frame(DONE)
        if death.done == "twice":
            yield Frame(DONE)
        if death.sequence.word == "after_done":
            yield Frame(self._counted(next(self._behind)))

    # -- content

    def _content(self) -> Iterator[Event | FaultPoint]:
        death = self._death
        endless = iter(self._pieces)
        if death.after_chunks == ALL:
            before = grouped(islice(endless, self._source.words), death.tokens_per_frame)
            self._behind = grouped(endless, death.tokens_per_frame)
        else:
            self._behind = grouped(endless, death.tokens_per_frame)
            before = islice(self._behind, int(death.after_chunks))
        if self._rides and death.then == "end":
            before = self._all_but_last(before)
        last = int(death.after_chunks) - 1 if death.frame_bytes is not None else -1
        recent: deque[bytes] = deque(maxlen=death.sequence.number if death.sequence.word == "dup" else 0)
        if last < 0 and not recent.maxlen and not self._dresses and self._comment is None:
            yield from self._plain(before)
            before = iter(())
        for place, piece in enumerate(before):
            frame = self._counted(piece)
            if place == last:
                yield from self._padded(frame)
            else:
                recent.append(frame)
                yield from self._say(frame)
        if self._held is not None:
            yield from self._finish_on(self._held)
        if death.tear.word != "none":
            torn = self._torn(next(self._behind), first=not self._begun)
            yield from self._behind_comment(Frame(torn))
        yield FAULT_POINT
        for frame in self._disorder(recent):
            yield from (self._say if death.sequence.word in {"dup", "swap"} else self._frame)(frame)
        if death.then == "rest":
            yield from self._silence(death.pause_ms, bounded=True)
            for piece in self._all_but_last(self._rest()) if self._rides else self._rest():
                yield from self._say(self._counted(piece))
            if self._held is not None:
                yield from self._finish_on(self._held)

    def _plain(self, pieces: Iterator[Piece]) -> Iterator[Event]:
        """Content frames with nothing special about them: what `_say` makes, without its calls for each frame."""
        pause, content = self._pause, self._shape.content
        for piece in pieces:
            self._tokens += piece.token_count
            self._words += piece.words
            first, self._begun = not self._begun, True
            if pause is not None and not self._first:
                yield pause
            self._first = False
            yield Frame(content(piece, first=True) if first else content(piece))

    def _rest(self) -> Iterator[Piece]:
        """What the whole answer still lacks."""
        words = self._words
        while words < self._source.words:
            piece = next(self._behind)
            words += piece.words
            yield piece

    def _all_but_last(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces but the last, which is held for the finish to ride on."""
        for piece in pieces:
            if self._held is not None:
                yield self._held
            self._held = piece

    def _disorder(self, recent: deque[bytes]) -> Iterator[bytes]:
        """The frames that `malformed` and `sequence` put at the fault point."""
        death = self._death
        if death.malformed:
            yield b'data: {"id":%b,"choices":[{"delta":{"content":"\n\n' % msgspec.json.encode(
                self._shape.completion.id
            )
        word, number = death.sequence.word, death.sequence.number
        if word == "dup":
            yield from recent
        elif word == "drop":
            self._words += sum(piece.words for piece in islice(self._behind, number))
        elif word == "swap":
            yield from [self._counted(piece) for piece in islice(self._behind, number)][::-1]
        elif word == "choices_null":
            yield self._shape.bare(b"null")
        elif word == "choices_empty":
            yield self._shape.bare(b"[]")

    def _counted(self, piece: Piece) -> bytes:
        self._tokens += piece.token_count
        self._words += piece.words
        if self._begun:
            return self._shape.content(piece)
        self._begun = True
        return self._shape.content(piece, first=True)

    def _torn(self, piece: Piece, *, first: bool) -> bytes:
        """The part of one more frame that still goes out.

        Raises:
            ValueError: the frame has no word, or not so many bytes.
        """
        tear = self._death.tear
        if tear.word == "utf8":
            if not piece.words:
                raise ValueError("tear=utf8 needs a word in the torn frame: this one has none")
            accent = _E_ACUTE.upper() if piece.channel == "reasoning" else _E_ACUTE
            if not piece.delta.endswith(accent):
                piece = msgspec.structs.replace(piece, delta=piece.delta + accent, raw=piece.raw + accent)
            frame = self._shape.content(piece, first=first)
            return frame[: frame.rindex(accent.encode()) + 1]
        frame = self._shape.content(piece, first=first)
        if tear.word == "byte":
            if tear.number > len(frame):
                raise ValueError(f"tear=byte:{tear.number} is past the frame, which has {len(frame)} bytes")
            return frame[: tear.number]
        cut = len(frame) // 2
        while (
            frame[cut] & 0xC0 == 0x80
        ):  # a UTF-8 continuation byte (RFC 3629 section 3): back to the character
            cut -= 1
        return frame[:cut]

    def _padded(self, frame: bytes) -> Iterator[Event]:
        """The frame with JSON blanks before its closing brace, as one chunk made of bounded pieces."""
        frame = self._dressed(frame)
        size = self._death.frame_bytes or 0
        blanks = size - len(frame)
        yield from self._behind_comment(Raw(b"%x\r\n" % size + frame[: -len(b"}\n\n")]))
        for begin in range(0, blanks, _BLOCK_BYTES):
            yield Raw(b" " * min(_BLOCK_BYTES, blanks - begin))
        yield Raw(b"}\n\n\r\n")

    # -- the tail

    def _finish(self) -> Iterator[Event]:
        death, shape = self._death, self._shape
        if death.finish == NONE:
            if death.usage == "always":
                yield from self._frame(shape.usage(self._counts()))
            return
        reason = self._reason()
        if not self._finished:
            if death.text_in_finish:
                frame = self._finishing(next(self._behind))
            else:
                frame = self._with_counts(shape.finish(reason))
            yield from self._frame(frame)
            if death.sequence.word == "double_finish":
                yield from self._frame(frame)
        if death.sequence.word == "after_finish":
            yield from self._say(self._counted(next(self._behind)))
        if death.usage == "with_choices":
            yield from self._frame(self._with_usage(shape.finish(reason)))
        elif death.usage == "always" or (self._usage_asked and death.usage not in {"never", "on_finish"}):
            yield from self._frame(shape.usage(self._counts(), reason), dress=False)

    def _finish_on(self, piece: Piece) -> Iterator[Event]:
        """A content frame with the finish on it."""
        self._finished = True
        return self._say(self._finishing(piece))

    def _finishing(self, piece: Piece) -> bytes:
        self._tokens += piece.token_count
        self._words += piece.words
        return self._with_counts(self._shape.finish_with(piece, self._reason(), first=not self._begun))

    def _with_counts(self, frame: bytes) -> bytes:
        """The finish frame as it goes out."""
        return self._with_usage(frame) if self._death.usage == "on_finish" else frame

    def _reason(self) -> str:
        death = self._death
        if isinstance(death.finish, str):
            return death.finish
        return self._source.finish if death.after_chunks == ALL or death.then == "rest" else "stop"

    def _counts(self) -> Counts:
        death = self._death
        off_by = death.usage_off_by if isinstance(death.usage_off_by, int) else 0
        return Counts(self._prompt_tokens + death.bos_shift, max(0, self._tokens + off_by))

    # -- one frame

    def _say_with_comment(self, frame: bytes) -> Iterator[Event]:
        return self._behind_comment(Frame(self._dressed(frame)))

    def _behind_comment(self, event: Event) -> Iterator[Event]:
        """A content frame, with what the dialect puts in front of it."""
        if self._comment is None:
            return self._paced(event)
        return chain(self._paced(self._comment), (event,))

    def _frame(self, frame: bytes, *, dress: bool = True) -> Iterator[Event]:
        return self._paced(Frame(self._dressed(frame) if dress else frame))

    def _paced(self, event: Event) -> Iterator[Event]:
        if self._pause is not None and not self._first:
            yield self._pause
        self._first = False
        yield event

    def _dressed(self, frame: bytes) -> bytes:
        """What some deaths put into every frame."""
        if not self._dresses:
            return frame
        death = self._death
        if death.finish == EMPTY_EACH:
            dialect = self._shape.dialect
            frame = frame.replace(dialect.open_finish, dialect.empty_finish)
        if death.usage == "every_chunk":
            return self._with_usage(frame)
        if death.usage == "null_every_chunk":
            return _followed_by(frame, b"null")
        if death.usage == "zero_every_chunk":
            return self._with_usage(frame, Counts(0, 0))
        return frame

    def _with_usage(self, frame: bytes, counts: Counts | None = None) -> bytes:
        """The frame with counts, those so far if no others, behind its choices."""
        counts = counts or self._counts()
        return _followed_by(frame, counts.json(total_first=self._shape.dialect.total_first))

    # -- silence

    def _silence(self, ms: int, *, bounded: bool = False) -> Iterator[Event]:
        """A silence of `ms` with its heartbeats; `bounded`: at least as long as the asked number of beats."""
        death = self._death
        if death.heartbeat == "none":
            if ms:
                yield Pause(ms)
            return
        beats = ms // death.heartbeat_ms
        if isinstance(death.beats, int):
            beats = max(beats, death.beats) if bounded and not ms else min(beats, death.beats)
        yield from self._beats(beats)
        if ms > beats * death.heartbeat_ms:
            yield Pause(ms - beats * death.heartbeat_ms)

    def hanging(self) -> Iterator[Event]:
        """The heartbeats of a connection that stays open."""
        death = self._death
        if death.heartbeat != "none" and death.close == "hang":
            yield from self._beats(None if death.beats == UNLIMITED else int(death.beats))

    def _beats(self, count: int | None) -> Iterator[Event]:
        death = self._death
        pause = Pause(death.heartbeat_ms)
        frame = Frame(HEARTBEATS.get(death.heartbeat) or self._shape.empty())
        sent = 0
        while count is None or sent < count:
            yield pause
            yield frame
            sent += 1


def _may_ride(death: Death) -> bool:
    """Whether nothing comes between the last content frame and the finish, so that the one may carry the other."""
    between = death.malformed or death.sequence.word not in {"none", "after_finish", "after_done"}
    if death.then == "rest":
        between = death.sequence.word == "double_finish"
    whole = death.at == "frames" and death.tear.word == "none" and death.frame_bytes is None
    return whole and not between and death.finish != NONE and death.error == "none"


def _followed_by(frame: bytes, usage: bytes) -> bytes:
    """The frame with `usage` behind its choices, in place of a null that the dialect has there."""
    return frame.removesuffix(b"}\n\n").removesuffix(b',"usage":null') + b',"usage":' + usage + b"}\n\n"
