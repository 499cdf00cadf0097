"""What signs a thinking block."""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b
from typing import Final

_SIGNATURE_BYTES: Final = 48


class Signature:
    """What a thinking block is signed with: 64 characters that anybody can work out from its text."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_SIGNATURE_BYTES)

    def add(self, text: str) -> None:
        """More of the block's text."""
        self._digest.update(text.encode())

    @property
    def text(self) -> str:
        """The signature so far."""
        return b64encode(self._digest.digest()).decode()
