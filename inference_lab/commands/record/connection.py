"""One request over a raw socket, and everything that comes back with its time until the connection ends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.commands.record.capture import Capture, End, Recorded
from inference_lab.console import UserError

if TYPE_CHECKING:
    from inference_lab.commands.record.target import Target

_BLOCK_BYTES: Final = 65_536
LINGER_S: Final = 0.3
"""For how long a FIN or RST is looked for after a complete response."""


class Outcome(msgspec.Struct, frozen=True):
    """What was recorded, how it ended, after how long; `ragged`: TLS ended without close_notify."""

    recorded: Recorded
    end: End
    seconds: float
    ragged: bool


class _Plain:
    """A connection; `ragged` says whether it ended without what TLS ends with."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.ragged = False

    def send(self, data: bytes) -> None:
        self.raw.sendall(data)

    def receive(self) -> bytes:
        """What is there as soon as it is there; nothing at the end. Raises OSError for a reset."""
        return self.raw.recv(_BLOCK_BYTES)


class _Tls(_Plain):
    """TLS over memory, so that a reset of the connection below does not look like its end."""

    def __init__(self, raw: socket.socket, host: str) -> None:
        super().__init__(raw)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:  # noqa: PERF203 - that is how a handshake goes
                self._flush()
                if not self._take():
                    raise ConnectionAbortedError(0, "closed during the TLS handshake") from None
            else:
                self._flush()
                return

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive(self) -> bytes:
        while True:
            try:
                return self._tls.read(_BLOCK_BYTES)
            except ssl.SSLWantReadError:  # noqa: PERF203 - and every read
                self._flush()
                if not self._take():
                    self.ragged = True
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    def _take(self) -> bool:
        data = self.raw.recv(_BLOCK_BYTES)
        self._incoming.write(data)
        return bool(data)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.raw.sendall(self._outgoing.read())


def record(target: Target, request: bytes, *, max_seconds: float, max_bytes: int) -> Outcome:
    """Send `request` and listen until the response is over, for at most `max_seconds` and `max_bytes` of body.

    Ctrl-C ends the listening too, and what is still open then is recorded as such.

    Raises:
        UserError: no connection, or no HTTP response.
    """
    deadline = time.monotonic() + max_seconds
    with _opened(target, max_seconds) as raw:
        connection = _secured(target, raw)
        # A server may refuse before it has read everything; its answer is what counts.
        with contextlib.suppress(OSError):
            connection.send(request)
        return _listen(connection, deadline, max_bytes)


def _opened(target: Target, timeout: float) -> socket.socket:
    try:
        return socket.create_connection((target.host, target.port), timeout)
    except (OSError, ValueError) as error:  # ValueError: a host that is no name
        raise _unconnected(target, error) from None


def _secured(target: Target, raw: socket.socket) -> _Plain:
    try:
        return _Tls(raw, target.host) if target.tls else _Plain(raw)
    except (OSError, ValueError) as error:
        raise _unconnected(target, error) from None


def _unconnected(target: Target, error: Exception) -> UserError:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    return UserError(f"cannot connect to {target.host}:{target.port}: {reason}")


def _listen(connection: _Plain, deadline: float, max_bytes: int) -> Outcome:
    capture = Capture(max_bytes)
    started = time.monotonic()
    end = End.OPEN
    while (left := deadline - time.monotonic()) > 0:
        connection.raw.settimeout(left)
        try:
            data = connection.receive()
        except (TimeoutError, KeyboardInterrupt):
            break
        except OSError:
            end = End.RST
            break
        if not data:
            end = End.FIN
            break
        was_complete = capture.complete
        capture.feed(data, _ms(started))
        if capture.complete and not was_complete:
            deadline = min(deadline, time.monotonic() + LINGER_S)
        if capture.full and not capture.complete:
            end = End.FULL
            break
    recorded = capture.ended(end, _ms(started))
    return Outcome(recorded, end, time.monotonic() - started, connection.ragged)


def _ms(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
