"""The events of a script: what a response does, as values, before any socket is involved."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from inference_lab.faults.death import Close


class Head(msgspec.Struct, frozen=True):
    """The response's status and headers (lower-case names).

    The body is framed in chunks, and with `content_length` carries that header; `chunked` false: as the bytes come.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    chunked: bool = True
    content_length: int | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as one HTTP chunk."""

    data: bytes


class Raw(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as they are: broken framing, or a piece of a chunk."""

    data: bytes


class Pause(msgspec.Struct, frozen=True, gc=False):
    """The next event is due `ms` milliseconds (up to u64) after the moment this one was due."""

    ms: int


class Await(msgspec.Struct, frozen=True, gc=False):
    """The next event is due once the engine has produced `tokens` more tokens."""

    tokens: int


Event: TypeAlias = Head | Frame | Raw | Pause | Await | Close
