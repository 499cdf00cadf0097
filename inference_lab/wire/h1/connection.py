"""What a connection has to send: every byte of its responses passes here, and is counted.

Private Twisted names used here, each guarded by tests/socket/test_twisted_internals.py:
`HTTPChannel._dataBuffer`, `_waitingForTransport` (twisted/web/http.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.web import http

from inference_lab.wire.transport import abort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.web.http_headers import Headers


class Connection(http.HTTPChannel):
    """The sending side of an HTTP/1 connection."""

    transport: Any  # Twisted types it as ITransport only
    written_bytes = 0
    """Of all responses so far, their heads included."""
    is_stale = False
    """Whether whatever comes next is met with a reset."""

    def write(self, data: bytes) -> None:
        """Bytes of a response."""
        self.written_bytes += len(data)
        self.transport.write(data)

    def writeSequence(self, iovec: Sequence[bytes]) -> None:  # noqa: N802 - Twisted's name
        """Bytes of a response in pieces."""
        self.write(b"".join(iovec))

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:  # noqa: N802 - as above
        """The head of a whole answer. Twisted's own goes to the transport, past the count."""
        lines = [b"%b %b %b\r\n" % (version, code, reason)]
        for name, values in headers.getAllRawHeaders():
            lines += [b"%b: %b\r\n" % (name, value) for value in values]
        self.writeSequence([*lines, b"\r\n"])

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: ANN401, FBT001, N802 - Twisted's
        """Take on a stream, paused if the answer before it is still on its way.

        Twisted lets it begin; a plain connection pauses it at its first write, TLS, which has said so before, never.
        """
        super().registerProducer(producer, streaming)
        if self._waitingForTransport:
            producer.pauseProducing()

    def reset_on_data(self) -> None:
        """Meet whatever comes next with a reset; what has been pipelined already counts."""
        self.is_stale = True
        if any(self._dataBuffer):
            abort(self.transport)
