"""Server-sent events from blocks of bytes (WHATWG HTML, 9.2), in bounded memory."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from inference_lab.core.oracle.verdict import Kind, Note, Report

LINE_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of a line, and of an event's data; more is one finding, and skipped."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b"error:")


def may_be_sse(head: bytes) -> bool:
    """Whether a stream that begins so may be events: a field, a comment, or a beginning of one."""
    return head.startswith(b":") or any(field.startswith(head[: len(field)]) for field in _FIELDS)


_NAME_BYTES: Final = 200


class SseEvent(msgspec.Struct, frozen=True):
    """One event: its data, its name, and whether it calls itself an error (`event: error`, or an `error:` field)."""

    data: bytes
    name: str | None
    is_error: bool
    offset: int


class Events:
    """Cuts blocks into events. What has no blank line after it at the end is torn, and never given out."""

    def __init__(self, report: Report, skipped: int) -> None:
        self._report = report
        self._held = bytearray()
        self._skipping = self._after_cr = False
        self._at = self._offset = skipped
        self._data: list[bytes] = []
        self._size = 0
        self._is_error = False
        self._name: str | None = None

    def feed(self, block: bytes) -> Iterator[SseEvent]:
        """The events that this block completes."""
        start = 0
        if self._after_cr and block:
            self._after_cr = False
            start = int(block.startswith(b"\n"))
            self._offset += start if self._offset == self._at else 0
        base = self._at
        for found in _LINE_END.finditer(block, start):
            part = block[start : found.start()]
            start = found.end()
            if found[0] == b"\r" and start == len(block):
                self._after_cr = True
            if self._skipping:
                self._skipping = False
                continue
            if self._held:
                part = bytes(self._held + part)
                self._held.clear()
            if event := self._take(part, base + start):
                yield event
        self._at = base + len(block)
        self._hold(block[start:])

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line, unless the line is too long."""
        if len(self._held) + len(part) <= LINE_LIMIT:
            self._held += part
        elif not self._skipping:
            self._skipping = True
            self._report.offset = self._offset
            self._report.find(Kind.TOO_LONG, f"a line is longer than {LINE_LIMIT} bytes")
        if self._skipping:
            self._held.clear()

    def _take(self, line: bytes, end: int) -> SseEvent | None:
        """One line; the event that a blank one completes."""
        if not line:
            event = SseEvent(b"\n".join(self._data), self._name, self._is_error, self._offset)
            wanted = bool(self._data) or self._is_error
            self._clear(end)
            return event if wanted else None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            before, self._size = self._size, self._size + len(value) + 1
            if self._size <= LINE_LIMIT:
                self._data.append(value)
            elif before <= LINE_LIMIT:
                self._data = []
                self._report.offset = self._offset
                self._report.find(Kind.TOO_LONG, f"an event has more than {LINE_LIMIT} bytes")
        elif field == b"event":
            self._name = value[:_NAME_BYTES].decode("utf-8", "replace")
            self._is_error = self._is_error or value == b"error"
        elif field == b"error":
            self._is_error = True
        elif not field:
            self._report.note(Note.COMMENTS)
        elif field not in {b"id", b"retry"}:
            self._report.note(Note.UNKNOWN_LINES)
        return None

    def _clear(self, offset: int) -> None:
        """Begin the next event."""
        self._data = []
        self._size = 0
        self._is_error = False
        self._name = None
        self._offset = offset
