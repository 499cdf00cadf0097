"""Transfer coding as HTTP/1 spells it: chunks, whole and broken, for what a script only names.

Pure, and used by whoever shows a script as bytes: the transport, the preview, tests. HTTP/1.0 has no chunks; there the
same events are their data, and what only chunks can show is refused before (`faults/applies.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from inference_lab.core.faults.death import Close
from inference_lab.core.stream.events import NOTHING, Break, Delivered, Head, Long, Stub, Trailers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from inference_lab.core.stream.events import Event, Special

END: Final = b"0\r\n\r\n"
_BLOCK_BYTES: Final = 65_536
_TORN_SIZE: Final = b"200\r\n"
"""What a chunk that is broken off says that it would be."""
_BREAKS: Final = {
    "bad_size": b"zz\r\n",
    "response_inside": (
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n502 Bad Gateway"
    ),
}
_AFTER_END: Final = (Close.TERMINATOR_RST, Close.STALE)
"""The closes that come after a whole body, whose end is bytes of their own."""


class Spelled(NamedTuple):
    """Bytes to put on the wire as they are, and what has been said with them."""

    data: bytes
    said: Delivered = NOTHING


Shown: TypeAlias = "Event | Spelled"


def chunk(data: bytes) -> bytes:
    """A chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunks(frames: Sequence[bytes]) -> list[bytes]:
    """Each as a chunk."""
    return [b"%x\r\n%b\r\n" % (len(data), data) for data in frames]


def spelled(event: Special, *, in_chunks: bool) -> Iterator[Spelled]:
    """What only names bytes, as these bytes, in bounded pieces."""
    if isinstance(event, Long):
        yield from _long(event, in_chunks=in_chunks)
    elif isinstance(event, Trailers):
        lines = [b"%b: %b\r\n" % field for field in event.fields]
        yield Spelled(b"0\r\n%b\r\n" % b"".join(lines))
    elif isinstance(event, Stub):
        yield Spelled(b"0\r\n" if event.kind == "terminator" else _TORN_SIZE + event.data)
    elif event.kind == "no_crlf":
        yield Spelled(b"%x\r\n%b" % (len(event.data), event.data), event.said)
    else:
        yield Spelled(_BREAKS.get(event.kind, event.data), event.said)


def _long(event: Long, *, in_chunks: bool) -> Iterator[Spelled]:
    if in_chunks:
        size = len(event.prefix) + event.blanks + len(event.suffix)
        yield Spelled(b"%x\r\n" % size)
    yield Spelled(event.prefix)
    for begin in range(0, event.blanks, _BLOCK_BYTES):
        yield Spelled(b" " * min(_BLOCK_BYTES, event.blanks - begin))
    yield Spelled(event.suffix, event.said)
    if in_chunks:
        yield Spelled(b"\r\n")


def end_before(close: Close, *, in_chunks: bool) -> bytes:
    """The end of the body that a close comes after; the ordinary one goes out with what is before it."""
    return END if in_chunks and close in _AFTER_END else b""


def shown(script: Iterable[Event], *, http: str = "1.1") -> Iterator[Shown]:
    """A script with bytes in place of what only names them; frames stay frames, each a chunk if its head has any."""
    in_chunks = False
    for event in script:
        if isinstance(event, Head):
            in_chunks = event.framing == "stream" and http == "1.1"
            yield event
        elif isinstance(event, (Break, Long, Stub, Trailers)):
            yield from spelled(event, in_chunks=in_chunks)
            in_chunks = in_chunks and not isinstance(event, Trailers)
        else:
            if isinstance(event, Close) and (end := end_before(event, in_chunks=in_chunks)):
                yield Spelled(end)
            yield event
