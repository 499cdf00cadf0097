"""Connections: a TCP transport that sends at once, and what can be asked of any transport, its send queue above all.

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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted.internet import tcp, unix
from twisted.internet.error import ConnectionAborted, ConnectionDone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from inference_lab.core.journal.row import Peer
    from inference_lab.wire.pacer import Pacer

try:
    from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
except ImportError:  # a process without TLS
    _TLS_FACTORY: tuple[type[Any], ...] = ()
    _TLS_LAYER: tuple[type[Any], ...] = ()
else:
    _TLS_FACTORY, _TLS_LAYER = (TLSMemoryBIOFactory,), (TLSMemoryBIOProtocol,)

_INT: Final = struct.Struct("i")
_SHORTEST_POLL_US: Final = 1_000
_LONGEST_POLL_US: Final = 250_000


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
                # We close after a last write that is still on its way. The FIN goes out all the same, since Twisted
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
            and not (self.dataBuffer or self._tempDataLen)
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


def install_transport(port: object) -> None:
    """Give the connections of a listening port a transport of ours; on a Unix socket sending at once gains nothing."""
    if isinstance(port, unix.Port):
        port.transport = WatchedUnixServer
    elif isinstance(port, tcp.Port) and port.transport is tcp.Server:
        port.transport = EagerServer


def has_tls(port: object) -> bool:
    """Whether a listening port speaks TLS."""
    return isinstance(getattr(port, "factory", None), _TLS_FACTORY)


def tcp_transport(transport: Any) -> Any:  # noqa: ANN401 - a transport of any kind, which Twisted does not type
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
    connection = tcp_transport(transport)
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
    connection = tcp_transport(transport)
    if isinstance(connection, WatchedServer):
        connection.is_watched = True


def forget_unsent(transport: Any) -> None:  # noqa: ANN401
    """Let go of what `watch_unsent` has kept."""
    connection = tcp_transport(transport)
    if isinstance(connection, WatchedServer):
        connection.forget()


def unsent_now(transport: Any) -> int:  # noqa: ANN401
    """As `unsent_bytes`, and of a connection that is gone what was unsent when it went, or later if it is watched."""
    connection = tcp_transport(transport)
    if not isinstance(connection, WatchedServer):
        return unsent_bytes(transport)
    connection.is_watched = False
    return unsent_bytes(transport) if connection.loss is None else connection.unsent_at_last()


def is_gone(transport: Any) -> bool:  # noqa: ANN401
    """Whether the connection has ended, so that nothing of it will change any more."""
    connection = tcp_transport(transport)
    return isinstance(connection, WatchedServer) and connection.is_settled


def lost_to(transport: Any, reason: Failure) -> Peer:  # noqa: ANN401
    """What the peer did to a connection that is gone: closed it, reset it, or nothing, when we aborted it.

    `reason` is what a protocol was told; the lowest transport knows better, since TLS has reasons of its own.
    """
    loss = getattr(tcp_transport(transport), "loss", None)
    cause = reason if loss is None else loss.reason
    if cause.check(ConnectionAborted):
        return "none"
    was_reset = loss is not None and loss.was_reset
    return "fin" if cause.check(ConnectionDone) and not was_reset else "rst"


def can_reset(transport: Any) -> bool:  # noqa: ANN401
    """Whether the connection knows a reset at all: TCP does, Unix sockets and in-memory transports do not."""
    connection = tcp_transport(transport)
    return isinstance(connection, tcp.Connection) and connection.socket.family in {
        socket.AF_INET,
        socket.AF_INET6,
    }


def abort(transport: Any) -> None:  # noqa: ANN401
    """Drop the connection at once, everything unsent with it: a RST on TCP, without TLS close_notify."""
    tcp_transport(transport).abortConnection()


class SendQueueDrain:
    """Polls `transport` until its queue, the kernel's included, is empty; calls exactly one of two functions.

    `on_empty()` once nothing is unsent and `grace_us` has passed; `on_give_up(lost_bytes)` when the queue has not
    shrunk for `linger_us`. There is no notification for either in Twisted or the kernel (TIOCOUTQ must be asked), so
    the pause between two looks is a quarter of the silence so far, within 1 … 250 ms.
    """

    def __init__(
        self,
        pacer: Pacer,
        transport: Any,  # noqa: ANN401 - a transport of any kind, which Twisted does not type
        *,
        grace_us: int,
        linger_us: int,
        on_empty: Callable[[], None],
        on_give_up: Callable[[int], None],
    ) -> None:
        self._pacer = pacer
        self._transport = transport
        self._linger_us = linger_us
        self._on_empty = on_empty
        self._on_give_up = on_give_up
        self._least = unsent_bytes(transport)
        self._progress_us = pacer.now_us()
        self._timer: IDelayedCall | None = pacer.clock.callLater(grace_us / 1e6, self._look)

    @property
    def stopped(self) -> bool:
        """Whether it is over, one way or another."""
        return self._timer is None

    def stop(self) -> None:
        """Call neither function any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        unsent = unsent_bytes(self._transport)
        now_us = self._pacer.now_us()
        if not unsent:
            self._on_empty()
            return
        if unsent < self._least:
            self._least = unsent
            self._progress_us = now_us
        silent_us = now_us - self._progress_us
        if silent_us >= self._linger_us:
            self._on_give_up(unsent)
            return
        wait_us = min(max(silent_us // 4, _SHORTEST_POLL_US), _LONGEST_POLL_US, self._linger_us - silent_us)
        self._timer = self._pacer.clock.callLater(wait_us / 1e6, self._look)
