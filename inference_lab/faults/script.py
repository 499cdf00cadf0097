"""The script of a response: a fault or a healthy answer turned into frames, pauses and exactly one ending.

Pure and lazy: the same arguments give the same events for ever, in constant memory for any number of frames.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from inference_lab.faults.events import Await, Event, Frame, Pause
from inference_lab.faults.modes import HEALTHY, Mode, Tear, Usage
from inference_lab.shapes import DONE, Counts, Shape, error_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from inference_lab.faults.directive import Fault
    from inference_lab.pieces import Piece

_E_ACUTE = "é"
_E_ACUTE_BYTES = _E_ACUTE.encode()


def fault_script(
    fault: Fault, shape: Shape, pieces: Iterable[Piece], *, prompt_tokens: int, include_usage: bool
) -> Iterator[Event]:
    """The events of a faulted response; `pieces` never run out.

    The first frame is due at once, each further one `delay_ms` after the one before; `[DONE]` and the ending
    follow the last frame without a delay.
    """
    row = fault.row
    frames = _fault_frames(row, fault.after_chunks, shape, pieces, prompt_tokens, include_usage=include_usage)
    pause = Pause(fault.delay_ms) if fault.delay_ms else None
    first = True
    for frame in frames:
        if pause is not None and not first:
            yield pause
        first = False
        yield Frame(frame)
    if row.done:
        yield Frame(DONE)
    yield row.close


def _fault_frames(
    row: Mode,
    after_chunks: int,
    shape: Shape,
    pieces: Iterable[Piece],
    prompt_tokens: int,
    *,
    include_usage: bool,
) -> Iterator[bytes]:
    if shape.opening is not None:
        yield shape.opening
    upcoming = iter(pieces)
    completion_tokens = 0
    for piece in islice(upcoming, after_chunks):
        completion_tokens += piece.token_count
        yield shape.content(piece)
    if row.tear is not Tear.NONE:
        yield _torn(row.tear, shape, next(upcoming))
    if row.error is not None:
        yield error_frame(row.error)
    counts = Counts(prompt_tokens, completion_tokens)
    yield from _finish_frames(row, shape, row.finish, lambda: counts, include_usage=include_usage)


def _finish_frames(
    row: Mode, shape: Shape, reason: str | None, counts: Callable[[], Counts], *, include_usage: bool
) -> Iterator[bytes]:
    if reason is None:
        return
    yield shape.finish(reason)
    if row.usage is Usage.ASKED and include_usage:
        yield shape.usage(counts())


def _torn(tear: Tear, shape: Shape, piece: Piece) -> bytes:
    """The part of one more frame that still goes out."""
    if tear is Tear.UTF8:
        if not piece.delta.endswith(_E_ACUTE):
            piece = msgspec.structs.replace(piece, delta=piece.delta + _E_ACUTE, raw=piece.raw + _E_ACUTE)
        frame = shape.content(piece)
        return frame[: frame.rindex(_E_ACUTE_BYTES) + 1]
    frame = shape.content(piece)
    cut = len(frame) // 2
    while (
        frame[cut] & 0xC0 == 0x80
    ):  # a UTF-8 continuation byte (RFC 3629 §3): move back to the character's start
        cut -= 1
    return frame[:cut]


def healthy_script(
    shape: Shape, pieces: Iterable[Piece], finish: str, counts: Callable[[], Counts], *, include_usage: bool
) -> Iterator[Event]:
    """The events of an answer that the engine paces: each content frame waits for its tokens.

    `counts` is called when the usage frame is due, since the engine knows what was cached only then.
    """
    opening = shape.opening
    for piece in pieces:
        yield Await(piece.token_count)
        if opening is not None:  # with the first token, so that the first frame is the time to first token
            yield Frame(opening)
            opening = None
        yield Frame(shape.content(piece))
    if opening is not None:
        yield Frame(opening)
    yield from map(Frame, _finish_frames(HEALTHY, shape, finish, counts, include_usage=include_usage))
    yield Frame(DONE)
    yield HEALTHY.close


def echo_script(
    shape: Shape, contents: Iterable[bytes], finish: str, counts: Counts, *, include_usage: bool
) -> Iterator[Event]:
    """The events of a verbatim answer: `contents` are its content frames, and every frame is due at once."""
    if shape.opening is not None:
        yield Frame(shape.opening)
    yield from map(Frame, contents)
    yield from map(Frame, _finish_frames(HEALTHY, shape, finish, lambda: counts, include_usage=include_usage))
    yield Frame(DONE)
    yield HEALTHY.close
