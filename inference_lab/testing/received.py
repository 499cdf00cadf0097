"""What a test has received, as bytes for the oracle: whatever its client library calls a response."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference_lab.oracle import Ended

_ERRORS = (
    ("http.client", "HTTPException"),
    ("httpx", "TransportError"),
    ("urllib3.exceptions", "HTTPError"),
)
_READABLE = "text, bytes, an iterable of either, or a response whose .content or .text has been read"


class Received:
    """Blocks of a body. `ended` is what the transport has said, known once all blocks have been taken."""

    def __init__(self, response: object) -> None:
        self.ended: Ended = "unknown"
        self._response = response

    def blocks(self) -> Iterator[bytes]:
        """The bytes.

        Raises:
            TypeError: nothing that could be read.
        """
        response = self._response
        if isinstance(response, (bytes, bytearray, memoryview, str)):
            yield _as_bytes(response)
            return
        for name in ("content", "text"):
            body = getattr(response, name, None)
            if isinstance(body, (bytes, str)):
                self.ended = "clean"  # a client that has met a broken transfer has no body to show
                yield _as_bytes(body)
                return
        if isinstance(response, Mapping) or not isinstance(response, Iterable):
            raise TypeError(f"verify takes {_READABLE}, not {type(response).__name__}")
        try:
            for block in response:
                yield _as_bytes(block)
        except _transport_errors():
            self.ended = "broken"


def _as_bytes(block: object) -> bytes:
    if isinstance(block, str):
        return block.encode("utf-8", "surrogatepass")
    if isinstance(block, (bytes, bytearray, memoryview)):
        return bytes(block)
    raise TypeError(f"verify takes {_READABLE}; there was a {type(block).__name__} among the blocks")


def _transport_errors() -> tuple[type[BaseException], ...]:
    """How clients say that the stream they are reading has died, where it is no OSError as those of requests are.

    Only who has loaded a library can meet its exceptions.
    """
    return (
        OSError,
        *(getattr(sys.modules[module], name) for module, name in _ERRORS if module in sys.modules),
    )
