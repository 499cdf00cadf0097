"""A response over HTTP/1: its head, its body as the transfer coding wants it, and what became of both."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twisted.web import http
from twisted.web.http_headers import Headers

from inference_lab.core.stream import chunks
from inference_lab.core.stream.events import Trailers
from inference_lab.wire.h1.endings import TcpEnding
from inference_lab.wire.transport import (
    abort,
    buffered_bytes,
    forget_unsent,
    is_gone,
    lost_to,
    unsent_bytes,
    unsent_now,
    watch_unsent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twisted.internet.interfaces import IPushProducer
    from twisted.python.failure import Failure

    from inference_lab.core.faults.death import Close
    from inference_lab.core.journal.row import Peer
    from inference_lab.core.stream.events import Head, Special
    from inference_lab.wire.h1.connection import Connection
    from inference_lab.wire.h1.endings import Endings
    from inference_lab.wire.transport import SendQueueDrain

# What Twisted's table has not, of the statuses that providers answer with: clients show the words in their exceptions.
_REASONS: Final = http.RESPONSES | {
    422: b"Unprocessable Entity",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    451: b"Unavailable For Legal Reasons",
}
_HEAD_END: Final = b"Access-Control-Allow-Origin: *\r\n\r\n"
_CHUNKED_END: Final = b"Access-Control-Allow-Origin: *\r\nTransfer-Encoding: chunked\r\n\r\n"


@lru_cache(maxsize=256)
def _lines_of(head: Head, *, closing: bool) -> bytes:
    """The header lines that a script's head asks for; heads are few, and most streams have the same one.

    `closing`: the connection ends with the response, whatever the head says about it.
    """
    named = [line for line in head.headers if not (closing and line[0] == b"connection")]
    if closing or head.closes:
        named.append((b"connection", b"close"))
    lines = [b"%b: %b\r\n" % (name.title(), value) for name, value in named]
    if head.content_length is not None:
        lines.append(b"Content-Length: %d\r\n" % head.content_length)
    return b"".join(lines)


def _as_it_is(data: bytes) -> bytes:
    return data


class H1Response(TcpEnding):
    """See `Response`: the one to `request` on `connection`."""

    __slots__ = ("_before", "_head", "_in_chunks", "_others", "_until", "idle_ms", "spell", "write")

    def __init__(self, connection: Connection, request: http.Request, endings: Endings) -> None:
        super().__init__(connection, request, endings)
        self.write: Callable[[bytes], None] = connection.write
        self.spell: Callable[[bytes], bytes] = _as_it_is
        self.idle_ms: int | None = None
        """For how long the connection may be idle after it."""
        self._before = connection.written_bytes
        self._until: int | None = None  # what the connection had written with its last byte; None before
        self._others = 0  # of these bytes, those of its head and its ordinary end
        self._head = b""  # until it goes out
        self._in_chunks = False

    def begin(self, reader: IPushProducer) -> None:
        """See `Response.begin`."""
        if self._request is not None:
            self._request.registerProducer(reader, True)

    def head(self, head: Head) -> None:
        """See `Response.head`.

        In place of Twisted's own first write, which would decide the framing by itself, and look at each header of
        every stream again.
        """
        request = self._request
        if request is None:
            return
        has_chunks = request.clientproto == b"HTTP/1.1"
        request.startedWriting = 1
        request.setResponseCode(head.status)
        self.idle_ms = head.idle_ms
        self._in_chunks = has_chunks and head.framing == "stream"
        if self._in_chunks:
            self.spell = chunks.chunk
        lines = [b"%b %d %b\r\n" % (request.clientproto, head.status, _REASONS.get(head.status, b"Unknown"))]
        for name, values in request.responseHeaders.getAllRawHeaders():
            lines += [b"%b: %b\r\n" % (name, value) for value in values]
        lines.append(_lines_of(head, closing=not has_chunks))
        lines.append(_CHUNKED_END if self._in_chunks else _HEAD_END)
        self._head = b"".join(lines)
        # A stall may last for hours, and the headers are a tenth of its memory.
        request.requestHeaders = request.responseHeaders = Headers()

    def spell_all(self, frames: Sequence[bytes]) -> list[bytes]:
        """See `Response.spell_all`."""
        return chunks.chunks(frames) if self._in_chunks else list(frames)

    def special(self, event: Special) -> Iterator[chunks.Spelled]:
        """See `Response.special`."""
        in_chunks = self._in_chunks
        if isinstance(event, Trailers):
            self._in_chunks = False
        return chunks.spelled(event, in_chunks=in_chunks)

    def end_before(self, close: Close) -> bytes:
        """See `Response.end_before`."""
        end = chunks.end_before(close, in_chunks=self._in_chunks)
        if end:
            self._in_chunks = False
        return end

    def send(self, data: bytes, *, last: bool = False) -> None:
        """See `Response.send`."""
        if self._head:
            self._others += len(self._head)
            data = self._head + data
            self._head = b""
        if last and self._in_chunks:
            self._others += len(chunks.END)
            data += chunks.END
        if data:
            self.write(data)

    def over(self) -> None:
        """See `Response.over`."""
        super().over()
        if self._until is None:
            self._until = self.connection.written_bytes

    def cut(self) -> None:
        """See `Response.cut`."""
        abort(self.connection.transport)

    def watch_reader(self) -> SendQueueDrain:
        """See `Response.watch_reader`."""
        return self._endings.watch(self.connection.transport)

    @property
    def body_bytes(self) -> int:
        """See `Response.body_bytes`."""
        until = self.connection.written_bytes if self._until is None else self._until
        return until - self._before - self._others

    def unsent_bytes(self) -> int:
        """See `Response.unsent_bytes`."""
        return unsent_bytes(self.connection.transport)

    def held_bytes(self) -> int:
        """See `Response.held_bytes`."""
        return buffered_bytes(self.connection.transport)

    def peer(self, reason: Failure) -> Peer:
        """See `Response.peer`."""
        return lost_to(self.connection.transport, reason)

    def facts(self) -> dict[str, int]:
        """See `Response.facts`."""
        # What is unsent is the connection's last bytes, and those may be of responses after this one.
        until = self._until or 0
        written = until - self._before
        later = self.connection.written_bytes - until
        unsent = max(0, min(unsent_now(self.connection.transport) - later, written))
        return {"bytes_written": written, "bytes_acknowledged": written - unsent, "bytes_unsent": unsent}

    def is_gone(self) -> bool:
        """See `Response.is_gone`."""
        return is_gone(self.connection.transport)

    def watch_unsent(self, *, wanted: bool) -> None:
        """See `Response.watch_unsent`."""
        (watch_unsent if wanted else forget_unsent)(self.connection.transport)
