"""Where a fault's answer comes from: the prompt's own, from the position it has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.answers.answer import call_pieces, fault_pieces

if TYPE_CHECKING:
    from inference_lab.answers.answer import Plan
    from inference_lab.answers.pieces import Channel, Pieces
    from inference_lab.faults.death import Death
    from inference_lab.formats import Format
    from inference_lab.progress.position import Position
    from inference_lab.prompts.calls import CallTarget

_CHANNELS: Final[dict[str, Channel]] = {"text": "text", "reasoning": "reasoning", "tool_call": "call"}


class AnswerSource:
    """See `faults.content.Source`; `plan` is the whole answer as text."""

    def __init__(
        self, style: Format, position: Position, plan: Plan, death: Death, *, chat: bool, call: CallTarget
    ) -> None:
        self._death = death
        self._style = style
        self._position = position
        self._chat = chat
        self._call = call
        self.words = plan.pieces.words
        self.finish = plan.finish

    def endless(self, content: str) -> Pieces:
        """See `Source.endless`."""
        death = self._death
        if content in _CHANNELS:
            return fault_pieces(
                self._style,
                self._position,
                _CHANNELS[content],
                chat=self._chat,
                call=self._call,
                shift=death.skip - death.overlap,
            )
        return call_pieces(
            self._style,
            self._position,
            int(death.after_chunks),
            chat=self._chat,
            call=self._call,
            parallel=content == "tool_call_parallel",
        )
