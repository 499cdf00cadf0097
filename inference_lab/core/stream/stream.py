"""The frames of a death that is a stream, in plain SSE and with their pauses; dressing and framing come later."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.faults.death import NONE
from inference_lab.core.faults.errors import error_block, said_by_error
from inference_lab.core.faults.silence import HEARTBEATS, beats_behind, silence
from inference_lab.core.stream.content import Cut, bursts, frames_from, words_in
from inference_lab.core.stream.events import (
    FAULT_POINT,
    NOTHING,
    SAID_DONE,
    UNREADABLE,
    Burst,
    Draft,
    Frame,
    Pause,
    Raw,
    Said,
    Torn,
    finished,
    said_of,
)
from inference_lab.core.stream.inserts import Inserts
from inference_lab.core.stream.stream_checks import check_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.answer.pieces import Piece
    from inference_lab.core.apis.contract import Counts, StreamWriter
    from inference_lab.core.faults.death import Death
    from inference_lab.core.stream.content import Source

_BLOCK_BYTES: Final = 65_536


class DeathStream:
    """Writes the events of `death` on a `writer`; `source` gives the answer.

    The first frame is due at once, each further one `delay_ms` after the one before; `[DONE]` follows without a delay.

    Raises:
        ValueError: this answer does not allow the death: see `Cut` and `check_stream`.
    """

    def __init__(
        self, death: Death, writer: StreamWriter, source: Source, *, prompt_tokens: int, include_usage: bool
    ) -> None:
        self._death = death
        self._writer = writer
        self._inserts = Inserts(death, writer, prompt_tokens)
        self._usage_asked = include_usage
        self._pause = Pause(death.delay_ms) if death.delay_ms else None
        rest_ms = death.delay_ms if death.rest_delay_ms is None else death.rest_delay_ms
        self._rest_pause = Pause(rest_ms) if rest_ms else None
        self._first = True
        self._tokens = 0
        self._cut = cut = Cut(death, source)
        self._place = cut.place  # of the next piece to be said, behind the content frames
        dialect = writer.dialect
        self._comment = Frame(dialect.comment) if dialect.comment and "comments" not in death.given else None
        self._begun = False  # a content frame is out
        self._rides = dialect.finish_rides and "text_in_finish" not in death.given and _may_ride(death)
        self._held: Piece | None = None  # the piece that the finish rides on
        self._finished = False
        check_stream(death, writer, cut, self._inserts)

    def events(self) -> Iterator[Draft]:
        """Everything up to the close."""
        death, writer = self._death, self._writer
        yield from self._silence(death.ttft_ms)
        if writer.opening is not None and death.at in {"frames", "role"}:
            yield from self._frame(writer.opening)
            if death.role_again:
                yield from self._frame(writer.opening)
        if death.at == "frames":
            yield from self._content()
        else:
            yield FAULT_POINT
        if death.tear.word != "none":
            return
        if death.error != "none":
            block = error_block(death, writer.completion, writer.kind)
            is_first = self._first and death.retry != "alone"
            yield from self._paced(Frame(block, said=said_by_error(block, is_first=is_first)))
        if death.at == "frames":
            yield from self._finish()
        if death.done != "false":
            yield Frame(writer.terminal, said=SAID_DONE)
        if death.done == "twice":
            yield Frame(writer.terminal, said=SAID_DONE)
        if death.sequence.word == "after_done":
            yield self._one_more()
        yield from beats_behind(death, self._beat())

    # -- content

    def _content(self) -> Iterator[Draft]:
        death = self._death
        words = self._cut.words if self._cut.is_whole else None
        before: Iterator[Piece] = islice(
            frames_from(self._cut.pieces, 0, death.tokens_per_frame, words), self._cut.frames
        )
        if self._rides and death.then == "end":
            before = self._all_but_last(before)
        padded = self._cut.frames - 1 if death.frame_bytes is not None else -1
        repeated: deque[Frame] | None = (
            deque(maxlen=death.sequence.number) if death.sequence.word == "dup" else None
        )
        pause, has_inserts = self._pause, self._inserts.in_each
        if padded < 0 and repeated is None and self._are_plain:
            before = iter(())
            for part in bursts(self._cut.pieces, self._cut.frames, self._writer, every_ms=death.delay_ms):
                if pause is not None and not self._first:
                    yield pause
                self._first = False
                if isinstance(part, Burst):
                    self._tokens += len(part.frames)
                    self._begun = True
                    yield part
                else:
                    yield Frame(self._counted(part), said=said_of(part))
        for place, piece in enumerate(before):
            frame, told = self._counted(piece), said_of(piece)
            if has_inserts:
                frame, told = self._dressed(frame, told)
            if place == padded:
                yield from self._padded(frame, told)
                continue
            if pause is not None and not self._first:
                yield pause
            self._first = False
            if self._comment is not None:
                yield self._comment
            yield Frame(frame, said=told)
            if repeated is not None:
                repeated.append(Frame(frame, said=told.again()))
        if self._held is not None:
            yield from self._finish_on(self._held)
        if death.tear.word != "none":
            yield from self._said(self._torn())
        yield FAULT_POINT
        self._pause = self._rest_pause
        for disorder in self._disorder():
            yield from self._paced(disorder)
        for event in repeated or self._swapped():
            yield from self._said(event)
        if death.then == "rest":
            yield from self._silence(death.pause_ms, bounded=True)
            place = self._cut.frames + (
                death.sequence.number if death.sequence.word in {"drop", "swap"} else 0
            )
            rest = frames_from(self._cut.pieces, place, death.tokens_per_frame, self._cut.words)
            for piece in self._all_but_last(rest) if self._rides else rest:
                yield from self._said(self._content_frame(piece))
            self._place = max(words_in(self._cut.frames, death.tokens_per_frame), self._cut.words)
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

    def _disorder(self) -> Iterator[Frame]:
        """The frames at the fault point that are no content."""
        death, writer = self._death, self._writer
        if death.malformed:
            torn = b'data: {"id":%b,"choices":[{"delta":{"content":"\n\n'
            yield Frame(torn % msgspec.json.encode(writer.completion.id), said=UNREADABLE)
        if death.sequence.word == "choices_null":
            yield self._dressed_frame(writer.bare(b"null"))
        elif death.sequence.word == "choices_empty":
            yield self._dressed_frame(writer.bare(b"[]"))

    def _swapped(self) -> list[Frame]:
        """The next content frames in reverse, if they are to be; those left out are passed over."""
        death = self._death
        word, number = death.sequence.word, death.sequence.number
        if word not in {"drop", "swap"}:
            return []
        self._place = words_in(self._cut.frames + number, death.tokens_per_frame)
        if word == "drop":
            return []
        words = self._cut.words if death.then == "rest" else None
        pieces = frames_from(self._cut.pieces, self._cut.frames, death.tokens_per_frame, words)
        return [self._content_frame(piece) for piece in islice(pieces, number)][::-1]

    def _content_frame(self, piece: Piece) -> Frame:
        return self._dressed_frame(self._counted(piece), said_of(piece))

    def _counted(self, piece: Piece) -> bytes:
        self._tokens += piece.token_count
        if self._begun:
            return self._writer.content(piece)
        self._begun = True
        return self._writer.content(piece, first=True)

    def _one_more(self) -> Frame:
        """A content frame with the next word."""
        return self._content_frame(self._next_piece())

    def _next_piece(self) -> Piece:
        piece = next(iter(self._cut.pieces.starting_at(self._place)))
        self._place += 1
        return piece

    def _torn(self) -> Torn:
        """The whole frame of which a part is to go out; its sender has counted it."""
        piece = self._cut.torn
        frame = self._writer.content(piece, first=not self._cut.frames)
        return Torn(*self._dressed(frame, said_of(piece), self._tokens + piece.token_count))

    def _padded(self, frame: bytes, told: Said) -> Iterator[Draft]:
        """The frame with JSON blanks before its closing brace, as one chunk made of bounded pieces."""
        size = self._death.frame_bytes or 0
        blanks = size - len(frame)
        chunked = self._death.close != "eof"
        head = Raw(frame[: -len(b"}\n\n")])
        if chunked:
            yield from self._said(Raw(b"%x\r\n" % size, is_framing=True))
            yield head
        else:
            yield from self._said(head)
        for begin in range(0, blanks, _BLOCK_BYTES):
            yield Raw(b" " * min(_BLOCK_BYTES, blanks - begin))
        yield Raw(b"}\n\n", told)
        if chunked:
            yield Raw(b"\r\n", is_framing=True)

    # -- the tail

    def _finish(self) -> Iterator[Draft]:
        death, writer = self._death, self._writer
        if death.finish == NONE:
            if death.usage == "always":
                yield from self._paced(self._usage(None))
            return
        reason = self._reason()
        if not self._finished:
            if death.text_in_finish:
                frame, told = self._finishing(self._next_piece())
            else:
                frame, told = self._with_counts(writer.finish(reason), finished(reason))
            yield from self._frame(frame, told)
            if death.sequence.word == "double_finish":
                yield from self._frame(frame, told.again())
        if death.sequence.word == "after_finish":
            yield from self._said(self._one_more())
        if death.usage == "with_choices":
            yield from self._frame(*self._with_usage(writer.finish(reason), finished(reason)))
        elif death.usage == "always" or (self._usage_asked and death.usage not in {"never", "on_finish"}):
            yield from self._paced(self._usage(reason))

    def _usage(self, reason: str | None) -> Frame:
        counts = self._counts()
        return Frame(self._writer.usage(counts, reason), said=Said(usage=counts.json()))

    def _finish_on(self, piece: Piece) -> Iterator[Draft]:
        """A content frame with the finish on it."""
        self._finished = True
        return self._said(self._dressed_frame(*self._finishing(piece)))

    def _finishing(self, piece: Piece) -> tuple[bytes, Said]:
        self._tokens += piece.token_count
        reason = self._reason()
        frame = self._writer.finish_with(piece, reason, first=not self._begun)
        return self._with_counts(frame, said_of(piece) + finished(reason))

    def _with_counts(self, frame: bytes, told: Said) -> tuple[bytes, Said]:
        """The finish frame as it goes out."""
        return self._with_usage(frame, told) if self._death.usage == "on_finish" else (frame, told)

    def _reason(self) -> str:
        death = self._death
        if isinstance(death.finish, str):
            return death.finish
        return self._cut.finish if self._cut.is_whole or death.then == "rest" else "stop"

    # -- one frame

    def _said(self, event: Draft) -> Iterator[Draft]:
        """A content frame, with what the dialect puts in front of it."""
        if self._comment is None:
            return self._paced(event)
        return chain(self._paced(self._comment), (event,))

    def _frame(self, frame: bytes, told: Said = NOTHING) -> Iterator[Draft]:
        return self._paced(self._dressed_frame(frame, told))

    def _paced(self, event: Draft) -> Iterator[Draft]:
        if self._pause is not None and not self._first:
            yield self._pause
        self._first = False
        yield event

    def _dressed(self, frame: bytes, told: Said, tokens: int | None = None) -> tuple[bytes, Said]:
        """The frame with what some deaths put into every frame of the answer, and what it says then."""
        return self._inserts.into_each(frame, told, self._tokens if tokens is None else tokens)

    def _dressed_frame(self, frame: bytes, told: Said = NOTHING) -> Frame:
        frame, told = self._dressed(frame, told)
        return Frame(frame, said=told)

    def _with_usage(self, frame: bytes, told: Said) -> tuple[bytes, Said]:
        """The frame with the counts so far."""
        return self._inserts.with_counts(frame, told, self._counts())

    def _counts(self) -> Counts:
        return self._inserts.counts(self._tokens)

    def _silence(self, ms: int, *, bounded: bool = False) -> Iterator[Draft]:
        return silence(self._death, ms, self._beat(), bounded=bounded)

    def _beat(self) -> Frame:
        beat = HEARTBEATS.get(self._death.heartbeat)
        return self._dressed_frame(self._writer.empty()) if beat is None else Frame(beat)


def _may_ride(death: Death) -> bool:
    """Whether nothing comes between the last content frame and the finish, so that the one may carry the other."""
    between = death.malformed or death.sequence.word not in {"none", "after_finish", "after_done"}
    if death.then == "rest":
        between = death.sequence.word == "double_finish"
    whole = death.at == "frames" and death.tear.word == "none" and death.frame_bytes is None
    return whole and not between and death.finish != NONE and death.error == "none"
