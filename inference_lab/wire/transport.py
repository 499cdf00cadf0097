"""Connections: a TCP transport that sends at once, and what can be asked of any transport under a response.

Private Twisted names used here, each guarded by tests/socket/test_twisted_internals.py:
`FileDescriptor._tempDataLen`, `_writeDisconnected` (twisted/internet/abstract.py);
`TLSMemoryBIOProtocol._appSendBuffer`, `BufferingTLSTransport._aggregator` and its `_buffer`
(twisted/protocols/tls.py).
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from errno import ECONNRESET
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet import tcp, unix
from twisted.internet.error import ConnectionAborted, ConnectionDone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.python.failure import Failure

    from inference_lab.core.journal.row import Peer

try:
    from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
except ImportError:  # a process without TLS
    _TLS_FACTORY: tuple[type[Any], ...] = ()
    _TLS_LAYER: tuple[type[Any], ...] = ()
else:
    _TLS_FACTORY, _TLS_LAYER = (TLSMemoryBIOFactory,), (TLSMemoryBIOProtocol,)

_INT = struct.Struct("i")


class Loss(NamedTuple):
    """The last that was seen of a connection: bytes its peer had not acknowledged, and why it ended."""

    unsent: int
    reason: Failure
    was_reset: bool


class WatchedServer(tcp.Server):
    """A server connection that knows, when it is gone, how it ended."""

    loss: Loss | None = None
    is_watched = False
    """Whether somebody will look at what is unsent once more, with `unsent_now`."""
    _was_reset = False
    _kept: socket.socket | None = None

    def connectionLost(self, reason: Failure) -> None:  # noqa: N802 - Twisted's name
        """Look at the socket while it is there: everybody above hears of its end when it is closed."""
        if self.loss is None:
            unsent = unsent_bytes(self)
            self.loss = Loss(unsent, reason, self._was_reset)
            if unsent and self.is_watched and self.disconnecting and reason.check(ConnectionDone):
                # We close behind a last write that is still on its way. The FIN goes out all the same, since Twisted
                # shuts the connection down before it closes the socket (tcp.py, _SocketCloser).
                with suppress(OSError):  # no descriptor is left
                    self._kept = self.socket.dup()
        super().connectionLost(reason)

    @property
    def is_settled(self) -> bool:
        """Whether it is gone, and nothing of it is still on its way."""
        return self.loss is not None and self._kept is None

    def unsent_at_last(self) -> int:
        """What is still unsent of a connection that is gone."""
        assert self.loss is not None  # noqa: S101 - it is gone
        if self._kept is not None:
            unsent = max(0, _in_kernel(self._kept) - 1)  # the FIN counts as a byte until it is acknowledged
            self.loss = self.loss._replace(unsent=unsent)
            if not unsent:
                self.forget()
        return self.loss.unsent

    def forget(self) -> None:
        """Look no more."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


class WatchedUnixServer(WatchedServer, unix.Server):
    """The same on a Unix socket."""


class EagerServer(WatchedServer):
    """A server connection that hands bytes to the kernel inside `write` instead of in the reactor's next pass.

    It saves two epoll_ctl calls and a second pass per frame. Whatever the kernel does not take goes the ordinary way,
    so back-pressure, producers and closing stay Twisted's.
    """

    def write(self, data: bytes) -> None:
        """Send at once when nothing is queued; queue what is left."""
        if (
            data
            and not self._tempDataLen
            and self.offset == len(self.dataBuffer)
            and self.connected
            and not self.disconnecting
            and not self._writeDisconnected
        ):
            # The socket's own `send`, not `writeSomeData`: three calls less per frame, and the same bytes. An error is
            # not reported here, in the caller's turn: the queued write meets it again, and the reactor reports the
            # loss in its own.
            try:
                sent = self.socket.send(data)
            except OSError as error:
                sent = 0
                if error.errno == ECONNRESET:
                    self._was_reset = True  # the kernel says so once; who asks again hears of an end like any
            if sent == len(data):
                return
            data = data[sent:]
        super().write(data)

    def writeSequence(self, iovec: Iterable[bytes]) -> None:  # noqa: N802 - Twisted's name
        """Send the pieces as one write."""
        self.write(b"".join(iovec))


def give_transport(port: object) -> None:
    """Give the connections of a listening port a transport of ours; on a Unix socket sending at once gains nothing."""
    if isinstance(port, unix.Port):
        port.transport = WatchedUnixServer
    elif isinstance(port, tcp.Port) and port.transport is tcp.Server:
        port.transport = EagerServer


def has_tls(port: object) -> bool:
    """Whether a listening port speaks TLS."""
    return isinstance(getattr(port, "factory", None), _TLS_FACTORY)


def lowest(transport: Any) -> Any:  # noqa: ANN401 - a transport of any kind, which Twisted does not type
    """The transport nearest the kernel: under TLS the TCP connection that carries it."""
    while isinstance(transport, _TLS_LAYER):
        transport = transport.transport
    return transport


def buffered_bytes(transport: Any) -> int:  # noqa: ANN401
    """Bytes written to `transport` that this process still holds, TLS layers included."""
    held = 0
    while isinstance(transport, _TLS_LAYER):
        held += sum(map(len, transport._appSendBuffer))  # noqa: SLF001 - twisted/protocols/tls.py
        aggregator = getattr(transport, "_aggregator", None)  # twisted/protocols/tls.py
        held += sum(map(len, getattr(aggregator, "_buffer", ())))
        transport = transport.transport
    if isinstance(transport, tcp.Connection):
        held += len(transport.dataBuffer) - transport.offset + transport._tempDataLen  # noqa: SLF001 - abstract.py
    return held


def unsent_bytes(transport: Any) -> int:  # noqa: ANN401
    """Bytes written to `transport` that the peer's kernel has not acknowledged; 0 where there is no socket."""
    connection = lowest(transport)
    if not isinstance(connection, tcp.Connection) or connection.disconnected:
        return 0
    return buffered_bytes(transport) + _in_kernel(connection)


def _in_kernel(connection: Any) -> int:  # noqa: ANN401 - a socket, or a transport that has one
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, _INT.pack(0))
    except (OSError, ValueError):  # closed under us: nothing of it is ours to send any more
        return 0
    (unsent,) = _INT.unpack(answer)
    return int(unsent)


def watch_unsent(transport: Any) -> None:  # noqa: ANN401
    """Have what is unsent kept in sight, should we close the connection, until `unsent_now` is asked."""
    connection = lowest(transport)
    if isinstance(connection, WatchedServer):
        connection.is_watched = True


def forget_unsent(transport: Any) -> None:  # noqa: ANN401
    """Let go of what `watch_unsent` has kept."""
    connection = lowest(transport)
    if isinstance(connection, WatchedServer):
        connection.forget()


def unsent_now(transport: Any) -> int:  # noqa: ANN401
    """As `unsent_bytes`, and of a connection that is gone what was unsent when it went, or later if it is watched."""
    connection = lowest(transport)
    if not isinstance(connection, WatchedServer):
        return unsent_bytes(transport)
    connection.is_watched = False
    return unsent_bytes(transport) if connection.loss is None else connection.unsent_at_last()


def is_gone(transport: Any) -> bool:  # noqa: ANN401
    """Whether the connection has ended, so that nothing of it will change any more."""
    connection = lowest(transport)
    return isinstance(connection, WatchedServer) and connection.is_settled


def lost_to(transport: Any, reason: Failure) -> Peer:  # noqa: ANN401
    """What the peer did to a connection that is gone: closed it, reset it, or nothing, when we aborted it.

    `reason` is what a protocol was told; the lowest transport knows better, since TLS has reasons of its own.
    """
    loss = getattr(lowest(transport), "loss", None)
    cause = reason if loss is None else loss.reason
    if cause.check(ConnectionAborted):
        return "none"
    was_reset = loss is not None and loss.was_reset
    return "fin" if cause.check(ConnectionDone) and not was_reset else "rst"


def was_aborted(transport: Any) -> bool:  # noqa: ANN401
    """Whether the connection is gone because we dropped it."""
    loss = getattr(lowest(transport), "loss", None)
    return loss is not None and loss.reason.check(ConnectionAborted) is not None


def can_reset(transport: Any) -> bool:  # noqa: ANN401
    """Whether the connection knows a reset at all: TCP does, Unix sockets and in-memory transports do not."""
    connection = lowest(transport)
    return isinstance(connection, tcp.Connection) and connection.socket.family in {
        socket.AF_INET,
        socket.AF_INET6,
    }


def abort(transport: Any) -> None:  # noqa: ANN401
    """Drop the connection at once, everything unsent with it: a RST on TCP, without TLS close_notify."""
    lowest(transport).abortConnection()
