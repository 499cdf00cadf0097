"""Endings on TCP: the only code that ends a connection on purpose.

Each ending of a script is one function here; none of them looks at a frame or a mode's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from inference_lab.core.faults.death import Close
from inference_lab.wire.response import Ending
from inference_lab.wire.transport import SendQueueDrain, abort, can_reset, tcp_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.web import http

    from inference_lab.wire.h1.connection import Connection
    from inference_lab.wire.pacer import Pacer

_FIRST_LOOK_US: Final = 250_000

_log: Final = Logger()


class TcpEnding(Ending):
    """An ending of `request`'s response on `connection`."""

    def __init__(self, endings: Endings, request: http.Request, connection: Connection, close: Close) -> None:
        super().__init__(close)
        self._endings = endings
        self._request = request
        self._connection = connection
        self._drain: SendQueueDrain | None = None
        self._guard: IDelayedCall | None = None

    def stop(self) -> None:
        """Leave nothing behind."""
        if self._drain is not None:
            self._drain.stop()
        if self._guard is not None and self._guard.active():
            self._guard.cancel()

    def begin(self) -> None:
        """Carry out the ending."""
        self._STEPS[self.close](self)

    def _terminator(self) -> None:
        self._request.finish()

    def _hang(self) -> None:
        """Nothing is done: the connection is the client's to end."""

    def _fin(self) -> None:
        self._when_drained(self._lose)

    def _rst(self) -> None:
        if can_reset(self._connection.transport):
            self._when_drained(self._reset)
        else:
            self._warn("a plain close")
            self.close = Close.FIN
            self._fin()

    def _tls_raw(self) -> None:
        self._when_drained(self._lose_raw)

    def _stale(self) -> None:
        if not can_reset(self._connection.transport):
            self._warn("a plain close on the next bytes")
        self._connection.reset_on_data()

    def _warn(self, instead: str) -> None:
        _log.warn(
            "{request} asked for a reset, which this transport does not have: {instead}",
            request=self._request,
            instead=instead,
        )

    def _when_drained(self, then: Callable[[], None]) -> None:
        self._drain = SendQueueDrain(
            self._endings.pacer,
            self._connection.transport,
            grace_us=self._endings.flush_grace_us,
            linger_us=self._endings.linger_us,
            on_empty=then,
            on_give_up=self._give_up,
        )

    def _reset(self) -> None:
        self.carried_out = True
        abort(self._connection.transport)

    def _lose(self) -> None:
        self.carried_out = True
        # A TLS peer may never answer close_notify; nothing is queued any more, so this is silence from the start.
        transport = self._connection.transport
        self._guard = self._endings.pacer.clock.callLater(self._endings.linger_us / 1e6, abort, transport)
        # Through the channel: under TLS the transport's own loseConnection never closes while HTTPChannel is
        # registered as its producer, and only the channel's method takes that back (twisted/web/http.py).
        self._request.loseConnection()

    def _lose_raw(self) -> None:
        """Close below TLS, so that no close_notify goes out."""
        self.carried_out = True
        tcp_transport(self._connection.transport).loseConnection()

    def _give_up(self, lost_bytes: int) -> None:
        self.lost_bytes = lost_bytes
        abort(self._connection.transport)

    _STEPS: Final = {
        Close.TERMINATOR: _terminator,
        Close.COMPLETE: _terminator,
        Close.FIN: _fin,
        Close.RST: _rst,
        Close.TERMINATOR_RST: _rst,
        Close.HANG: _hang,
        Close.TLS_RAW: _tls_raw,
        Close.STALE: _stale,
    }


class Endings:
    """How endings are carried out: `flush_grace_us` before FIN and RST, `linger_us` for a reader without progress."""

    def __init__(self, pacer: Pacer, *, flush_grace_us: int, linger_us: int) -> None:
        self.pacer = pacer
        self.flush_grace_us = flush_grace_us
        self.linger_us = linger_us

    def end(self, request: http.Request, connection: Connection, close: Close) -> TcpEnding:
        """Begin an ending of `request`'s response, to which nothing is written any more."""
        ending = TcpEnding(self, request, connection, close)
        ending.begin()
        return ending

    def watch(self, transport: Any) -> SendQueueDrain:  # noqa: ANN401 - a transport of any kind
        """After what has been written: reset a reader that leaves it unread, and say how many bytes it cost."""

        def give_up(lost_bytes: int) -> None:
            _log.warn(
                "{peer} read nothing for {seconds} s of a response: reset, {lost} bytes lost",
                peer=transport.getPeer(),
                seconds=self.linger_us / 1e6,
                lost=lost_bytes,
            )
            abort(transport)

        return SendQueueDrain(
            self.pacer,
            transport,
            # Nearly every reader has taken all of it long before the first look, and its next responses are covered
            # by the same watch: one look a quarter second and connection, not one a response.
            grace_us=min(_FIRST_LOOK_US, self.linger_us),
            linger_us=self.linger_us,
            on_empty=lambda: None,
            on_give_up=give_up,
        )
