"""The frames of an answer that a death is of: what the healthy stream says up to the fault point, and after it.

The frames are labelled, and come as they are asked for; `edits` make the death of them. What no edit could do is done
here: leave words out before they are counted (`sequence=drop`), and stop before words that nobody asks for.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from inference_lab.core.faults.death import NONE
from inference_lab.core.faults.silence import HEARTBEATS, silence
from inference_lab.core.stream.content import bursts, frames_from, words_in
from inference_lab.core.stream.events import FAULT_POINT, Burst, Draft, Frame, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from inference_lab.core.answer.pieces import Piece
    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.faults.death import Death
    from inference_lab.core.stream.content import Cut


class AnswerFrames:
    """Those of `death`, written by `writer`; `cut` is its answer."""

    def __init__(self, death: Death, writer: StreamWriter, cut: Cut, *, usage_asked: bool) -> None:
        self._death = death
        self._writer = writer
        self._cut = cut
        self._usage_asked = usage_asked
        self._place = cut.place  # of the next piece to be said
        self._rides = writer.dialect.finish_rides and "text_in_finish" not in death.given and _may_ride(death)
        self._has_finished = False

    def frames(self) -> Iterator[Draft]:
        """All of them, up to the last."""
        death, writer = self._death, self._writer
        if death.ttft_ms:
            yield from silence(death, death.ttft_ms, self.beat())
        if death.at in {"frames", "role"}:
            for _ in range(1 + death.role_again):
                yield from writer.opening()
        if death.at == "frames":
            yield from self._before()
            yield FAULT_POINT
            if death.then == "rest" or death.sequence.word in {"drop", "swap"}:
                yield from self._after()
            if death.finish != NONE or death.usage == "always":
                yield from self._tail()
        else:
            yield FAULT_POINT
        yield from writer.terminal()

    def next_content(self) -> Iterable[Frame]:
        """A content frame with the next word."""
        return self._writer.content(self._next_piece())

    def beat(self) -> Frame:
        """A sign of life."""
        block = HEARTBEATS.get(self._death.heartbeat)
        return self._writer.empty() if block is None else Frame(block, part=Part.PING)

    def _before(self) -> Iterator[Frame | Burst]:
        death, cut, writer = self._death, self._cut, self._writer
        is_torn = death.tear.word != "none"
        if self._is_plain:
            for part in bursts(cut.pieces, cut.frames, writer, every_ms=death.delay_ms):
                if isinstance(part, Burst):
                    writer.pass_over(len(part.frames), len(part.frames))
                    yield part
                else:
                    yield from writer.content(part)
        else:
            words = cut.words if cut.is_whole else None
            pieces = islice(frames_from(cut.pieces, 0, death.tokens_per_frame, words), cut.frames)
            yield from self._written(pieces, rides=self._rides and death.then == "end")
        if is_torn:
            yield from writer.content(cut.torn)

    @property
    def _is_plain(self) -> bool:
        """Whether no edit looks at the content frames one by one, and each is a word."""
        death = self._death
        looks = death.frame_bytes is not None or death.sequence.word == "dup"
        rides = self._rides and death.then == "end"
        comments = bool(self._writer.dialect.comment) and "comments" not in death.given
        return death.tokens_per_frame == 1 and not (looks or rides or comments)

    def _after(self) -> Iterator[Draft]:
        death, cut = self._death, self._cut
        skipped = death.sequence.number if death.sequence.word in {"drop", "swap"} else 0
        if skipped:
            self._place = words_in(cut.frames + skipped, death.tokens_per_frame)
        if death.sequence.word == "swap":
            words = cut.words if death.then == "rest" else None
            pieces = frames_from(cut.pieces, cut.frames, death.tokens_per_frame, words)
            yield from self._written(islice(pieces, skipped), rides=False)
        if death.then == "rest":
            yield from silence(death, death.pause_ms, self.beat(), bounded=True)
            rest = frames_from(cut.pieces, cut.frames + skipped, death.tokens_per_frame, cut.words)
            yield from self._written(rest, rides=self._rides)
            self._place = max(words_in(cut.frames, death.tokens_per_frame), cut.words)

    def _written(self, pieces: Iterator[Piece], *, rides: bool) -> Iterator[Frame]:
        """The frames of some pieces, the last of which may carry the finish."""
        held: Piece | None = None
        for piece in pieces:
            if not rides:
                yield from self._writer.content(piece)
                continue
            if held is not None:
                yield from self._writer.content(held)
            held = piece
        if held is not None:
            self._has_finished = True
            yield self._finish_with(held)

    def _tail(self) -> Iterator[Frame]:
        death, writer = self._death, self._writer
        has_finish = death.finish != NONE
        reason = self._reason() if has_finish else None
        if has_finish:
            yield from writer.closings(reason)
        if reason is not None and not self._has_finished:
            if death.text_in_finish:
                yield self._finish_with(self._next_piece())
            else:
                has_counts = death.usage == "on_finish" or (
                    writer.counts_in_finish and death.usage != "never"
                )
                yield from writer.finish(reason, writer.counts() if has_counts else None)
        if death.usage == "with_choices" and reason is not None:
            yield from writer.finish(reason, writer.counts())
        elif death.usage == "always" or (
            has_finish and self._usage_asked and death.usage not in {"never", "on_finish"}
        ):
            yield from writer.usage(writer.counts(), reason)

    def _finish_with(self, piece: Piece) -> Frame:
        counts = self._writer.counts if self._death.usage == "on_finish" else None
        return self._writer.finish_with(piece, self._reason(), counts)

    def _reason(self) -> str:
        death = self._death
        if isinstance(death.finish, str):
            return death.finish
        return self._cut.finish if self._cut.is_whole or death.then == "rest" else "stop"

    def _next_piece(self) -> Piece:
        piece = next(iter(self._cut.pieces.starting_at(self._place)))
        self._place += 1
        return piece


def _may_ride(death: Death) -> bool:
    """Whether nothing comes between the last content frame and the finish, so that the one may carry the other."""
    between = death.malformed or death.sequence.word not in {"none", "after_finish", "after_done"}
    if death.then == "rest":
        between = death.sequence.word == "double_finish"
    whole = death.at == "frames" and death.tear.word == "none" and death.frame_bytes is None
    return whole and not between and death.finish != NONE and death.error == "none"
