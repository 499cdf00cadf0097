"""A request of ours, whatever HTTP it came by: its body within limits, its way to a route, a whole answer's head."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from twisted.logger import Logger
from twisted.web import http, server

from inference_lab.core.apis.table import api_at
from inference_lab.core.errors import (
    ApiError,
    bodies_too_large,
    body_too_large,
    draining,
    invalid_request,
    not_found,
)
from inference_lab.core.identity import response_digits
from inference_lab.core.journal.row import Unplanned
from inference_lab.wire.counters import NO_MODEL
from inference_lab.wire.origins import is_guarded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.python.failure import Failure

    from inference_lab.wire.recording import Recording
    from inference_lab.wire.response import Response
    from inference_lab.wire.site import Site

_ANY_READER: Final = (("access-control-allow-origin", "*"),)
"""Whoever wrote the page that asks may read the answer."""
_ABSOLUTE: Final = re.compile(rb"(?i:https?)://[^/?#]+((?:[/?].*)?)", re.DOTALL)
_SHOWN_TARGET: Final = 60

_log: Final = Logger()


class LabRequest(server.Request):
    """A request whose body is held in memory up to the site's limit, and whose response may be a stream."""

    # Python 3.11 keeps one table of names for all objects of a class while there are no more than 30: Twisted has 29,
    # and a table of each object's own is a kilobyte more.
    __slots__ = (
        "_counted_bytes", "_is_processed", "_reader", "_refusal", "body_bytes", "body_too_large",
        "early", "model", "recording", "response", "seen", "streaming", "trigger",
    )  # fmt: skip
    channel: Any  # what it came by; everybody else asks its `response`
    site: Site  # type: ignore[assignment] # what Twisted types as its own
    response: Response
    """Made when it is processed."""
    defaultContentType = None  # every response sets its own, or has no body

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - handed on to Twisted
        super().__init__(*args, **kwargs)
        self.content: BytesIO = BytesIO()
        self.body_too_large = False
        self.early = False  # answered before its body was complete
        self.streaming = False
        self.recording: Recording | None = None
        self.site = self.channel.site
        self.model = NO_MODEL
        self.trigger = ""  # what answers, in a word
        self.seen = (
            b""  # the body, once it has been read, until an answer is decided: an error's id is made of it
        )
        self._is_processed = False
        self._refusal: ApiError | None = None
        self._reader: tuple[tuple[str, str], ...] = _ANY_READER
        self.body_bytes = 0
        """Of the body so far."""
        self._counted_bytes = 0  # of those in the site's `bodies`

    # -- the request's body

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """The head is complete: refuse a body that announces itself as too large before it comes."""
        site = self.site
        if length is not None and length > site.max_body_bytes:
            self.refuse_early(body_too_large(site.max_body_bytes))
        elif length:
            self._make_room(length)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep a piece of the body; once it passes the limit, judge the request without the rest."""
        if self.early:
            return
        self.body_bytes += len(data)
        if self.body_bytes > self.site.max_body_bytes:
            self.body_too_large = True
            self._process_early()
        elif self._make_room(self.body_bytes):
            self.content.write(data)

    def _make_room(self, size: int) -> bool:
        """Count a body of `size` bytes among all that are under way; False where that is too much, and refused."""
        bodies = self.site.bodies
        if size > self._counted_bytes:
            if not bodies.take(size - self._counted_bytes):
                self.refuse_early(bodies_too_large(bodies.limit_bytes))
                return False
            self._counted_bytes = size
        return True

    def let_go(self) -> None:
        """The body is held no more."""
        if self._counted_bytes:
            self.site.bodies.give_back(self._counted_bytes)
            self._counted_bytes = 0

    def refuse_early(self, error: ApiError) -> None:
        """Answer with an error before the body has come."""
        self._refusal = error
        self._process_early()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802 - Twisted's name
        """The body is complete: process the request, unless that has happened already."""
        if not self.early:
            self.receive(command, path, version)

    def receive(self, command: bytes, path: bytes, version: bytes) -> None:
        """Process the request."""
        super().requestReceived(command, _origin_form(path), version)

    def body(self) -> bytes:
        """The whole body, once: a stall may last for hours, and its prompt be long."""
        raw = self.content.read()
        self.content = BytesIO()
        return raw

    def _process_early(self) -> None:
        """Answer before the body has come; the channel reads and drops what still does."""
        self.early = True
        self.requestHeaders.removeHeader(b"expect")  # no "100 Continue" after an answer
        self.responseHeaders.setRawHeaders(b"connection", [b"close"])
        self.channel.receive_early(self)

    # -- routing

    def process(self) -> None:
        """Begin the request's recording, and answer it, when its turn has come if it is one of many."""
        self._is_processed = True
        site = self.site
        self.response = self.channel.respond(self)
        if site.recorder is not None:
            self.recording = site.recorder.begin(self, self.response)
        if self.method == b"POST" and not self.early:
            site.line.enter(self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        """Refuse what no route has to decide, and what Klein would log a traceback for; then route."""
        if self.has_left:
            return
        error = self._unroutable()
        if error is None:
            if self.path == b"*":
                self.path = b"/"  # Twisted would answer itself, without what our own preflights have
            super().process()
        else:
            self.write(self.refuse(error))
            self.finish()

    def _unroutable(self) -> ApiError | None:
        if self._refusal is not None:
            return self._refusal
        left_s = self.site.seconds_left()
        if left_s is not None:
            return draining(left_s)
        # Twisted would route by what follows the first byte, whatever that is.
        if not self.path.startswith(b"/") and (self.method, self.path) != (b"OPTIONS", b"*"):
            target = repr(self.uri[:_SHOWN_TARGET])[1:]
            return invalid_request(f"the request target is {target}, expected /PATH or http://HOST/PATH")
        # Twisted would take the second slash as the path's first.
        path = unquote_to_bytes(self.path)
        if not _is_utf8(path) or self.path.startswith(b"//"):
            return not_found(repr(self.path)[2:-1])
        error = self._host_refusal()
        if error is not None or not is_guarded(path):
            return error
        found = self.requestHeaders.getRawHeaders
        origins = found(b"origin", [])
        error = self.site.origins.refusal(origins, found(b"host", []), self.getHost())
        self._reader = () if error is not None else self.site.origins.headers(origins)
        return error

    def _host_refusal(self) -> ApiError | None:
        """What RFC 9112 section 3.2 refuses; probes of proxies, which ask for `/`, may leave the host out."""
        hosts = self.requestHeaders.getRawHeaders(b"host") or ()
        if len(hosts) > 1:
            return invalid_request("more than one Host header")
        if not hosts and self.clientproto == b"HTTP/1.1" and self.path not in {b"/", b"*"}:
            return invalid_request("no Host header, which HTTP/1.1 needs")
        if not all(map(_is_utf8, hosts)):
            return invalid_request("the Host header is not UTF-8")
        return None

    def connectionLost(self, reason: Failure) -> None:  # noqa: N802 - Twisted's name
        """The connection is gone; a stream that was under way has been reported when this returns."""
        self.let_go()
        super().connectionLost(reason)
        if self._is_processed:
            self.response.over()
        if self.streaming or self.finished or not self._is_processed:
            return
        if self.recording is not None:
            self.recording.end(None, Unplanned.CLIENT_LEFT, reason)
        self.count(Unplanned.CLIENT_LEFT)
        _log.info("{request} ended: client left", request=self, recording=self.recording)

    def count(self, ending: str) -> None:
        """The response is over."""
        self.site.counters.count(self.path, self.model.name, self.trigger, ending)

    def getRequestHostname(self) -> bytes:  # noqa: N802 - Twisted's name
        """The same for every request: no route depends on it, and Klein's router fails on a host it cannot encode."""
        return b"localhost"

    # -- the response

    @property
    def has_left(self) -> bool:
        """Whether its client is gone, or has been answered."""
        return not self.channel  # which is Twisted's None then

    @property
    def has_chunks(self) -> bool:
        """Whether the client speaks HTTP/1.1; on 1.0 a response ends with its connection."""
        return bool(self.clientproto == b"HTTP/1.1")

    def prepare_json(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
        """Set status and headers of a whole JSON response; answers `body`, which is to be written as it is."""
        return self.prepare(status, body, b"application/json", headers)

    def prepare(
        self, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """As `prepare_json`, for a body of any type."""
        self.setResponseCode(status)
        for name, value in (*self._reader, *headers):
            self.setHeader(name, value)
        if status != http.NO_CONTENT:
            self.setHeader(b"content-type", content_type)
            self.setHeader(b"content-length", b"%d" % len(body))
        return body

    def prepare_json_pieces(self) -> None:
        """As `prepare_json`, for a body whose length is known when its last piece is."""
        self.prepare_json(http.OK, b"")
        self.responseHeaders.removeHeader(b"content-length")

    def refuse(self, error: ApiError) -> bytes:
        """As `prepare_json`, for an error. Its row forgets how it was to end, and hears of an unread body."""
        if self.recording is not None:
            self.recording.add(error=error.code, ends_well=False, ending_asked=None)
            self.recording.tell_wait((name.encode(), value.encode()) for name, value in error.headers)
            raw = self.body()
            if self.early:
                self.recording.add(body_bytes=None)
            elif raw:
                self.recording.tell_body(raw)
        body = api_at(self.path).error(error, self._digits())
        return self.prepare_json(error.status, body, (*error.headers, *self.api_headers()))

    def api_headers(self) -> tuple[tuple[str, str], ...]:
        """What the API of the path adds to an answer that nobody has decided."""
        return texts_of(api_at(self.path).headers(self._digits()))

    def _digits(self) -> str:
        """Those of the ids of an answer that no fault has made."""
        named = b", ".join(self.requestHeaders.getRawHeaders(b"x-request-id") or ())
        return response_digits(self.path.decode("utf-8", "backslashreplace"), self.seen, "", named)

    def __repr__(self) -> str:
        """Method and path, cut so that a log line stays a line; control characters come escaped."""
        line = repr(b"%b %b" % (self.method, self.uri))[2:-1]
        return line if len(line) <= 200 else line[:200] + "…"


def texts_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Headers as texts."""
    return tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in headers)


def _origin_form(target: bytes) -> bytes:
    """A target without the scheme and host of the absolute form, in which a client asks that takes us for its proxy."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    rest = absolute[1]
    return rest if rest.startswith(b"/") else b"/" + rest


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
