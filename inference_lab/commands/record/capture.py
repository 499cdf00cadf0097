"""A response taken apart as it arrives: its head, its chunks or blocks with their times, and how it ended."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec

from inference_lab.console import UserError
from inference_lab.core.faults.incident import BODILESS

# What is kept of a head. Framing headers become `framing`; nothing else of it reaches the file.
KEPT: Final = ("content-type", "cache-control", "content-encoding", "connection", "retry-after")
_HEAD_LIMIT_BYTES: Final = 65_536
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?: [^\r\n]*)?")
_HEAD_END: Final = b"\r\n\r\n"
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")


class End(Enum):
    """What the recorder saw last of the connection."""

    FIN = "fin"
    RST = "rst"
    OPEN = "open"
    FULL = "full"
    """Open, and more had come than was to be kept."""


class Step(msgspec.Struct):
    """Bytes of the body that came together; `framed`: they were one whole chunk."""

    at_ms: int
    data: bytes
    framed: bool = True


class Recorded(msgspec.Struct, frozen=True):
    """A capture in the vocabulary of an incident; times are in ms since the request was sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    framing: str
    length_off_by: int
    head_ms: int
    steps: tuple[Step, ...]
    tail_ms: int
    """From the last step to what ended the response."""
    close: str
    idle_ms: int
    body_bytes: int


class Capture:
    """Fed with what arrives. `complete` once the response is over by its own framing."""

    def __init__(self, max_bytes: int) -> None:
        self.complete = False
        self.body_bytes = 0  # after the head, framing included
        self.status = 0
        self._max_bytes = max_bytes
        self._headers: dict[str, str] = {}
        self._framing = "none"
        self._declared = 0
        self._head_ms = 0
        self._complete_ms = 0
        self._spelled_out = False  # the end of the body is among the steps, since it was no plain terminator
        self._torn = False  # the chunked framing is broken: what follows is bytes
        self._steps: list[Step] = []
        self._kept_bytes = 0
        self._rest = bytearray()
        self._wanted = 0  # with fewer bytes of a chunk there is nothing to see yet
        self._rest_ms = 0

    @property
    def full(self) -> bool:
        """Whether as much has come as is to be kept."""
        return self.body_bytes >= self._max_bytes

    def feed(self, data: bytes, at_ms: int) -> None:
        """Bytes that came at `at_ms`.

        Raises:
            UserError: they are no HTTP/1 response.
        """
        self._rest += data
        self._rest_ms = at_ms
        new = len(data)
        while not self.status:
            if not self._read_head(at_ms):
                return
            new = len(self._rest)
        surplus = self.body_bytes + new - self._max_bytes
        if surplus > 0:
            new -= surplus
            del self._rest[-surplus:]
        self.body_bytes += new
        if self._framing in {"chunked", "both"}:
            self._read_chunks(at_ms)
        else:
            self._read_block(at_ms)

    def _read_head(self, at_ms: int) -> bool:
        """Whether a head was there; an interim one (1xx) is passed over."""
        place = self._rest.find(_HEAD_END)
        head = bytes(self._rest[: _HEAD_LIMIT_BYTES + 1 if place < 0 else place])
        if not head.startswith(b"HTTP/1."[: len(head)]) or len(head) > _HEAD_LIMIT_BYTES:
            raise UserError(f"what came is no HTTP/1 response: {head[:40]!r}")
        if place < 0:
            return False
        first, *lines = head.split(b"\r\n")
        match = _STATUS_LINE.fullmatch(first)
        if match is None or match[1] == b"101" or not b"100" <= match[1] < b"600":
            raise UserError(f"what came is no final HTTP/1 response: {first[:40]!r}")
        del self._rest[: place + len(_HEAD_END)]
        if match[1].startswith(b"1"):
            return True
        self.status, self._head_ms = int(match[1]), at_ms
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            printable = "".join(char if char.isprintable() else "?" for char in value.strip())
            self._headers[name.strip().lower()] = printable
        self._choose_framing(at_ms)
        return True

    def _choose_framing(self, at_ms: int) -> None:
        coding = self._headers.get("transfer-encoding", "").lower()
        length = self._headers.get("content-length", "")
        chunked = coding.split(",")[-1].strip() == "chunked"
        counted = length.isascii() and length.isdigit() and len(length) <= 10
        self._declared = int(length) if counted else 0
        self._framing = ("both" if counted else "chunked") if chunked else "length" if counted else "none"
        if self.status in BODILESS or (self._framing == "length" and not self._declared):
            self._end(at_ms)

    def _end(self, at_ms: int) -> None:
        self.complete, self._complete_ms = True, at_ms

    def _keep(self, data: bytes | bytearray, at_ms: int, *, framed: bool) -> None:
        self._kept_bytes += len(data)
        self._steps.append(Step(at_ms, bytes(data), framed))

    def _read_block(self, at_ms: int) -> None:
        if not self._rest:
            return
        if self._steps and self._steps[-1].at_ms == at_ms:
            self._steps[-1].data += self._rest
            self._kept_bytes += len(self._rest)
        else:
            self._keep(self._rest, at_ms, framed=True)
        self._rest.clear()
        if self._framing == "length" and not self.complete and self._kept_bytes >= self._declared:
            self._end(at_ms)

    def _read_chunks(self, at_ms: int) -> None:
        while self._rest and not self._torn and not self.complete:
            if len(self._rest) < self._wanted or not self._read_chunk(at_ms):
                return
        if self._rest:
            if self.complete and not self._spelled_out:
                self._keep(b"0\r\n\r\n", at_ms, framed=False)
                self._spelled_out = True
            self._keep(self._rest, at_ms, framed=False)
            self._rest.clear()

    def _read_chunk(self, at_ms: int) -> bool:
        """Take one chunk, the terminator or the first sign of broken framing; False: more has to come first."""
        rest = self._rest
        eol = rest.find(b"\r\n")
        line = bytes(rest if eol < 0 else rest[:eol])
        size = _SIZE.fullmatch(line.removesuffix(b"\r") or b"0" if eol < 0 else line)
        if size is None:
            self._torn = True
            return True
        if eol < 0:
            return False
        length = int(size[1], 16)
        if not length:
            return self._read_terminator(at_ms)
        begin, end = eol + 2, eol + 2 + length
        self._wanted = end + 2
        if len(rest) < end + 2:
            return False
        self._wanted = 0
        if rest[end : end + 2] != b"\r\n":
            self._torn = True
            return True
        # A size in another spelling than ours is kept as the bytes it was.
        plain = line == b"%x" % length
        self._keep(rest[begin:end] if plain else rest[: end + 2], at_ms, framed=plain)
        del rest[: end + 2]
        return True

    def _read_terminator(self, at_ms: int) -> bool:
        """Whether the end of the body is there whole, with its trailers."""
        place = self._rest.find(b"\r\n\r\n")
        if place < 0:
            return False
        if not self._rest.startswith(b"0\r\n\r\n"):
            self._keep(self._rest[: place + 4], at_ms, framed=False)
            self._spelled_out = True
        del self._rest[: place + 4]
        self._end(at_ms)
        return True

    def ended(self, end: End, at_ms: int) -> Recorded:
        """The whole capture, now that it has ended.

        Raises:
            UserError: it ended before there was a head.
        """
        if not self.status:
            raise UserError(
                f"no response: {_SEEN[end]} after {len(self._rest)} bytes of a head;"
                f" to replay that, use ok;at=request;close={_CLOSES[end]}"
            )
        if self._rest and end is not End.FULL:
            self._keep(self._rest, self._rest_ms, framed=False)
        last_ms = self._steps[-1].at_ms if self._steps else self._head_ms
        complete = self.complete and not self._spelled_out
        if complete:
            close = {End.FIN: "idle_close", End.RST: "terminator_rst"}.get(end, "terminator")
            last_ms = min(last_ms, self._complete_ms)
        else:
            close = _CLOSES[end]
        is_open = end in {End.OPEN, End.FULL}
        over_ms = self._complete_ms if complete else last_ms if is_open else at_ms
        return Recorded(
            self.status,
            tuple((name, self._headers[name]) for name in KEPT if name in self._headers),
            self._framing,
            self._declared - self._kept_bytes if self._framing in {"length", "both"} else 0,
            self._head_ms,
            tuple(self._steps),
            max(0, over_ms - last_ms),
            close,
            max(0, at_ms - self._complete_ms) if close == "idle_close" else 0,
            self.body_bytes,
        )


_CLOSES: Final = {End.FIN: "fin", End.RST: "rst", End.OPEN: "hang", End.FULL: "hang"}
_SEEN: Final = {
    End.FIN: "the connection was closed",
    End.RST: "the connection was reset",
    End.OPEN: "nothing more came",
    End.FULL: "there was more to come",
}
