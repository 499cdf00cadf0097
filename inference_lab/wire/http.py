"""HTTP/1.1 as this server speaks it: Site and Channel with the limits and manners of docs/wire.md.

Private Twisted names used here, each guarded by tests/socket/test_twisted_internals.py:
`HTTPChannel._handlingRequest`, `_dataBuffer`, `_respondToBadRequestAndDisconnect`, `_waitingForTransport`
(twisted/web/http.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.web import http, server

from inference_lab.core.errors import too_slow
from inference_lab.wire.arrivals import Arrivals
from inference_lab.wire.bodies import Bodies
from inference_lab.wire.origins import Origins
from inference_lab.wire.recording import plain_ending
from inference_lab.wire.request import LabRequest
from inference_lab.wire.tally import Tally
from inference_lab.wire.transport import abort, buffered_bytes, tcp_transport, unsent_bytes
from inference_lab.wire.turns import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure
    from twisted.web.http_headers import Headers
    from twisted.web.resource import IResource

    from inference_lab.wire.endings import Endings
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.recording import Recorder
    from inference_lab.wire.transport import SendQueueDrain

PIPELINED_LIMIT_BYTES: Final = 65_536
"""What a client may send behind an unfinished response. Past it the connection is reset: a paused socket would hide
the client's departure, and a stall would never end."""

DISMISSAL_S: Final = 10
"""For how long the rest of a body is read and dropped once its request has been answered."""

MAX_BODIES_BYTES: Final = 2**28
"""What all bodies may be together, unless one alone may be larger or the options say otherwise."""

_LATE_HEAD: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b"
)

_LENGTH_DIGITS: Final = 640
"""What int() takes however low its limit is set (sys.int_info.str_digits_check_threshold)."""

_log: Final = Logger()


class LabChannel(http.HTTPChannel):
    """A connection that notices its client leaving whatever the client has pipelined, and loses no bytes unsaid."""

    site: LabSite
    transport: Any  # Twisted types it as ITransport only
    written_bytes = 0
    """Of all responses so far, their heads included."""
    _pipelined_bytes = 0
    _counted_bytes = 0  # of those in the site's `bodies`
    _is_arriving = False
    """Whether a byte of a request has come, and not yet all of it."""
    _seen_bytes: int | None = None
    """How much of the body had come when its time last began; None while it is the head's."""
    _is_stale = False
    _is_cut_off = False
    _watch: SendQueueDrain | None = None
    _dismissal: IDelayedCall | None = None
    _idle_slot: int | None = None

    def rawDataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """A body, or what the client pipelines behind an unfinished response: kept up to a limit."""
        if not self._handlingRequest:
            super().rawDataReceived(data)
            return
        if len(self._dataBuffer) <= 1:
            # A new response: the rest of the read that brought its request may be there.
            self._pipelined_bytes = sum(map(len, self._dataBuffer))
        self._dataBuffer.append(data)
        self._pipelined_bytes += len(data)
        is_too_much = self._pipelined_bytes > PIPELINED_LIMIT_BYTES
        if is_too_much and not self._is_stale:
            _log.warn(
                "{peer} pipelined more than {limit} bytes behind an unfinished response: reset",
                peer=self.getPeer(),
                limit=PIPELINED_LIMIT_BYTES,
            )
        if is_too_much or self._is_stale:
            self._is_cut_off = True
            abort(self.transport)

    def _count_pipelined(self) -> None:
        """Count what is pipelined among all bodies under way; no 503 can be said in front of the answer."""
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
        if data not in {b"", b"\r\n"}:  # the empty line that some clients send behind a body
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
        """Take on a stream, paused if the answer in front of it is still on its way.

        Twisted lets it begin; a plain connection pauses it at its first write, TLS, which has said so before, never.
        """
        super().registerProducer(producer, streaming)
        if self._waitingForTransport:
            producer.pauseProducing()

    def reset_on_data(self) -> None:
        """Meet whatever comes next with a reset; what has been pipelined already counts."""
        self._is_stale = True
        if any(self._dataBuffer):
            abort(self.transport)

    def requestDone(self, request: http.Request) -> None:  # noqa: N802 - Twisted's name
        """A response has been written completely: watch that the client takes it."""
        if isinstance(request, LabRequest) and request.recording is not None:
            request.recording.written()  # before the next one begins, which it may do in here
        if isinstance(request, LabRequest):
            request.let_go()
        self._let_go()
        if isinstance(request, LabRequest) and request.early:
            self._dismiss()  # Twisted would take the rest of the body for the next request
            return
        self._arrives(b"".join(self._dataBuffer))
        super().requestDone(request)
        if isinstance(request, LabRequest) and request.idle_ms is not None and not self.requests:
            pacer = self.site.endings.pacer
            self._idle_slot = pacer.at(pacer.now_us() + request.idle_ms * 1000, self._idle_too_long)
        if buffered_bytes(self.transport):  # what the kernel has taken it delivers without us
            self._watch_reader()

    def _idle_too_long(self) -> None:
        """What a server or a proxy with a short keep-alive does."""
        self._idle_slot = None
        super().timeoutConnection()

    def _stop_idling(self) -> None:
        if self._idle_slot is not None:
            self.site.endings.pacer.forget(self._idle_slot, self._idle_too_long)
            self._idle_slot = None

    def _watch_reader(self) -> None:
        if self._watch is None or self._watch.stopped:
            self._watch = self.site.watch(self.transport)

    def _dismiss(self) -> None:
        """Close our side, and for a while read and drop what comes.

        A client that writes its whole body first would otherwise meet a broken pipe, and never read the answer.
        """
        self.site.arrivals.end(self)
        self._dismissal = self.site.endings.pacer.clock.callLater(DISMISSAL_S, abort, self.transport)
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
        self.site.tally.connections += 1
        self.site.connections.add(self)
        self.site.arrivals.begin(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - Twisted's name
        """Leave no timer behind."""
        self.site.tally.connections -= 1
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


class LabSite(server.Site):
    """The site: `max_body_bytes` bounds a request's body; HTTP/2 is not offered, since it changes what a death is."""

    # In place of the wrapper that would negotiate HTTP/2, which is what Twisted types it as.
    protocol = LabChannel  # type: ignore[assignment]
    noisy = False
    requestFactory = LabRequest  # noqa: N815 - Twisted's name

    def __init__(  # noqa: PLR0913 - what bounds a site, each by its name
        self,
        resource: IResource,
        *,
        endings: Endings,
        max_body_bytes: int,
        max_bodies_bytes: int | None = None,
        request_timeout_us: int = 60_000_000,
        origins: Origins | None = None,
        recorder: Recorder | None = None,
        tally: Tally | None = None,
        **kwargs: Any,  # noqa: ANN401 - handed on to Twisted
    ) -> None:
        super().__init__(resource, parsePOSTFormSubmission=False, **kwargs)
        self.recorder = recorder
        self.tally = Tally() if tally is None else tally
        self.endings = endings
        self.max_body_bytes = max_body_bytes
        self.bodies = Bodies(
            max(MAX_BODIES_BYTES, max_body_bytes) if max_bodies_bytes is None else max_bodies_bytes
        )
        self.arrivals = Arrivals(endings.pacer, request_timeout_us)
        self.origins = Origins() if origins is None else origins
        self.closes_at_us: int | None = None
        """Once set (on the pacer's clock), every new request is refused as one that comes too late."""
        self.line = Line(endings.pacer)
        self.connections: set[LabChannel] = set()
        self._emptied: Deferred[None] | None = None

    @property
    def pacer(self) -> Pacer:
        """The site's deadlines."""
        return self.endings.pacer

    def watch(self, transport: Any) -> SendQueueDrain:  # noqa: ANN401 - Twisted types it as ITransport only
        """Reset a reader that takes nothing of what is there for it."""
        return self.endings.watch(transport)

    def seconds_left(self) -> int | None:
        """Until the server is gone, rounded up and at least 1; None while nothing is planned."""
        if self.closes_at_us is None:
            return None
        return max(1, -((self.endings.pacer.now_us() - self.closes_at_us) // 1_000_000))

    def reset_all(self) -> Deferred[None]:
        """Reset every connection there is, behind a closed port; fires once the last of them is gone."""
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
