"""HTTP/1.1 as this server speaks it: Site and Channel with the limits and manners of docs/wire.md.

Private Twisted names used here, each guarded by tests/socket/test_twisted_internals.py:
`HTTPChannel._handlingRequest`, `_dataBuffer`, `_respondToBadRequestAndDisconnect`, `_command`, `_path`, `_version`
(twisted/web/http.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.web import http, server

from inference_lab.core.errors import too_slow
from inference_lab.wire.h1.connection import Connection
from inference_lab.wire.h1.response import H1Response
from inference_lab.wire.recording import plain_ending
from inference_lab.wire.request import LabRequest
from inference_lab.wire.site import Site
from inference_lab.wire.transport import abort, buffered_bytes, tcp_transport, unsent_bytes

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure
    from twisted.web.resource import IResource

    from inference_lab.wire.h1.endings import Endings
    from inference_lab.wire.transport import SendQueueDrain

PIPELINED_LIMIT_BYTES: Final = 65_536
"""What a client may send behind an unfinished response. Past it the connection is reset: a paused socket would hide
the client's departure, and a stall would never end."""

DISMISSAL_S: Final = 10
"""For how long the rest of a body is read and dropped once its request has been answered."""

_LATE_HEAD: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b"
)

_LENGTH_DIGITS: Final = 640
"""What int() takes however low its limit is set (sys.int_info.str_digits_check_threshold)."""

_log: Final = Logger()


class LabChannel(Connection):
    """A connection that notices its client leaving whatever the client has pipelined, and loses no bytes unsaid."""

    site: LabSite
    _pipelined_bytes = 0
    _counted_bytes = 0  # of those in the site's `bodies`
    _is_arriving = False
    """Whether a byte of a request has come, and not yet all of it."""
    _seen_bytes: int | None = None
    """How much of the body had come when its time last began; None while it is the head's."""
    _is_cut_off = False
    _watch: SendQueueDrain | None = None
    _dismissal: IDelayedCall | None = None
    _idle_slot: int | None = None

    def rawDataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """A body, or what the client pipelines after an unfinished response: kept up to a limit."""
        if not self._handlingRequest:
            super().rawDataReceived(data)
            return
        if len(self._dataBuffer) <= 1:
            # A new response: the rest of the read that brought its request may be there.
            self._pipelined_bytes = sum(map(len, self._dataBuffer))
        self._dataBuffer.append(data)
        self._pipelined_bytes += len(data)
        is_too_much = self._pipelined_bytes > PIPELINED_LIMIT_BYTES
        if is_too_much and not self.is_stale:
            _log.warn(
                "{peer} pipelined more than {limit} bytes behind an unfinished response: reset",
                peer=self.getPeer(),
                limit=PIPELINED_LIMIT_BYTES,
            )
        if is_too_much or self.is_stale:
            self._is_cut_off = True
            abort(self.transport)

    def respond(self, request: LabRequest) -> H1Response:
        """The response to a request that has come on this connection."""
        return H1Response(self, request, self.site.endings)

    def receive_early(self, request: LabRequest) -> None:
        """Take a request as received before its body has come."""
        request.receive(self._command, self._path, self._version)

    def _count_pipelined(self) -> None:
        """Count what is pipelined among all bodies under way; no 503 can be said before the answer."""
        if len(self._dataBuffer) == 1:  # the rest of the read that brought the request
            self._pipelined_bytes = len(self._dataBuffer[0])
        bodies = self.site.bodies
        if self._is_cut_off or self._pipelined_bytes <= self._counted_bytes:
            return
        if bodies.take(self._pipelined_bytes - self._counted_bytes):
            self._counted_bytes = self._pipelined_bytes
            return
        _log.warn(
            "{peer} pipelined more than --max-bodies-bytes {limit} leaves room for: reset",
            peer=self.getPeer(),
            limit=bodies.limit_bytes,
        )
        self._is_cut_off = True
        abort(self.transport)

    def _let_go(self) -> None:
        self.site.bodies.give_back(self._counted_bytes)
        self._counted_bytes = self._pipelined_bytes = 0

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802 - Twisted's name
        """One header line, refused where Twisted would pass over it or fail at it.

        It passes over `Transfer-Encoding: identity`, which a proxy may read otherwise, and raises at a length of more
        digits than Python takes for an integer.
        """
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        is_unread = name == b"transfer-encoding" and value.lower() != b"chunked"
        if is_unread or (name == b"content-length" and len(value) > _LENGTH_DIGITS):
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Bytes of requests, until the connection is dismissed, cut off or closed: TLS has records left even then."""
        self._stop_idling()
        if self._dismissal is None and not (self._is_cut_off or self.transport.disconnecting):
            if not (self._is_arriving or self._handlingRequest):
                self._arrives(data)
            super().dataReceived(data)
            if self._handlingRequest and any(self._dataBuffer):
                self._count_pipelined()

    def _arrives(self, data: bytes) -> None:
        if data not in {b"", b"\r\n"}:  # the empty line that some clients send after a body
            self._is_arriving = True
            self.site.arrivals.begin(self)

    def allHeadersReceived(self) -> None:  # noqa: N802 - Twisted's name
        """The head is there: the body has a time of its own."""
        super().allHeadersReceived()
        if self.length != 0 and self._dismissal is None:
            self._seen_bytes = 0
            self.site.arrivals.renew(self)

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        """The request is there."""
        self._is_arriving = False
        self._seen_bytes = None
        self.site.arrivals.end(self)
        super().allContentReceived()

    def arrives_too_slowly(self) -> None:
        """The time for a head has passed, TLS handshake included, or for some more of a body."""
        arrivals = self.site.arrivals
        if self.transport.disconnecting:
            return
        if self.written_bytes and unsent_bytes(self.transport):  # it is we who have not been read
            self._watch_reader()
            arrivals.renew(self)
        elif not self._is_arriving:
            super().timeoutConnection()
        elif self._seen_bytes is None:
            error = too_slow("the request's head", arrivals.timeout_us)
            _log.info("{peer} 408: {error}", peer=self.getPeer(), error=error.message)
            self.write(_LATE_HEAD % (len(error.body()), error.body()))
            self._dismiss()
        else:
            request = self.requests[-1]
            if request.body_bytes - self._seen_bytes >= arrivals.body_bytes:
                self._seen_bytes = request.body_bytes
                arrivals.renew(self)
            elif not request.early:
                what = f"the request's body, or its next {arrivals.body_bytes} bytes,"
                request.refuse_early(too_slow(what, arrivals.timeout_us))

    def requestDone(self, request: http.Request) -> None:  # noqa: N802 - Twisted's name
        """A response has been written completely: watch that the client takes it."""
        assert isinstance(request, LabRequest)  # noqa: S101 - the site's factory makes them
        response = request.response
        assert isinstance(response, H1Response)  # noqa: S101 - made in `respond`
        response.over()  # before the next one begins, which it may do in here
        request.let_go()
        self._let_go()
        if request.early:
            self._dismiss()  # Twisted would take the rest of the body for the next request
            return
        self._arrives(b"".join(self._dataBuffer))
        super().requestDone(request)
        if response.idle_ms is not None and not self.requests:
            pacer = self.site.pacer
            self._idle_slot = pacer.at(pacer.now_us() + response.idle_ms * 1000, self._idle_too_long)
        if buffered_bytes(self.transport):  # what the kernel has taken it delivers without us
            self._watch_reader()

    def _idle_too_long(self) -> None:
        """What a server or a proxy with a short keep-alive does."""
        self._idle_slot = None
        super().timeoutConnection()

    def _stop_idling(self) -> None:
        if self._idle_slot is not None:
            self.site.pacer.forget(self._idle_slot, self._idle_too_long)
            self._idle_slot = None

    def _watch_reader(self) -> None:
        if self._watch is None or self._watch.stopped:
            self._watch = self.site.endings.watch(self.transport)

    def _dismiss(self) -> None:
        """Close our side, and for a while read and drop what comes.

        A client that writes its whole body first would otherwise meet a broken pipe, and never read the answer.
        """
        self.site.arrivals.end(self)
        self._dismissal = self.site.pacer.clock.callLater(DISMISSAL_S, abort, self.transport)
        if tcp_transport(self.transport) is self.transport:
            self.transport.loseWriteConnection()
        else:  # TLS closes its own writing side first, and goes on reading until the peer does the same
            self.loseConnection()

    def timeoutConnection(self) -> None:  # noqa: N802 - Twisted's name
        """The client has been idle; close, unless a response is still under way to it, which has its own patience."""
        if unsent_bytes(self.transport):
            self._watch_reader()
            self.setTimeout(self.timeOut)
        else:
            super().timeoutConnection()

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        """Count the connection, and keep it in reach."""
        super().connectionMade()
        self.site.counters.connections += 1
        self.site.connections.add(self)
        self.site.arrivals.begin(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - Twisted's name
        """Leave no timer after."""
        self.site.counters.connections -= 1
        self._let_go()
        self.site.arrivals.end(self)
        self.site.gone(self)
        self._stop_idling()
        if self._watch is not None:
            self._watch.stop()
        if self._dismissal is not None and self._dismissal.active():
            self._dismissal.cancel()
        super().connectionLost(reason)
        self.requests.clear()  # their recordings point back at us, and the collector comes seldom


class LabSite(Site, server.Site):
    """The site, whose `limits` are `Site`'s; HTTP/2 is not offered, since it changes what a death is."""

    # In place of the wrapper that would negotiate HTTP/2, which is what Twisted types it as.
    protocol = LabChannel  # type: ignore[assignment]
    noisy = False
    requestFactory = LabRequest  # noqa: N815 - Twisted's name

    def __init__(
        self,
        resource: IResource,
        *,
        endings: Endings,
        reactor: Any = None,  # noqa: ANN401 - Twisted does not type its reactor
        **limits: Any,  # noqa: ANN401 - typed there
    ) -> None:
        server.Site.__init__(self, resource, parsePOSTFormSubmission=False, reactor=reactor)
        Site.__init__(self, endings.pacer, **limits)
        self.endings = endings
        self.connections: set[LabChannel] = set()
        self._emptied: Deferred[None] | None = None

    def reset_all(self) -> Deferred[None]:
        """Reset every connection there is, after a closed port; fires once the last of them is gone."""
        self._emptied = emptied = Deferred[None]()
        for channel in list(self.connections):
            abort(channel.transport)
        self._look()
        return emptied

    def gone(self, channel: LabChannel) -> None:
        """A connection has ended."""
        self.connections.discard(channel)
        if not self.connections:
            self.arrivals.stop()
        self._look()

    def _look(self) -> None:
        if self._emptied is not None and not self.connections:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def acceptableProtocols(self) -> list[bytes]:  # noqa: N802 - Twisted's name
        """What TLS offers in ALPN."""
        return [b"http/1.1"]

    def log(self, request: http.Request) -> None:
        """One line per whole response; a stream's line is written where its ending is known."""
        if isinstance(request, LabRequest) and not request.streaming:
            recording = request.recording
            if recording is not None:
                recording.end(request.code, None)
            request.count(plain_ending(request.code))
            _log.info("{request} {status}", request=request, status=request.code, recording=recording)
