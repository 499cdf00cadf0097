"""Where a fault's answer comes from: the prompt's own, from the position it has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.core.answer.answer import call_pieces, fault_pieces, healthy, thinking_on
from inference_lab.core.faults.death import ALL
from inference_lab.core.stream.content import words_in

if TYPE_CHECKING:
    from inference_lab.core.answer.answer import Limits
    from inference_lab.core.answer.pieces import Channel, Pieces
    from inference_lab.core.answer.position import Position
    from inference_lab.core.answer.templates import Format
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.faults.death import Death
    from inference_lab.core.prompts.calls import CallTarget

_CHANNELS: Final[dict[str, Channel]] = {"text": "text", "reasoning": "reasoning", "tool_call": "call"}


def answer_of(style: Format, position: Position, death: Death, limits: Limits) -> Plan:
    """The whole answer that a death is of: text, unless it thinks first and goes on.

    Raises:
        ValueError: the answer so far has left its reasoning behind.
    """
    if not death.thinks_on:
        return healthy(
            style,
            position,
            answer_words=limits.answer_words,
            max_tokens=limits.max_tokens,
            context_left=limits.context_left,
        )
    words = words_in(int(death.after_chunks), death.tokens_per_frame)
    return thinking_on(style, position, words, limits, shift=death.skip - death.overlap)


class AnswerSource:
    """See `faults.content.Source`; `plan` is the whole answer: see `answer_of`."""

    def __init__(
        self, style: Format, position: Position, plan: Plan, death: Death, *, call: CallTarget
    ) -> None:
        self._death = death
        self._style = style
        self._position = position
        self._call = call
        self._pieces = plan.pieces
        self.words = plan.pieces.words
        self.finish = plan.finish

    def endless(self, content: str) -> Pieces:
        """See `Source.endless`."""
        death = self._death
        # Words in front of the fault point are said whatever the answer's limits are.
        if death.thinks_on and self.words > words_in(int(death.after_chunks), death.tokens_per_frame):
            return self._pieces
        if content in _CHANNELS:
            return fault_pieces(
                self._style,
                self._position,
                _CHANNELS[content],
                call=self._call,
                shift=death.skip - death.overlap,
            )
        return call_pieces(
            self._style,
            self._position,
            int(death.after_chunks),
            call=self._call,
            parallel=content == "tool_call_parallel",
        )


def pieces_made(death: Death, source: AnswerSource) -> int:
    """How many pieces of the endless answer a death may show."""
    sequence = death.sequence.number if death.sequence.word in {"drop", "swap"} else 0
    further = words_in(sequence + (death.tear.word != "none"), death.tokens_per_frame)
    further += death.text_in_finish + (death.sequence.word in {"after_finish", "after_done"})
    if death.after_chunks == ALL:
        return source.words + further
    shown = words_in(int(death.after_chunks), death.tokens_per_frame) + further
    return max(shown, source.words + further) if death.then == "rest" else shown
