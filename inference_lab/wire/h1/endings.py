"""Endings on TCP: the only code that ends a connection on purpose.

Each ending of a script is one function here; none of them looks at a frame or a mode's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from inference_lab.core.faults.death import Close
from inference_lab.wire.transport import SendQueueDrain, abort, can_reset, tcp_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.web import http

    from inference_lab.wire.h1.connection import Connection
    from inference_lab.wire.pacer import Pacer

_FIRST_LOOK_US: Final = 250_000
_NO_RESET: Final = "{request} asked for a reset, which this transport does not have: {instead}"

_log: Final = Logger()


class Endings:
    """How endings are carried out: `flush_grace_us` before FIN and RST, `linger_us` for a reader without progress."""

    def __init__(self, pacer: Pacer, *, flush_grace_us: int, linger_us: int) -> None:
        self.pacer = pacer
        self.flush_grace_us = flush_grace_us
        self.linger_us = linger_us

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


class TcpEnding:
    """The end of the response to `request` on `connection`.

    `close` is the ending that is really made, `carried_out` once the connection has been told to end, `lost_bytes` if
    the reader was given up instead.
    """

    __slots__ = (
        "_drain",
        "_endings",
        "_guard",
        "_request",
        "carried_out",
        "close",
        "connection",
        "lost_bytes",
    )

    def __init__(self, connection: Connection, request: http.Request, endings: Endings) -> None:
        self.connection = connection
        self.close: Close | None = None
        self.carried_out = False
        self.lost_bytes = 0
        self._endings = endings
        self._request: http.Request | None = request  # which points back at us, until it is over
        self._drain: SendQueueDrain | None = None
        self._guard: IDelayedCall | None = None

    def over(self) -> None:
        """Leave nothing after."""
        self._request = None
        if self._drain is not None:
            self._drain.stop()
        if self._guard is not None and self._guard.active():
            self._guard.cancel()

    def end(self, close: Close) -> None:
        """Begin the ending; nothing more is written."""
        request, self.close = self._request, close
        if request is not None:
            request.unregisterProducer()
            self._STEPS[close](self, request)

    def _terminator(self, request: http.Request) -> None:
        request.finish()

    def _hang(self, _: http.Request) -> None:
        """Nothing is done: the connection is the client's to end."""

    def _fin(self, request: http.Request) -> None:
        def lose() -> None:
            self.carried_out = True
            # A TLS peer may never answer close_notify; nothing is queued any more, so this is silence from the start.
            endings, transport = self._endings, self.connection.transport
            self._guard = endings.pacer.clock.callLater(endings.linger_us / 1e6, abort, transport)
            # Through the channel: under TLS the transport's own loseConnection never closes while HTTPChannel is
            # registered as its producer, and only the channel's method takes that back (twisted/web/http.py).
            request.loseConnection()

        self._when_drained(lose)

    def _rst(self, request: http.Request) -> None:
        def reset() -> None:
            self.carried_out = True
            abort(self.connection.transport)

        if can_reset(self.connection.transport):
            self._when_drained(reset)
        else:
            _log.warn(_NO_RESET, request=request, instead="a plain close")
            self.close = Close.FIN
            self._fin(request)

    def _tls_raw(self, _: http.Request) -> None:
        def lose_below_tls() -> None:  # so that no close_notify goes out
            self.carried_out = True
            tcp_transport(self.connection.transport).loseConnection()

        self._when_drained(lose_below_tls)

    def _stale(self, request: http.Request) -> None:
        if not can_reset(self.connection.transport):
            _log.warn(_NO_RESET, request=request, instead="a plain close on the next bytes")
        self.connection.reset_on_data()

    def _when_drained(self, then: Callable[[], None]) -> None:
        self._drain = SendQueueDrain(
            self._endings.pacer,
            self.connection.transport,
            grace_us=self._endings.flush_grace_us,
            linger_us=self._endings.linger_us,
            on_empty=then,
            on_give_up=self._give_up,
        )

    def _give_up(self, lost_bytes: int) -> None:
        self.lost_bytes = lost_bytes
        abort(self.connection.transport)

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
