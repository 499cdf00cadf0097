"""What a death needs of the answer that it is to meet, refused before the first event where it is not there.

What no answer could show is refused earlier, where a directive is read: see `constraints`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.faults.death import NONE
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
    writer = new_writer()
    if (death.at == "role" or death.role_again) and not writer.has_opening:
        key = "at=role" if death.at == "role" else "role_again"
        raise ValueError(f"{key} needs a role frame, which {writer.dialect.name} does not have here")
    if death.at == "frames":
        _check_padding(death, writer, cut)
        _check_tear(death, new_writer(), cut)
        _check_sequence(death, cut)
        _check_rest(death, cut)
        _check_leg(death, cut)
    _check_first_frames(death, writer, cut)


def _check_padding(death: Death, writer: StreamWriter, cut: Cut) -> None:
    if death.frame_bytes is None:
        return
    if cut.last is None:
        raise ValueError("frame_bytes needs a content frame, and this answer has none")
    # Counts in every frame, whose length depends on the number, do not go with a padding.
    writer.pass_over(cut.frames - 1, 0)
    least = len(_content(writer, cut.last))
    if death.frame_bytes < least:
        raise ValueError(f"frame_bytes={death.frame_bytes} is less than the frame's {least} bytes")


def _check_tear(death: Death, writer: StreamWriter, cut: Cut) -> None:
    if death.tear.word == "none":
        return
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


def _check_sequence(death: Death, cut: Cut) -> None:
    word, number = death.sequence.word, death.sequence.number
    if word == "dup" and number > cut.frames:
        raise ValueError(f"sequence=dup:{number} repeats more than the {cut.frames} content frames there are")
    if death.then == "rest" and word in {"drop", "swap"}:
        rest = max(0, frames_in(cut.words, death.tokens_per_frame) - cut.frames)
        if number > rest:
            raise ValueError(
                f"sequence={word}:{number} needs as many frames behind the fault point: {rest} are left"
            )


def _check_rest(death: Death, cut: Cut) -> None:
    frames = cut.words > cut.place or death.malformed or death.finish != NONE or death.error != "none"
    others = death.usage == "always" or death.sequence.word in {"dup", "choices_null", "choices_empty"}
    if death.rest_delay_ms is not None and not (frames or others):
        raise ValueError("rest_delay_ms needs a frame behind the fault point: there is none in this stream")


def _check_leg(death: Death, cut: Cut) -> None:
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
    """What acts on the frames in front of the fault point needs one."""
    has_opening = writer.has_opening and death.at != "head"
    if has_opening or (cut.frames and death.at == "frames"):
        return
    if death.chunk_error == "no_crlf":
        raise ValueError("chunk_error=no_crlf needs a chunk before the fault point")
    if death.usage.endswith("_chunk") and death.finish == NONE:
        raise ValueError(f"usage={death.usage} needs a frame")
