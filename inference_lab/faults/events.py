"""The events of a script: what a response does, as values, before any socket is involved."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from inference_lab.faults.modes import Close


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes to put on the wire as one HTTP chunk."""

    data: bytes


class Pause(msgspec.Struct, frozen=True, gc=False):
    """The next event is due `ms` milliseconds (up to u64) after the moment this one was due."""

    ms: int


class Await(msgspec.Struct, frozen=True, gc=False):
    """The next event is due once the engine has produced `tokens` more tokens."""

    tokens: int


Event: TypeAlias = Frame | Pause | Await | Close
