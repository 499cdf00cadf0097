"""The frames of `POST /v1/chat/completions`: `chat.completion.chunk`, whose choices carry deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.apis.choices import ChoicesWriter
from inference_lab.core.apis.contract import PLAIN, Form, quote
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.identity import call_id

if TYPE_CHECKING:
    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.apis.contract import Completion
    from inference_lab.core.apis.dialects import Dialect


class ChatWriter(ChoicesWriter):
    """See `contract.StreamWriter`."""

    kind = "chat.completion.chunk"
    row = "chat"

    def __init__(self, completion: Completion, dialect: Dialect = LAB, form: Form = PLAIN) -> None:
        super().__init__(completion, dialect, form)
        self._aside = self._frames.aside.encode()
        self._reasoning = self._aside + quote(form.reasoning_key or dialect.reasoning_key) + b":"

    def _said(self, piece: Piece) -> bytes:
        if piece.channel == "text":
            return b'"content":' + quote(piece.delta)
        if piece.channel == "reasoning":
            return self._reasoning + quote(piece.delta)
        if piece.name is not None:
            return self._aside + self._announcement(piece.call, piece.name)
        return self._aside + _fragment(piece.call, piece.delta)

    def _said_before(self, channel: Channel) -> bytes | None:
        if channel == "call":  # its frames carry its number
            return None
        return b'"content":' if channel == "text" else self._reasoning

    def _nothing(self) -> bytes:
        return b'"content":""'

    def text(self, text: str) -> bytes:
        """A frame of answer text."""
        return self._before + b'"content":' + quote(text) + self._after

    def announcement(self, index: int, name: str) -> bytes:
        """The frame that announces tool call `index`."""
        return self._before + self._announcement(index, name) + self._after

    def arguments(self, index: int, fragment: str) -> bytes:
        """A frame with a fragment of the arguments of tool call `index`."""
        return self._before + _fragment(index, fragment) + self._after

    def _announcement(self, index: int, name: str) -> bytes:
        """A delta's member that announces tool call `index`."""
        return (
            b'"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]'
            % (
                index,
                quote(call_id(self.completion.id, index)),
                quote(name),
            )
        )


def _fragment(index: int, fragment: str) -> bytes:
    """A delta's member with a fragment of the arguments of tool call `index`."""
    return b'"tool_calls":[{"index":%d,"function":{"arguments":%b}}]' % (index, quote(fragment))
