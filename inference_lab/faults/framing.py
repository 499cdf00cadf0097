"""From frames to chunks: segments, content coding, and broken framing. What the defaults want is not touched."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from inference_lab.faults.events import Event, Frame, Pause, Raw
from inference_lab.faults.stream import FaultPoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.faults.death import Death

TERMINATOR: Final = Raw(b"0\r\n\r\n")
_GZIP_HEAD: Final = (
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # RFC 1952: deflate, no mtime, OS unknown (255)
)
_STORED_LIMIT: Final = 65_535  # RFC 1951 section 3.2.4: the length of a stored block is 16 bits
_RESPONSE_INSIDE: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n502 Bad Gateway"
)


def segmented(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event | FaultPoint]:
    """The stream cut into the death's pieces, each a chunk of its own, `gap_ms` apart.

    A frame still starts when it is due: the gaps inside the one before count towards its delay.
    """
    if death.segment == "frame":
        return events
    if death.segment == "whole":
        return _whole(events)
    if isinstance(death.segment, int):
        return _joined(events, death.segment, death.gap_ms)
    return _cut(events, death)


def _whole(events: Iterator[Event | FaultPoint]) -> Iterator[Event | FaultPoint]:
    """Everything in one piece, sent when its last frame is due."""
    data: list[bytes] = []
    pauses: list[Event | FaultPoint] = []
    for event in events:
        if isinstance(event, Frame):
            data.append(event.data)
        else:
            pauses.append(event)
    yield from pauses
    if data:
        yield Frame(b"".join(data))


def _joined(events: Iterator[Event | FaultPoint], count: int, gap_ms: int) -> Iterator[Event | FaultPoint]:
    """`count` frames a piece, sent when its last frame is due, and `gap_ms` later for all but the first."""
    group: list[bytes] = []
    sent = False
    for event in events:
        if not isinstance(event, Frame):
            yield event
            continue
        group.append(event.data)
        if len(group) == count:
            if sent and gap_ms:
                yield Pause(gap_ms)
            yield Frame(b"".join(group))
            group, sent = [], True
    if group:
        if sent and gap_ms:
            yield Pause(gap_ms)
        yield Frame(b"".join(group))


def _cut(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event | FaultPoint]:
    gap = Pause(death.gap_ms) if death.gap_ms else None
    spent_ms = 0
    for event in events:
        if isinstance(event, Pause):
            left_ms = event.ms - spent_ms
            spent_ms = max(0, -left_ms)
            if left_ms > 0:
                yield Pause(left_ms)
            continue
        if not isinstance(event, Frame):
            yield event
            continue
        for place, piece in enumerate(_pieces(event.data, str(death.segment))):
            if place and gap is not None:
                spent_ms += gap.ms
                yield gap
            yield Frame(piece)


def _pieces(data: bytes, segment: str) -> list[bytes]:
    if segment == "byte":
        return [data[place : place + 1] for place in range(len(data))]
    if segment == "crlf":
        parts = data.split(b"\r\n")
        return [(b"\n" if place else b"") + part + b"\r" for place, part in enumerate(parts[:-1])] + [
            b"\n" + parts[-1]
        ]
    parts = data.replace("é".encode(), b"\xc3|\xa9").replace("É".encode(), b"\xc3|\x89").split(b"|")
    return parts if len(parts) > 1 else [data]


def coded(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event | FaultPoint]:
    """The stream in gzip: stored blocks, flushed per piece, so that the bytes are the same everywhere."""
    return (
        events if death.encoding == "none" else _coded(events, truncated=death.encoding == "gzip_truncated")
    )


def _coded(events: Iterator[Event | FaultPoint], *, truncated: bool) -> Iterator[Event | FaultPoint]:
    head = _GZIP_HEAD
    check = 0
    size = 0
    for event in events:
        if not isinstance(event, Frame):
            yield event
            continue
        check = zlib.crc32(event.data, check)
        size += len(event.data)
        yield Frame(head + _stored(event.data))
        head = b""
    if not truncated:
        yield Frame(head + b"\x01\x00\x00\xff\xff" + struct.pack("<II", check, size & 0xFFFFFFFF))


def _stored(data: bytes) -> bytes:
    """Stored blocks, none of them the last."""
    blocks = [data[place : place + _STORED_LIMIT] for place in range(0, len(data), _STORED_LIMIT)]
    return b"".join(b"\x00" + struct.pack("<HH", len(block), len(block) ^ 0xFFFF) + block for block in blocks)


def broken(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event]:
    """The events with their chunked framing broken at the fault point, if the death wants that."""
    if death.chunk_error == "none":
        return (event for event in events if not isinstance(event, FaultPoint))
    return _broken(events, death.chunk_error)


def _broken(events: Iterator[Event | FaultPoint], error: str) -> Iterator[Event]:
    held: Frame | None = None
    for event in events:
        if isinstance(event, FaultPoint):
            if error == "no_crlf" and held is not None:
                yield Raw(b"%x\r\n%b" % (len(held.data), held.data))
                held = None
            elif held is not None:
                yield held
                held = None
            if error == "bad_size":
                yield Raw(b"zz\r\n")
            elif error == "response_inside":
                yield Raw(_RESPONSE_INSIDE)
            continue
        if error == "no_crlf":
            # The chunk whose CRLF is missing is the last before the fault point: hold each until the next is known.
            if held is not None:
                yield held
                held = None
            if isinstance(event, Frame):
                held = event
                continue
        yield event
    if held is not None:
        yield held
