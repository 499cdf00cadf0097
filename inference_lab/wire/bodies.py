"""How many bytes the bodies of requests may hold together."""

from __future__ import annotations

from typing import Final


class Bodies:
    """Counts the bytes of all requests that are not answered yet, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: Final = limit_bytes
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which are counted then."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """So many bytes are held no more."""
        self.held_bytes -= size
