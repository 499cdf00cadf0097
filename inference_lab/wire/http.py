"""HTTP/1.1 as this server speaks it: Site, Channel and Request with the limits and manners of docs/wire.md.

Private Twisted names used here, each guarded by tests/wire/test_twisted_internals.py:
`HTTPChannel._handlingRequest`, `_dataBuffer`, `_command`, `_path`, `_version`,
`_respondToBadRequestAndDisconnect` (twisted/web/http.py).
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.web import http, server
from twisted.web.http_headers import Headers

from inference_lab.errors import ApiError, body_too_large, draining, invalid_request, not_found
from inference_lab.wire.player import CLIENT_LEFT
from inference_lab.wire.recording import plain_ending
from inference_lab.wire.tally import NO_MODEL, Tally
from inference_lab.wire.transport import abort, buffered_bytes, lowest, unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure
    from twisted.web.resource import IResource

    from inference_lab.faults.events import Head
    from inference_lab.wire.drain import Drain
    from inference_lab.wire.endings import Endings
    from inference_lab.wire.recording import Recorder, Recording

PIPELINED_LIMIT_BYTES: Final = 65_536
"""What a client may send behind an unfinished response. Past it the connection is reset: a paused socket would hide
the client's departure, and a stall would never end."""

DISMISSAL_S: Final = 10
"""For how long the rest of a body is read and dropped once its request has been answered."""

# What Twisted's table has not, of the statuses that providers answer with: clients show the words in their exceptions.
_REASONS: Final = http.RESPONSES | {
    422: b"Unprocessable Entity",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    451: b"Unavailable For Legal Reasons",
}
_ANY_ORIGIN: Final = (b"access-control-allow-origin", b"*")
_HEAD_END: Final = b"Access-Control-Allow-Origin: *\r\n\r\n"
_CHUNKED_END: Final = b"Access-Control-Allow-Origin: *\r\nTransfer-Encoding: chunked\r\n\r\n"

_log: Final = Logger()


@lru_cache(maxsize=256)
def _lines_of(head: Head) -> bytes:
    """The header lines that a script's head asks for; heads are few, and most streams have the same one."""
    lines = [b"%b: %b\r\n" % (name.title(), value) for name, value in head.headers]
    if head.content_length is not None:
        lines.append(b"Content-Length: %d\r\n" % head.content_length)
    return b"".join(lines)


class LabRequest(server.Request):
    """A request whose body is held in memory up to the site's limit, and whose response may be a stream."""

    # Python 3.11 keeps one table of names for all objects of a class while there are no more than 30: Twisted has 29,
    # and a table of each object's own is a kilobyte more.
    __slots__ = (
        "_declared_too_large",
        "_head",
        "_is_processed",
        "body_too_large",
        "early",
        "idle_ms",
        "model",
        "recording",
        "streaming",
        "tally",
        "trigger",
    )
    channel: LabChannel
    defaultContentType = None  # every response sets its own, or has no body

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - handed on to Twisted
        super().__init__(*args, **kwargs)
        self.content: BytesIO = BytesIO()
        self.body_too_large = False
        self.early = False  # answered before its body was complete
        self.streaming = False
        self._head = b""  # of a stream, until it goes out
        self.idle_ms: int | None = None  # how long the connection may be idle behind this response
        self.recording: Recording | None = None
        self.tally: Tally = self.channel.site.tally
        self.model = NO_MODEL
        self.trigger = ""  # what answers, in a word
        self._is_processed = False
        self._declared_too_large = False

    # -- the request's body

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """The head is complete: refuse a body that announces itself as too large before it comes."""
        self._declared_too_large = length is not None and length > self.channel.site.max_body_bytes
        if self._declared_too_large:
            self._process_early()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep a piece of the body; once it passes the limit, judge the request without the rest."""
        if self.early:
            return
        if self.content.tell() + len(data) > self.channel.site.max_body_bytes:
            self.body_too_large = True
            self._process_early()
        else:
            self.content.write(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802 - Twisted's name
        """The body is complete: process the request, unless that has happened already."""
        if not self.early:
            super().requestReceived(command, path, version)

    def body(self) -> bytes:
        """The whole body, once: a stall may last for hours, and its prompt be long."""
        raw = self.content.read()
        self.content = BytesIO()
        return raw

    def _process_early(self) -> None:
        """Answer before the body has come; the channel reads and drops what still does."""
        channel = self.channel
        self.early = True
        self.requestHeaders.removeHeader(b"expect")  # no "100 Continue" behind an answer
        self.responseHeaders.setRawHeaders(b"connection", [b"close"])
        super().requestReceived(channel._command, channel._path, channel._version)  # noqa: SLF001

    # -- routing

    def process(self) -> None:
        """Refuse what no route has to decide, and what Klein would log a traceback for; then route."""
        self._is_processed = True
        recorder = self.channel.site.recorder
        if recorder is not None:
            self.recording = recorder.begin(self)
        error = self._unroutable()
        if error is None:
            super().process()
        else:
            if self.recording is not None:
                self.recording.tell(error=error.code)
            self.write(self.prepare_json(error.status, error.body(), error.headers))
            self.finish()

    def _unroutable(self) -> ApiError | None:
        if self._declared_too_large:
            return body_too_large(self.channel.site.max_body_bytes)
        left_s = self.channel.site.seconds_left()
        if left_s is not None:
            return draining(left_s)
        # Twisted would take the second slash as the path's first.
        if not _is_utf8(unquote_to_bytes(self.path)) or self.path.startswith(b"//"):
            return not_found(repr(self.path)[2:-1])
        if not _is_utf8(self.getHeader(b"host") or b""):
            return invalid_request("the Host header is not UTF-8")
        return None

    def connectionLost(self, reason: Failure) -> None:  # noqa: N802 - Twisted's name
        """The connection is gone; a stream that was under way has been reported when this returns."""
        super().connectionLost(reason)
        if self.streaming or self.finished or not self._is_processed:
            return
        if self.recording is not None:
            self.recording.end(None, CLIENT_LEFT, reason)
        self.count(CLIENT_LEFT)
        _log.info("{request} ended: client left", request=self, recording=self.recording)

    def count(self, ending: str) -> None:
        """The response is over."""
        self.tally.count(self.path, self.model.name, self.trigger, ending)

    def getRequestHostname(self) -> bytes:  # noqa: N802 - Twisted's name
        """The same for every request: no route depends on it, and Klein's router fails on a host it cannot encode."""
        return b"localhost"

    # -- the response

    def send_head(self, head: Head) -> None:
        """Begin a response: its head goes out with the first `send_chunks` or `send_raw`, which follow in this turn.

        In place of Twisted's own first write, which would decide the framing by itself, and look at each header of
        every stream again.
        """
        self.streaming = True
        self.startedWriting = 1
        self.idle_ms = head.idle_ms
        self.setResponseCode(head.status)
        self.chunked = int(head.chunked and self.clientproto == b"HTTP/1.1")
        lines = [b"%b %d %b\r\n" % (self.clientproto, head.status, _REASONS.get(head.status, b"Unknown"))]
        for name, values in self.responseHeaders.getAllRawHeaders():
            lines += [b"%b: %b\r\n" % (name, value) for value in values]
        lines.append(_lines_of(head))
        lines.append(_CHUNKED_END if self.chunked else _HEAD_END)
        self._head = b"".join(lines)
        # A stall may last for hours, and the headers are a tenth of its memory.
        self.requestHeaders = self.responseHeaders = Headers()

    def send_raw(self, data: bytes) -> int:
        """Write bytes as they are; answers their number."""
        size = len(data)
        if self._head:
            data = self._head + data
            self._head = b""
        channel = self.channel
        if data and channel is not None:
            channel.write(data)
        return size

    def send_chunks(self, frames: Sequence[bytes], *, last: bool = False) -> int:
        """Write each frame as one HTTP chunk (as it is to HTTP/1.0), all in one write; answers the bytes of chunks.

        `last` writes the end of the response with them, and leaves none for `finish` to write.
        """
        if not self.chunked:
            data = b"".join(frames)
        elif len(frames) == 1:  # the paced stream's case
            data = b"%x\r\n%b\r\n" % (len(frames[0]), frames[0])
        else:
            data = b"".join([b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames])
        size = len(data)
        if last and self.chunked:
            data += b"0\r\n\r\n"
            self.chunked = 0
        self.send_raw(data)
        return size

    def prepare_json(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
        """Set status and headers of a whole JSON response; answers `body`, which is to be written as it is."""
        return self.prepare(status, body, b"application/json", headers)

    def prepare(
        self, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """As `prepare_json`, for a body of any type."""
        self.setResponseCode(status)
        self.responseHeaders.addRawHeader(*_ANY_ORIGIN)
        for name, value in headers:
            self.setHeader(name, value)
        if status != http.NO_CONTENT:
            self.setHeader(b"content-type", content_type)
            self.setHeader(b"content-length", b"%d" % len(body))
        return body

    def __repr__(self) -> str:
        """Method and path, cut so that a log line stays a line; control characters come escaped."""
        line = repr(b"%b %b" % (self.method, self.uri))[2:-1]
        return line if len(line) <= 200 else line[:200] + "…"


class LabChannel(http.HTTPChannel):
    """A connection that notices its client leaving whatever the client has pipelined, and loses no bytes unsaid."""

    site: LabSite
    transport: Any  # Twisted types it as ITransport only
    written_bytes = 0
    """Of all responses so far, their heads included."""
    _pipelined_bytes = 0
    _is_stale = False
    _watch: Drain | None = None
    _dismissal: IDelayedCall | None = None
    _idle_slot: int | None = None

    def rawDataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """A body, or what the client pipelines behind an unfinished response: kept up to a limit."""
        if not self._handlingRequest:
            super().rawDataReceived(data)
            return
        if (
            len(self._dataBuffer) <= 1
        ):  # a new response: the rest of the read that brought its request may be there
            self._pipelined_bytes = sum(map(len, self._dataBuffer))
        self._dataBuffer.append(data)
        self._pipelined_bytes += len(data)
        if self._is_stale:
            abort(self.transport)
        elif self._pipelined_bytes > PIPELINED_LIMIT_BYTES:
            _log.warn(
                "{peer} pipelined more than {limit} bytes behind an unfinished response: reset",
                peer=self.getPeer(),
                limit=PIPELINED_LIMIT_BYTES,
            )
            abort(self.transport)

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802 - Twisted's name
        """One header line. Twisted passes over `Transfer-Encoding: identity`, which a proxy may read otherwise."""
        name, _, value = line.partition(b":")
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Bytes of requests, until the connection is dismissed."""
        self._is_busy()
        if self._dismissal is None:
            super().dataReceived(data)

    def write(self, data: bytes) -> None:
        """Bytes of a response."""
        self.written_bytes += len(data)
        self.transport.write(data)

    def writeSequence(self, iovec: Sequence[bytes]) -> None:  # noqa: N802 - Twisted's name
        """Bytes of a response in pieces."""
        self.write(b"".join(iovec))

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:  # noqa: N802
        """The head of a whole answer. Twisted's own goes to the transport, past the count."""
        lines = [b"%b %b %b\r\n" % (version, code, reason)]
        for name, values in headers.getAllRawHeaders():
            lines += [b"%b: %b\r\n" % (name, value) for value in values]
        self.writeSequence([*lines, b"\r\n"])

    def reset_on_data(self) -> None:
        """Meet whatever comes next with a reset; what has been pipelined already counts."""
        self._is_stale = True
        if any(self._dataBuffer):
            abort(self.transport)

    def requestDone(self, request: http.Request) -> None:  # noqa: N802 - Twisted's name
        """A response has been written completely: watch that the client takes it."""
        if isinstance(request, LabRequest) and request.recording is not None:
            request.recording.written()  # before the next one begins, which it may do in here
        if isinstance(request, LabRequest) and request.early:
            self._dismiss()  # Twisted would take the rest of the body for the next request
            return
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

    def _is_busy(self) -> None:
        if self._idle_slot is not None:
            self.site.endings.pacer.forget(self._idle_slot, self._idle_too_long)
            self._idle_slot = None

    def _watch_reader(self) -> None:
        if self._watch is None or self._watch.stopped:
            self._watch = self.site.endings.watch(self.transport)

    def _dismiss(self) -> None:
        """Close our side, and for a while read and drop what comes.

        A client that writes its whole body first would otherwise meet a broken pipe, and never read the answer.
        """
        self._dismissal = self.site.endings.pacer.clock.callLater(DISMISSAL_S, abort, self.transport)
        if lowest(self.transport) is self.transport:
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

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - Twisted's name
        """Leave no timer behind."""
        self.site.tally.connections -= 1
        self.site.gone(self)
        self._is_busy()
        if self._watch is not None:
            self._watch.stop()
        if self._dismissal is not None and self._dismissal.active():
            self._dismissal.cancel()
        super().connectionLost(reason)
        self.requests.clear()  # their recordings point back at us, and the collector comes seldom


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class LabSite(server.Site):
    """The site: `max_body_bytes` bounds a request's body; HTTP/2 is not offered, since it changes what a death is."""

    # In place of the wrapper that would negotiate HTTP/2, which is what Twisted types it as.
    protocol = LabChannel  # type: ignore[assignment]
    noisy = False
    requestFactory = LabRequest  # noqa: N815 - Twisted's name

    def __init__(
        self,
        resource: IResource,
        *,
        endings: Endings,
        max_body_bytes: int,
        recorder: Recorder | None = None,
        tally: Tally | None = None,
        **kwargs: Any,  # noqa: ANN401 - handed on to Twisted
    ) -> None:
        super().__init__(resource, parsePOSTFormSubmission=False, **kwargs)
        self.recorder = recorder
        self.tally = Tally() if tally is None else tally
        self.endings = endings
        self.max_body_bytes = max_body_bytes
        self.closes_at_us: int | None = None
        """Once set (on the pacer's clock), every new request is refused as one that comes too late."""
        self.connections: set[LabChannel] = set()
        self._emptied: Deferred[None] | None = None

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
