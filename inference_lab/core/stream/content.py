"""What a death says: its answer's pieces, cut at the fault point."""

from __future__ import annotations

import sys
from collections import deque
from functools import cached_property
from itertools import accumulate, cycle, islice, repeat
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.answer.answer import call_pieces, fault_pieces, healthy, thinking_on
from inference_lab.core.answer.pieces import Piece, Run
from inference_lab.core.faults.death import ALL
from inference_lab.core.stream.events import ONE_THOUGHT, ONE_WORD, Burst

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.answer.answer import Limits
    from inference_lab.core.answer.pieces import Channel, Pieces
    from inference_lab.core.answer.resume_point import ResumePoint
    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.faults.death import Death
    from inference_lab.core.prompts.messages import CallTarget

_CHANNELS: Final[dict[str, Channel]] = {"text": "text", "reasoning": "reasoning", "tool_call": "call"}
_E_ACUTE: Final = "é"
_VARIED: Final = (1, 2, 4)
_JOINED_WORDS: Final = 16
"""From so many on it pays to write the words of a frame together."""
_BURST_FRAMES: Final = 64
_PACED_FRAMES: Final = 16
"""Of a stream that has time: some kilobytes, which each of thousands holds."""


class AnswerSource:
    """The prompt's own answer from the position it has reached, as a death says it; `call` is the tool that it calls.

    Raises:
        ValueError: the answer so far has left the reasoning behind that the death's answer thinks on in.
    """

    def __init__(
        self,
        death: Death,
        template: ChatTemplate,
        position: ResumePoint,
        limits: Limits,
        call: CallTarget | None = None,
    ) -> None:
        self._death = death
        self._template = template
        self._position = position
        self._limits = limits
        self._call = call
        if death.thinks_on:
            _ = self.plan

    @cached_property
    def plan(self) -> Plan:
        """The whole answer: text, unless it thinks first and goes on. Most deaths need only some words of it."""
        death, limits = self._death, self._limits
        if death.thinks_on:
            words = words_in(int(death.after_chunks), death.tokens_per_frame)
            shift = death.skip - death.overlap
            return thinking_on(self._template, self._position, words, limits, shift=shift)
        return healthy(
            self._template,
            self._position,
            answer_words=limits.answer_words,
            max_tokens=limits.max_tokens,
            context_left=limits.context_left,
        )

    def infinite_pieces(self, content: str) -> Pieces:
        """The answer in one channel, without end; where it goes on after its reasoning, all of it.

        Raises:
            ValueError: the answer so far has left this channel behind.
        """
        death = self._death
        # Words before the fault point are said whatever the answer's limits are.
        if death.thinks_on and self.plan.pieces.words > words_in(
            int(death.after_chunks), death.tokens_per_frame
        ):
            return self.plan.pieces
        call = None
        if content.startswith("tool_call"):
            call = self._call or self._position.first_tool
        if call is None or content == "tool_call":
            channel = _CHANNELS[content]
            shift = death.skip - death.overlap
            return fault_pieces(self._template, self._position, channel, call=call, shift=shift)
        parallel = content == "tool_call_parallel"
        return call_pieces(
            self._template, self._position, int(death.after_chunks), call=call, parallel=parallel
        )


class Cut:
    """The answer of `death`, cut at the fault point.

    `frames` content frames stand before it, `place` is the piece after them. `is_whole` says that they are the
    whole answer.

    Raises:
        ValueError: the answer so far has left the death's channel behind.
    """

    def __init__(self, death: Death, source: AnswerSource) -> None:
        self._death = death
        self._source = source
        self.pieces = source.infinite_pieces(death.content)
        self.is_whole = death.after_chunks == ALL
        self.frames = (
            frames_in(self.words, death.tokens_per_frame) if self.is_whole else int(death.after_chunks)
        )
        self.place = self.words if self.is_whole else words_in(self.frames, death.tokens_per_frame)

    @property
    def words(self) -> int:
        """How many words the rest of the whole answer has."""
        return self._source.plan.pieces.words

    @property
    def finish(self) -> str:
        """The finish reason of the whole answer."""
        return self._source.plan.finish

    @property
    def pieces_shown(self) -> int:
        """How many pieces of the endless answer the death may show."""
        death = self._death
        sequence = death.sequence.number if death.sequence.word in {"drop", "swap"} else 0
        further = words_in(sequence + (death.tear.word != "none"), death.tokens_per_frame)
        further += death.text_in_finish + (death.sequence.word in {"after_finish", "after_done"})
        if death.after_chunks == ALL:
            return self.words + further
        shown = words_in(int(death.after_chunks), death.tokens_per_frame) + further
        return max(shown, self.words + further) if death.then == "rest" else shown

    @property
    def last(self) -> Piece | None:
        """What the last frame before the fault point says, if there is one."""
        return frame_at(self.pieces, self.frames - 1, self._death.tokens_per_frame) if self.frames else None

    @property
    def torn(self) -> Piece:
        """What the frame after the fault point says, of which a part may go out."""
        death = self._death
        if self.is_whole:
            piece = next(iter(self.pieces.starting_at(self.place)))
        else:
            piece = frame_at(self.pieces, self.frames, death.tokens_per_frame)
        if death.tear.word == "utf8" and piece.words:
            accent = _E_ACUTE.upper() if piece.channel == "reasoning" else _E_ACUTE
            if not piece.delta.endswith(accent):
                piece = msgspec.structs.replace(piece, delta=piece.delta + accent, raw=piece.raw + accent)
        return piece


def words_in(frames: int, tokens_per_frame: int | str) -> int:
    """How many words so many frames hold."""
    if isinstance(tokens_per_frame, str):
        cycles, rest = divmod(frames, len(_VARIED))
        return cycles * sum(_VARIED) + sum(_VARIED[:rest])
    return frames * tokens_per_frame


def frames_in(words: int, tokens_per_frame: int | str) -> int:
    """How many frames so many words take."""
    if isinstance(tokens_per_frame, str):
        cycles, rest = divmod(words, sum(_VARIED))
        return cycles * len(_VARIED) + sum(before < rest for before in (0, *accumulate(_VARIED[:-1])))
    return -(-words // tokens_per_frame)


def frame_at(pieces: Pieces, place: int, tokens_per_frame: int | str) -> Piece:
    """The piece of frame `place`, without making those before it."""
    return next(frames_from(pieces, place, tokens_per_frame))


def frames_from(
    pieces: Pieces, place: int, tokens_per_frame: int | str, words: int | None = None
) -> Iterator[Piece]:
    """The pieces of the frames from `place` on, each one frame's worth; up to so many `words` of the answer."""
    start = words_in(place, tokens_per_frame)
    rest = pieces.starting_at(start)
    left = None if words is None else max(0, words - start)
    if tokens_per_frame == 1:
        return islice(rest, left)
    if isinstance(tokens_per_frame, str):
        return _merged(rest, left, islice(cycle(_VARIED), place % len(_VARIED), None))
    return _merged(rest, left, repeat(tokens_per_frame))


def bursts(
    pieces: Pieces, frames: int | None, writer: StreamWriter, *, every_ms: int = 0, awaited: bool = False
) -> Iterator[Burst | Piece]:
    """The first so many frames: words of runs many at once, where they differ in their text alone; others as pieces.

    `frames` None: all, of pieces that have an end. Nothing is said about the time between two of these; `every_ms` is
    that within a burst, or each frame in it waits for its token, if they are `awaited`.
    """
    size = _PACED_FRAMES if every_ms or awaited else _BURST_FRAMES
    left = sys.maxsize if frames is None else frames
    if not writer.is_first_alike and left:
        yield from islice(pieces, 1)
        pieces = pieces.starting_at(1)
        left -= 1
    for part in pieces.segments:
        is_plain = isinstance(part, Run) and part.channel != "call" and not writer.dialect.comment
        template = writer.template(part.channel) if is_plain else None
        is_closed = is_plain and template is None and left > 0
        if is_closed and isinstance(part, Run) and part.start != part.stop:  # its first word may open a block
            yield next(iter(part))
            part = msgspec.structs.replace(part, start=part.start + 1)  # noqa: PLW2901 - the rest of it
            left -= 1
            template = writer.template(part.channel)
        if isinstance(part, Piece) or template is None:
            for piece in islice((part,) if isinstance(part, Piece) else part, left):
                left -= 1
                yield piece
            continue
        stop = part.start + left if part.stop is None else min(part.stop, part.start + left)
        told = ONE_WORD if part.channel == "text" else ONE_THOUGHT
        for start in range(part.start, stop, size):
            yield Burst(part.framed(start, min(stop, start + size), *template), every_ms, told, awaited)
        left -= stop - part.start


def _merged(pieces: Pieces, left: int | None, sizes: Iterator[int]) -> Iterator[Piece]:
    """So many pieces in one, of one channel each: a frame has a place for one only; up to so many are `left`."""
    parts = deque(part for part in pieces.segments if isinstance(part, Piece) or part.start != part.stop)
    for size in sizes:
        wanted = size if left is None else min(size, left)
        group: list[Piece] = []
        while parts and wanted and parts[0].channel == (group or parts)[0].channel:
            part = parts.popleft()
            if isinstance(part, Run):
                count = wanted if part.stop is None else min(wanted, part.stop - part.start)
                if part.start + count != part.stop:
                    parts.appendleft(msgspec.structs.replace(part, start=part.start + count))
                part = msgspec.structs.replace(part, stop=part.start + count)
                group += (part.joined(),) if count >= _JOINED_WORDS else part
            else:
                count = 1
                group.append(part)
            wanted -= count
            left = None if left is None else left - count
        if not group:
            return
        yield msgspec.structs.replace(
            group[0],
            delta="".join(piece.delta for piece in group),
            raw="".join(piece.raw for piece in group),
            token_count=sum(piece.token_count for piece in group),
            words=sum(piece.words for piece in group),
        )
