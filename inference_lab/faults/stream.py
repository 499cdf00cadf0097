"""The frames of a death that is a stream, in plain SSE and with their pauses; dressing and framing come later."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.answers.shapes import DONE, Counts, Shape
from inference_lab.faults.content import Source, bursts, frame_at, frames_from, frames_in, words_in
from inference_lab.faults.death import ALL, EMPTY_EACH, NONE, UNLIMITED, Death
from inference_lab.faults.errors import error_block
from inference_lab.faults.events import (
    FAULT_POINT,
    NOTHING,
    SAID_DONE,
    Burst,
    Draft,
    Frame,
    Pause,
    Raw,
    Said,
    Torn,
    said,
)
from inference_lab.faults.inserts import Inserts
from inference_lab.faults.silence import HEARTBEATS, beats, hangs_with_beats, silence
from inference_lab.faults.sse import check_torn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.answers.pieces import Piece

_E_ACUTE: Final = "é"
_BLOCK_BYTES: Final = 65_536


class DeathStream:
    """Writes the events of `death` on an endpoint's `shape`; `source` gives the answer.

    The first frame is due at once, each further one `delay_ms` after the one before; `[DONE]` follows without a delay.

    Raises ValueError when built for a death that this answer does not allow: a tear, a padding, frames that are not
    there.
    """

    def __init__(
        self, death: Death, shape: Shape, source: Source, *, prompt_tokens: int, include_usage: bool
    ) -> None:
        self._death = death
        self._shape = shape
        self._source = source
        self._inserts = Inserts(death, shape, prompt_tokens)
        self._usage_asked = include_usage
        self._pause = Pause(death.delay_ms) if death.delay_ms else None
        self._first = True
        self._tokens = 0
        self._pieces = source.endless(death.content)
        self._all = death.after_chunks == ALL
        self._frames = (
            frames_in(source.words, death.tokens_per_frame) if self._all else int(death.after_chunks)
        )
        # The piece behind the content frames: the next one to be said.
        self._place = source.words if self._all else words_in(self._frames, death.tokens_per_frame)
        dialect = shape.dialect
        self._comment = Frame(dialect.comment) if dialect.comment and "comments" not in death.given else None
        self._begun = False  # a content frame is out
        self._rides = dialect.finish_rides and "text_in_finish" not in death.given and _may_ride(death)
        self._held: Piece | None = None  # the piece that the finish rides on
        self._finished = False
        if (death.at == "role" or death.role_again) and shape.opening is None:
            key = "at=role" if death.at == "role" else "role_again"
            raise ValueError(f"{key} needs a role frame, which {dialect.name} does not have here")
        if death.at == "frames":
            self._check_frames()
            self._check_sequence()
            self._check_leg()
        self._check_first_frames()

    def _check_first_frames(self) -> None:
        """What acts on the frames in front of the fault point needs one."""
        death = self._death
        has_opening = self._shape.opening is not None and death.at != "head"
        if has_opening or (self._frames and death.at == "frames"):
            return
        if death.chunk_error == "no_crlf":
            raise ValueError("chunk_error=no_crlf needs a chunk before the fault point")
        if death.finish == EMPTY_EACH:
            raise ValueError("finish=empty_each needs a frame before the finish frame")
        if death.usage.endswith("_chunk") and death.finish == NONE:
            raise ValueError(f"usage={death.usage} needs a frame")

    def _check_frames(self) -> None:
        """Make the frames that a death may not be able to tear or pad."""
        death = self._death
        if death.frame_bytes is not None:
            if not self._frames:
                raise ValueError("frame_bytes needs a content frame, and this answer has none")
            piece = frame_at(self._pieces, self._frames - 1, death.tokens_per_frame)
            least = len(self._dressed(self._shape.content(piece, first=self._frames == 1)))
            if death.frame_bytes < least:
                raise ValueError(f"frame_bytes={death.frame_bytes} is less than the frame's {least} bytes")
        if death.tear.word == "utf8" and not self._torn_piece().words:
            raise ValueError("tear=utf8 needs a word in the torn frame: this one has none")
        if death.tear.word != "none":
            check_torn(self._torn_frame(), death)

    def _check_sequence(self) -> None:
        death = self._death
        word, number = death.sequence.word, death.sequence.number
        if word == "dup" and number > self._frames:
            raise ValueError(
                f"sequence=dup:{number} repeats more than the {self._frames} content frames there are"
            )
        if death.then == "rest" and word in {"drop", "swap"}:
            rest = max(0, frames_in(self._source.words, death.tokens_per_frame) - self._frames)
            if number > rest:
                raise ValueError(
                    f"sequence={word}:{number} needs as many frames behind the fault point: {rest} are left"
                )

    def _check_leg(self) -> None:
        """A word left out or said again needs one that is said, and a count that is too low needs one."""
        death = self._death
        others = (
            death.tear.word != "none"
            or death.text_in_finish
            or death.sequence.word in {"after_finish", "after_done", "swap"}
            or (death.then == "rest" and self._source.words > self._place)
        )
        if others:
            return
        if isinstance(death.usage_off_by, int) and death.usage_off_by < 0 and not self._frames:
            raise ValueError(
                f"usage_off_by={death.usage_off_by} needs a count above 0: this leg says nothing"
            )
        if death.overlap or death.skip:
            last = frame_at(self._pieces, self._frames - 1, death.tokens_per_frame) if self._frames else None
            if last is None or not last.words:
                key = "overlap" if death.overlap else "skip"
                raise ValueError(f"{key} needs a word to act on: this leg says none")

    def events(self) -> Iterator[Draft]:
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
            yield from self._paced(Frame(error_block(death, shape.completion, shape.kind)))
        if death.at == "frames":
            yield from self._finish()
        if death.done != "false":
            yield Frame(DONE, said=SAID_DONE)
        if death.done == "twice":
            yield Frame(DONE, said=SAID_DONE)
        if death.sequence.word == "after_done":
            yield self._one_more()
        if hangs_with_beats(death):
            yield from beats(death, self._beat(), None if death.beats == UNLIMITED else int(death.beats))

    # -- content

    def _content(self) -> Iterator[Draft]:
        death = self._death
        words = self._source.words if self._all else None
        before: Iterator[Piece] = islice(
            frames_from(self._pieces, 0, death.tokens_per_frame, words), self._frames
        )
        if self._rides and death.then == "end":
            before = self._all_but_last(before)
        padded = self._frames - 1 if death.frame_bytes is not None else -1
        repeated: deque[bytes] | None = (
            deque(maxlen=death.sequence.number) if death.sequence.word == "dup" else None
        )
        pause, has_inserts = self._pause, self._inserts.in_each
        if padded < 0 and repeated is None and self._are_plain:
            before = iter(())
            for part in bursts(self._pieces, self._frames, self._shape.around, every_ms=death.delay_ms):
                if pause is not None and not self._first:
                    yield pause
                self._first = False
                if isinstance(part, Burst):
                    self._tokens += len(part.frames)
                    self._begun = True
                    yield part
                else:
                    yield Frame(self._counted(part), said=said(part.words))
        for place, piece in enumerate(before):
            frame = self._counted(piece)
            if has_inserts:
                frame = self._dressed(frame)
            if place == padded:
                yield from self._padded(frame, said(piece.words))
                continue
            if pause is not None and not self._first:
                yield pause
            self._first = False
            if self._comment is not None:
                yield self._comment
            yield Frame(frame, said=said(piece.words))
            if repeated is not None:
                repeated.append(frame)
        if self._held is not None:
            yield from self._finish_on(self._held)
        if death.tear.word != "none":
            yield from self._said(Torn(self._torn_frame(), said(self._torn_piece().words)))
        yield FAULT_POINT
        for frame in self._disorder():
            yield from self._paced(Frame(frame))
        again = [Frame(frame, said=said(0)) for frame in repeated or ()]
        for event in again or self._swapped():
            yield from self._said(event)
        if death.then == "rest":
            yield from self._silence(death.pause_ms, bounded=True)
            place = self._frames + (death.sequence.number if death.sequence.word in {"drop", "swap"} else 0)
            rest = frames_from(self._pieces, place, death.tokens_per_frame, self._source.words)
            for piece in self._all_but_last(rest) if self._rides else rest:
                yield from self._said(self._content_frame(piece))
            self._place = max(words_in(self._frames, death.tokens_per_frame), self._source.words)
            if self._held is not None:
                yield from self._finish_on(self._held)

    @property
    def _are_plain(self) -> bool:
        """Whether the content frames are one word each and nothing else."""
        death = self._death
        rides = self._rides and death.then == "end"
        return death.tokens_per_frame == 1 and self._comment is None and not (self._inserts.in_each or rides)

    def _all_but_last(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces but the last, which is held for the finish to ride on."""
        for piece in pieces:
            if self._held is not None:
                yield self._held
            self._held = piece

    def _disorder(self) -> Iterator[bytes]:
        """The frames at the fault point that are no content."""
        death, shape = self._death, self._shape
        if death.malformed:
            yield b'data: {"id":%b,"choices":[{"delta":{"content":"\n\n' % msgspec.json.encode(
                shape.completion.id
            )
        if death.sequence.word == "choices_null":
            yield self._dressed(shape.bare(b"null"))
        elif death.sequence.word == "choices_empty":
            yield self._dressed(shape.bare(b"[]"))

    def _swapped(self) -> list[Frame]:
        """The next content frames in reverse, if they are to be; those left out are passed over."""
        death = self._death
        word, number = death.sequence.word, death.sequence.number
        if word not in {"drop", "swap"}:
            return []
        self._place = words_in(self._frames + number, death.tokens_per_frame)
        if word == "drop":
            return []
        words = self._source.words if death.then == "rest" else None
        pieces = frames_from(self._pieces, self._frames, death.tokens_per_frame, words)
        return [self._content_frame(piece) for piece in islice(pieces, number)][::-1]

    def _content_frame(self, piece: Piece) -> Frame:
        return Frame(self._dressed(self._counted(piece)), said=said(piece.words))

    def _counted(self, piece: Piece) -> bytes:
        self._tokens += piece.token_count
        if self._begun:
            return self._shape.content(piece)
        self._begun = True
        return self._shape.content(piece, first=True)

    def _one_more(self) -> Frame:
        """A content frame with the next word."""
        return self._content_frame(self._next_piece())

    def _next_piece(self) -> Piece:
        piece = next(self._pieces.starting_at(self._place))
        self._place += 1
        return piece

    def _torn_frame(self) -> bytes:
        """The whole frame of which a part is to go out; its sender has counted it."""
        piece = self._torn_piece()
        frame = self._shape.content(piece, first=not self._frames)
        return self._dressed(frame, self._tokens + piece.token_count)

    def _torn_piece(self) -> Piece:
        """What the torn frame says."""
        death = self._death
        if self._all:
            piece = next(self._pieces.starting_at(self._place))
        else:
            piece = frame_at(self._pieces, self._frames, death.tokens_per_frame)
        if death.tear.word == "utf8" and piece.words:
            accent = _E_ACUTE.upper() if piece.channel == "reasoning" else _E_ACUTE
            if not piece.delta.endswith(accent):
                piece = msgspec.structs.replace(piece, delta=piece.delta + accent, raw=piece.raw + accent)
        return piece

    def _padded(self, frame: bytes, told: Said) -> Iterator[Draft]:
        """The frame with JSON blanks before its closing brace, as one chunk made of bounded pieces."""
        size = self._death.frame_bytes or 0
        blanks = size - len(frame)
        chunked = self._death.close != "eof"
        yield from self._said(Raw((b"%x\r\n" % size if chunked else b"") + frame[: -len(b"}\n\n")]))
        for begin in range(0, blanks, _BLOCK_BYTES):
            yield Raw(b" " * min(_BLOCK_BYTES, blanks - begin))
        yield Raw(b"}\n\n" + (b"\r\n" if chunked else b""), told)

    # -- the tail

    def _finish(self) -> Iterator[Draft]:
        death, shape = self._death, self._shape
        if death.finish == NONE:
            if death.usage == "always":
                yield from self._paced(Frame(shape.usage(self._counts())))
            return
        reason = self._reason()
        if not self._finished:
            told = NOTHING
            if death.text_in_finish:
                piece = self._next_piece()
                frame, told = self._finishing(piece), said(piece.words)
            else:
                frame = self._with_counts(shape.finish(reason))
            yield from self._frame(frame, told)
            if death.sequence.word == "double_finish":
                yield from self._frame(frame, said(0) if told.content_frames else NOTHING)
        if death.sequence.word == "after_finish":
            yield from self._said(self._one_more())
        if death.usage == "with_choices":
            yield from self._frame(self._with_usage(shape.finish(reason)))
        elif death.usage == "always" or (self._usage_asked and death.usage not in {"never", "on_finish"}):
            yield from self._paced(Frame(shape.usage(self._counts(), reason)))

    def _finish_on(self, piece: Piece) -> Iterator[Draft]:
        """A content frame with the finish on it."""
        self._finished = True
        return self._said(Frame(self._dressed(self._finishing(piece)), said=said(piece.words)))

    def _finishing(self, piece: Piece) -> bytes:
        self._tokens += piece.token_count
        return self._with_counts(self._shape.finish_with(piece, self._reason(), first=not self._begun))

    def _with_counts(self, frame: bytes) -> bytes:
        """The finish frame as it goes out."""
        return self._with_usage(frame) if self._death.usage == "on_finish" else frame

    def _reason(self) -> str:
        death = self._death
        if isinstance(death.finish, str):
            return death.finish
        return self._source.finish if self._all or death.then == "rest" else "stop"

    # -- one frame

    def _said(self, event: Draft) -> Iterator[Draft]:
        """A content frame, with what the dialect puts in front of it."""
        if self._comment is None:
            return self._paced(event)
        return chain(self._paced(self._comment), (event,))

    def _frame(self, frame: bytes, told: Said = NOTHING) -> Iterator[Draft]:
        return self._paced(Frame(self._dressed(frame), said=told))

    def _paced(self, event: Draft) -> Iterator[Draft]:
        if self._pause is not None and not self._first:
            yield self._pause
        self._first = False
        yield event

    def _dressed(self, frame: bytes, tokens: int | None = None) -> bytes:
        """What some deaths put into every frame of the answer."""
        return self._inserts.into_each(frame, self._tokens if tokens is None else tokens)

    def _with_usage(self, frame: bytes) -> bytes:
        """The frame with the counts so far."""
        return self._inserts.with_counts(frame, self._counts())

    def _counts(self) -> Counts:
        return self._inserts.counts(self._tokens)

    def _silence(self, ms: int, *, bounded: bool = False) -> Iterator[Draft]:
        return silence(self._death, ms, self._beat(), bounded=bounded)

    def _beat(self) -> Frame:
        return Frame(HEARTBEATS.get(self._death.heartbeat) or self._dressed(self._shape.empty()))


def _may_ride(death: Death) -> bool:
    """Whether nothing comes between the last content frame and the finish, so that the one may carry the other."""
    between = death.malformed or death.sequence.word not in {"none", "after_finish", "after_done"}
    if death.then == "rest":
        between = death.sequence.word == "double_finish"
    whole = death.at == "frames" and death.tear.word == "none" and death.frame_bytes is None
    return whole and not between and death.finish != NONE and death.error == "none"
