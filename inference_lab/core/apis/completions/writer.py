"""The frames of `POST /v1/completions`: `text_completion`, whose choices carry raw text with its markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.apis.choices import ChoicesWriter
from inference_lab.core.apis.contract import quote

if TYPE_CHECKING:
    from inference_lab.core.answer.pieces import Channel, Piece


class CompletionsWriter(ChoicesWriter):
    """See `contract.StreamWriter`."""

    kind = "text_completion"
    row = "completions"

    def _said(self, piece: Piece) -> bytes:
        return quote(piece.raw)

    def _said_before(self, channel: Channel) -> bytes | None:  # noqa: ARG002 - raw text, whatever it is
        return b""

    def _nothing(self) -> bytes:
        return b'""'
