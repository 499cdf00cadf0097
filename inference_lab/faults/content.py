"""What a death says: its answer's pieces, cut at the fault point."""

from __future__ import annotations

from itertools import accumulate, cycle, islice, repeat
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from inference_lab.answers.pieces import Piece, Run
from inference_lab.faults.events import Burst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.answers.pieces import Channel, Pieces


_VARIED: Final = (1, 2, 4)
_BURST_FRAMES: Final = 64
_PACED_FRAMES: Final = 16
"""Of a stream that has time: some kilobytes, which each of thousands holds."""


class Source(Protocol):
    """Where a death's answer comes from."""

    @property
    def finish(self) -> str:
        """The finish reason of the whole answer."""

    @property
    def words(self) -> int:
        """How many words of text the rest of the whole answer has."""

    def endless(self, content: str) -> Pieces:
        """The answer in one channel, without end.

        Raises:
            ValueError: the answer so far has left this channel behind.
        """


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
    """The piece of frame `place`, without making those in front of it."""
    return next(frames_from(pieces, place, tokens_per_frame))


def frames_from(
    pieces: Pieces, place: int, tokens_per_frame: int | str, words: int | None = None
) -> Iterator[Piece]:
    """The pieces of the frames from `place` on, each one frame's worth; up to so many `words` of the answer."""
    start = words_in(place, tokens_per_frame)
    single = pieces.starting_at(start)
    if words is not None:
        single = islice(single, max(0, words - start))
    if tokens_per_frame == 1:
        return single
    if isinstance(tokens_per_frame, str):
        return _merged(single, islice(cycle(_VARIED), place % len(_VARIED), None))
    return _merged(single, repeat(tokens_per_frame))


def bursts(
    pieces: Pieces, frames: int, around: Callable[[Channel], tuple[bytes, bytes] | None], *, every_ms: int
) -> Iterator[Burst | Piece]:
    """The first so many frames: words of runs many at once, between what `around` says; the rest as pieces.

    Nothing is said about the time between two of these, `every_ms` is that within a burst.
    """
    size = _PACED_FRAMES if every_ms else _BURST_FRAMES
    for part in pieces.segments:
        affixes = around(part.channel) if isinstance(part, Run) and not part.call else None
        if isinstance(part, Piece) or affixes is None:
            for piece in islice((part,) if isinstance(part, Piece) else part, frames):
                frames -= 1
                yield piece
            continue
        stop = part.start + frames if part.stop is None else min(part.stop, part.start + frames)
        for start in range(part.start, stop, size):
            yield Burst(part.framed(start, min(stop, start + size), *affixes), every_ms)
        frames -= stop - part.start


def _merged(pieces: Iterator[Piece], sizes: Iterator[int]) -> Iterator[Piece]:
    for size in sizes:
        group = list(islice(pieces, size))
        if not group:
            return
        yield msgspec.structs.replace(
            group[0],
            delta="".join(piece.delta for piece in group),
            raw="".join(piece.raw for piece in group),
            token_count=sum(piece.token_count for piece in group),
            words=sum(piece.words for piece in group),
        )
