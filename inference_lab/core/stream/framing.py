"""From frames to pieces: segments, content coding, broken framing. What the defaults want is not touched."""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.stream.events import (
    NOTHING,
    TURN,
    TURN_BYTES,
    Break,
    DeliveredSoFar,
    Draft,
    Event,
    FaultPoint,
    Frame,
    Long,
    Pause,
    Torn,
    Turn,
)
from inference_lab.core.stream.sse import is_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.faults.death import Death

# RFC 1952: deflate, no mtime, OS unknown (255).
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_STORED_LIMIT: Final = 65_535  # RFC 1951 section 3.2.4: the length of a stored block is 16 bits
# Places between two bytes: inside é and É, and inside a line end.
_INSIDE: Final = {
    "utf8": re.compile(rb"(?<=\xc3)(?=[\xa9\x89])"),
    "crlf": re.compile(rb"(?<=\r)(?=\n)"),
}
_AT_FAULT_POINT: Final = {"bad_size": Break("bad_size"), "response_inside": Break("response_inside")}


def segmented(events: Iterator[Draft], death: Death) -> Iterator[Draft]:
    """The stream cut into the death's pieces, each a chunk and a send of its own, at least `gap_ms` apart.

    A frame still starts when it is due, or once the piece before it is `gap_ms` old.
    """
    if death.segment == "frame":
        return events
    if death.segment == "whole":
        return _whole(events)
    pieces = _joined(events, death.segment) if isinstance(death.segment, int) else _cut(events, death.segment)
    return _spaced(pieces, death.gap_ms)


def _whole(events: Iterator[Draft]) -> Iterator[Draft]:
    """Everything in one piece, sent when its last frame is due. Whoever asks for it has counted what it comes to."""
    group = _Group()
    waited_ms = 0
    for event in events:
        if isinstance(event, Frame):
            if group.take(event):
                yield TURN
        elif isinstance(event, Pause):
            waited_ms += event.ms
        else:
            yield event
    if waited_ms:
        yield Pause(waited_ms)
    if group.data:
        yield group.joined()


def _joined(events: Iterator[Draft], count: int) -> Iterator[Draft]:
    """`count` frames a piece, sent when its last frame is due."""
    group = _Group()
    for event in events:
        if not isinstance(event, Frame):
            yield event
            continue
        if group.take(event):
            yield TURN
        if len(group.data) == count:
            yield group.joined()
            group = _Group()
    if group.data:
        yield group.joined()


class _Group:
    """Frames that become one."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self._said = DeliveredSoFar()
        self._new_bytes = 0

    def take(self, frame: Frame) -> bool:
        """Hold one more; whether so much has come since the last time that the others should have a turn."""
        self.data.append(frame.data)
        self._said.add(frame.said)
        self._new_bytes += len(frame.data)
        if self._new_bytes < TURN_BYTES:
            return False
        self._new_bytes = 0
        return True

    def joined(self) -> Frame:
        return Frame(b"".join(self.data), alone=True, said=self._said.total)


def _cut(events: Iterator[Draft], segment: str) -> Iterator[Draft]:
    for event in events:
        if isinstance(event, Frame):
            left = len(event.data)
            for piece in _pieces(event.data, segment):
                left -= len(piece)
                yield Frame(piece, alone=True, said=NOTHING if left else event.said)
        else:
            yield event


def _pieces(data: bytes, segment: str) -> Iterator[bytes]:
    if segment == "byte":
        return (data[place : place + 1] for place in range(len(data)))
    return (piece for piece in _INSIDE[segment].split(data) if piece)


def _spaced(pieces: Iterator[Draft], gap_ms: int) -> Iterator[Draft]:
    """The pieces at least `gap_ms` apart; what that costs is taken off the pauses after it, up to the fault point."""
    if not gap_ms:
        yield from pieces
        return
    now_ms = due_ms = 0
    last_ms: int | None = None
    for event in pieces:
        if isinstance(event, Pause):
            due_ms += event.ms
            continue
        if isinstance(event, Turn):
            yield event
            continue
        start_ms = max(due_ms, now_ms)
        if isinstance(event, FaultPoint):
            due_ms = start_ms  # a silence there is a whole one
        if isinstance(event, Frame):
            if last_ms is not None:
                start_ms = max(start_ms, last_ms + gap_ms)
            last_ms = start_ms
        if start_ms > now_ms:
            yield Pause(start_ms - now_ms)
            now_ms = start_ms
        yield event
    if due_ms > now_ms:
        yield Pause(due_ms - now_ms)


def coded(events: Iterator[Draft], death: Death) -> Iterator[Draft]:
    """The stream in gzip: stored blocks, flushed per piece, so that the bytes are the same everywhere."""
    if death.encoding == "none":
        return events
    return _coded(events, death.encoding)


def _coded(events: Iterator[Draft], encoding: str) -> Iterator[Draft]:
    head = _GZIP_HEAD
    check = 0
    size = 0
    for event in events:
        if not isinstance(event, Frame):
            yield event
            continue
        check = zlib.crc32(event.data, check)
        size += len(event.data)
        # Nobody takes off a coding that no header announces.
        yield Frame(head + _stored(event.data), said=NOTHING if encoding == "gzip_unlabelled" else event.said)
        head = b""
    if encoding != "gzip_truncated":
        yield Frame(head + b"\x01\x00\x00\xff\xff" + struct.pack("<II", check, size & 0xFFFFFFFF))


def _stored(data: bytes) -> bytes:
    """Stored blocks, none of them the last."""
    blocks = [data[place : place + _STORED_LIMIT] for place in range(0, len(data), _STORED_LIMIT)]
    return b"".join(b"\x00" + struct.pack("<HH", len(block), len(block) ^ 0xFFFF) + block for block in blocks)


def broken(events: Iterator[Draft], death: Death) -> Iterator[Draft]:
    """The events with their chunked framing broken at the fault point, if the death wants that."""
    if death.chunk_error in {"none", "trailer"}:
        return events
    return _broken(events, death.chunk_error)


def ended_at(events: Iterator[Draft], size: int) -> Iterator[Draft]:
    """The events of a body that is `size` bytes to its reader: what comes after them says nothing."""
    for event in events:
        if isinstance(event, Frame):
            yield event if is_read(event.data, size) else _unread(event)
            size -= len(event.data)
        else:
            yield event


def _unread(event: Event) -> Event:
    return msgspec.structs.replace(event, said=NOTHING) if isinstance(event, (Frame, Long)) else event


def _broken(events: Iterator[Draft], error: str) -> Iterator[Event]:
    held: Frame | None = None  # the chunk that loses its CRLF is the last before the fault point
    is_broken = False
    for event in events:
        if isinstance(event, FaultPoint):
            if held is not None:
                yield Break("no_crlf", held.data, held.said)
                held = None
                is_broken = True
            elif error in _AT_FAULT_POINT:
                yield _AT_FAULT_POINT[error]
                is_broken = True
            error = "none"
            continue
        if isinstance(event, Turn):
            yield event
            continue
        if is_broken and not isinstance(event, Torn):
            yield _unread(event)
            continue
        if held is not None:
            yield held
            held = None
        if error == "no_crlf" and isinstance(event, Frame):
            held = event
        elif not isinstance(event, Torn):
            yield event
