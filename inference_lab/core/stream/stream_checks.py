"""What a death needs of the answer that it is to meet, refused before the first event where it is not there.

What no answer could show is refused earlier, where a directive is read: see `constraints`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from inference_lab.core.faults.death import HEALTHY, NONE
from inference_lab.core.faults.silence import HEARTBEATS, beats_in
from inference_lab.core.stream.content import frames_in
from inference_lab.core.stream.events import Part
from inference_lab.core.stream.sse import check_torn, is_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.answer.pieces import Piece
    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.faults.death import Death
    from inference_lab.core.stream.content import Cut


def check_stream(death: Death, new_writer: Callable[[], StreamWriter], cut: Cut) -> None:
    """Refuse a death that has nothing to act on in this answer, of which `cut` is the death's.

    Raises:
        ValueError: a frame or a word that is not there, or that is too short for a tear or longer than its padding.
    """
    for check in _checks_of(death):
        check(death, new_writer(), cut)


@lru_cache(maxsize=256)
def _checks_of(death: Death) -> tuple[Callable[[Death, StreamWriter, Cut], None], ...]:
    return tuple(check for is_wanted, check in _CHECKS if is_wanted(death))


def _check_opening(death: Death, writer: StreamWriter, _: Cut) -> None:
    if not writer.has_opening:
        key = "at=role" if death.at == "role" else "role_again"
        raise ValueError(f"{key} needs a role frame, which {writer.dialect.name} does not have here")


def _check_padding(death: Death, writer: StreamWriter, cut: Cut) -> None:
    if cut.last is None:
        raise ValueError("frame_bytes needs a content frame, and this answer has none")
    # Counts in every frame, whose length depends on the number, do not go with a padding.
    writer.pass_over(cut.frames - 1, 0)
    least = len(_content(writer, cut.last))
    if (death.frame_bytes or 0) < least:
        raise ValueError(f"frame_bytes={death.frame_bytes} is less than the frame's {least} bytes")


def _check_tear(death: Death, writer: StreamWriter, cut: Cut) -> None:
    piece = cut.torn
    if death.tear.word == "utf8" and not piece.words:
        raise ValueError("tear=utf8 needs a word in the torn frame: this one has none")
    openings = writer.has_opening * (1 + death.role_again)
    beats = beats_in(death, death.ttft_ms) * is_event(HEARTBEATS.get(death.heartbeat, b""))
    writer.pass_over(cut.frames, cut.pieces.token_count(cut.place))
    check_torn(_content(writer, piece), death, beats + openings + cut.frames)


def _content(writer: StreamWriter, piece: Piece) -> bytes:
    """A piece's content frame, without what stands around it."""
    return next(frame.data for frame in writer.content(piece) if frame.part is Part.CONTENT)


def _check_sequence(death: Death, _: StreamWriter, cut: Cut) -> None:
    word, number = death.sequence.word, death.sequence.number
    if word == "dup" and number > cut.frames:
        raise ValueError(f"sequence=dup:{number} repeats more than the {cut.frames} content frames there are")
    if death.then == "rest" and word in {"drop", "swap"}:
        rest = max(0, frames_in(cut.words, death.tokens_per_frame) - cut.frames)
        if number > rest:
            raise ValueError(
                f"sequence={word}:{number} needs as many frames behind the fault point: {rest} are left"
            )


def _check_rest(death: Death, _: StreamWriter, cut: Cut) -> None:
    frames = cut.words > cut.place or death.malformed or death.finish != NONE or death.error != "none"
    others = death.usage == "always" or death.sequence.word in {"dup", "choices_null", "choices_empty"}
    if not (frames or others):
        raise ValueError("rest_delay_ms needs a frame behind the fault point: there is none in this stream")


def _check_leg(death: Death, _: StreamWriter, cut: Cut) -> None:
    """A word left out or said again needs one that is said, and a count that is too low needs one."""
    others = (
        death.tear.word != "none"
        or death.text_in_finish
        or death.sequence.word in {"after_finish", "after_done", "swap"}
        or (death.then == "rest" and cut.words > cut.place)
    )
    if others:
        return
    if isinstance(death.usage_off_by, int) and death.usage_off_by < 0 and not cut.frames:
        raise ValueError(f"usage_off_by={death.usage_off_by} needs a count above 0: this leg says nothing")
    if (death.overlap or death.skip) and (cut.last is None or not cut.last.words):
        key = "overlap" if death.overlap else "skip"
        raise ValueError(f"{key} needs a word to act on: this leg says none")


def _check_first_frames(death: Death, writer: StreamWriter, cut: Cut) -> None:
    """What acts on the frames before the fault point needs one."""
    has_opening = writer.has_opening and death.at != "head"
    if has_opening or (cut.frames and death.at == "frames"):
        return
    if death.chunk_error == "no_crlf":
        raise ValueError("chunk_error=no_crlf needs a chunk before the fault point")
    if death.usage.endswith("_chunk") and death.finish == NONE:
        raise ValueError(f"usage={death.usage} needs a frame")


def _is_of_frames(keys: Callable[[Death], object]) -> Callable[[Death], bool]:
    return lambda death: death.at == "frames" and bool(keys(death))


_CHECKS: Final[tuple[tuple[Callable[[Death], bool], Callable[[Death, StreamWriter, Cut], None]], ...]] = (
    (lambda death: death.at == "role" or death.role_again, _check_opening),
    (_is_of_frames(lambda death: death.frame_bytes is not None), _check_padding),
    (_is_of_frames(lambda death: death.tear.word != "none"), _check_tear),
    (_is_of_frames(lambda death: death.sequence.word in {"dup", "drop", "swap"}), _check_sequence),
    (_is_of_frames(lambda death: death.rest_delay_ms is not None), _check_rest),
    (
        _is_of_frames(
            lambda death: death.usage_off_by != HEALTHY.usage_off_by or death.overlap or death.skip
        ),
        _check_leg,
    ),
    (lambda death: death.chunk_error == "no_crlf" or death.usage.endswith("_chunk"), _check_first_frames),
)
"""When each check is wanted, in their order: which of two refusals is given."""
