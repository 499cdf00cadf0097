"""What a test has received, as bytes for the oracle: whatever its client library calls a response."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference_lab.core.oracle import Ended

_ERRORS = (
    ("http.client", "HTTPException"),
    ("httpx", "TransportError"),
    ("urllib3.exceptions", "HTTPError"),
)
_READABLE = "text, bytes, an iterable of either, or a response whose .content or .text has been read"


_GZIP = b"\x1f\x8b"


class Received:
    """Blocks of a body. `ended` is what the transport has said, known once all blocks have been taken.

    `status` is the response's, None where it tells none; `stream` whether its request asked for a stream, as far as the
    response knows its request.
    """

    def __init__(self, response: object) -> None:
        self.ended: Ended = "unknown"
        self._response = response
        statuses = (getattr(response, name, None) for name in ("status_code", "status"))
        self.status = next((status for status in statuses if type(status) is int), None)
        self.stream = _asks_for_stream(response)

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
        is_first = True
        try:
            for block in response:
                if is_first and _as_bytes(block).startswith(_GZIP) and _announces_gzip(response):
                    raise TypeError("verify takes a body as it was sent: this one is still compressed (gzip)")
                is_first = False
                yield _as_bytes(block)
        except _transport_errors():
            self.ended = "broken"


def _asks_for_stream(response: object) -> bool:
    """Whether the request of a response of httpx or requests has a true `stream` in its body."""
    body: object = None
    with contextlib.suppress(RuntimeError):  # of httpx, where there is no request, or it was not read
        request = getattr(response, "request", None)
        body = getattr(request, "content", None) or getattr(request, "body", None)
    if not isinstance(body, (bytes, str)):
        return False
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and asked.get("stream") is True


def _announces_gzip(response: object) -> bool:
    """Whether a response that its client leaves as it was sent says that it is compressed."""
    get = getattr(getattr(response, "headers", None), "get", None)
    return callable(get) and "gzip" in str(get("content-encoding") or "").lower()


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
