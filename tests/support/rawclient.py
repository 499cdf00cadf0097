"""A client that sends exact bytes and reports every byte that came back and how the connection ended."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.reference_model.contract import CHAT

if TYPE_CHECKING:
    from collections.abc import Iterable

FIN, RST, OPEN = "fin", "rst", "open"
READ = 65536


@dataclass(frozen=True, slots=True)
class Chunked:
    """A chunked body taken apart: whole chunks, whether the terminator came, and what follows or is torn."""

    chunks: list[bytes]
    terminated: bool
    rest: bytes

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def dechunk(raw: bytes) -> Chunked:
    """Strict: hexadecimal sizes without extensions, CRLF, no trailers."""
    chunks: list[bytes] = []
    at = 0
    while (eol := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:eol], 16)
        start, end = eol + 2, eol + 2 + size
        if raw[end : end + 2] != b"\r\n":
            break
        if size == 0:
            return Chunked(chunks, terminated=True, rest=raw[end + 2 :])
        chunks.append(raw[start:end])
        at = end + 2
    return Chunked(chunks, terminated=False, rest=raw[at:])


@dataclass(frozen=True, slots=True)
class Received:
    """All bytes of a connection and its end; `close_notify` says whether TLS was closed properly."""

    raw: bytes
    end: str
    close_notify: bool = False

    @property
    def head(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[0]

    @property
    def after_head(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1]) if self.raw.startswith(b"HTTP/1.") else 0

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split(b"\r\n")[1:]
        pairs = (line.decode("latin-1").partition(":") for line in lines)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def chunked(self) -> Chunked:
        return dechunk(self.after_head)

    @property
    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            return self.chunked.body
        length = self.headers.get("content-length")
        return self.after_head if length is None else self.after_head[: int(length)]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, its documented shape checked."""
        document = self.json
        assert list(document) == ["error"], document
        error = document["error"]
        assert list(error) == ["message", "type", "param", "code"], error
        assert isinstance(error["message"], str), error
        assert error["message"], error
        assert error["param"] is None or isinstance(error["param"], str), error
        assert error["type"] == ("server_error" if self.status >= 500 else "invalid_request_error"), error
        assert self.headers["content-type"].startswith("application/json"), self.headers
        assert int(self.headers["content-length"]) == len(self.after_head), self.raw
        return error


def request(
    method: str,
    target: str | bytes,
    body: bytes | None = None,
    *,
    headers: dict[str, str | bytes] | None = None,
    version: str = "1.1",
) -> bytes:
    """The bytes of a request; Host and Content-Length are added unless `headers` names them."""
    path = target if isinstance(target, bytes) else target.encode()
    given = headers or {}
    names = {name.lower() for name in given}
    lines = [method.encode() + b" " + path + b" HTTP/" + version.encode()]
    if "host" not in names:
        lines.append(b"Host: 127.0.0.1")
    for name, value in given.items():
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.encode() + b": " + raw)
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def payload(endpoint: str, **more: Any) -> bytes:
    """A small streaming request body for an endpoint."""
    asked = {"messages": [{"role": "user", "content": "hello"}]} if endpoint == CHAT else {"prompt": "hello"}
    return json.dumps({"model": "lab", "stream": True, **asked, **more}).encode()


def fault_request(endpoint: str, fault: str, body: bytes | None = None, **headers: str) -> bytes:
    """A streaming request that asks for a death."""
    return request(
        "POST",
        endpoint,
        payload(endpoint) if body is None else body,
        headers={"x-inference-lab-fault": fault, **headers},
    )


def client_context(*, verify: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(slots=True)
class Connection:
    """One connection, plain or TLS; TLS runs over memory so that the TCP end below it stays visible."""

    address: tuple[str, int] | str
    tls: bool = False
    receive_buffer: int | None = None
    timeout: float = 10.0
    answers_close_notify: bool = True
    received: bytearray = field(default_factory=bytearray)
    close_notify: bool = False
    sock: socket.socket = field(init=False)
    _incoming: ssl.MemoryBIO = field(init=False)
    _outgoing: ssl.MemoryBIO = field(init=False)
    _ssl: ssl.SSLObject | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        if self.receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.address)
            if self.tls:
                self._handshake()
        except BaseException:
            self.sock.close()
            raise

    def _handshake(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = client_context().wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:  # noqa: PERF203 (that is how a handshake goes)
                self._flush()
                self._incoming.write(self.sock.recv(READ))
            else:
                self._flush()
                return

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self.sock.sendall(data)

    def __enter__(self) -> Connection:  # noqa: PYI034 (Self is of Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        if self._ssl is None:
            self.sock.sendall(data)
        else:
            self._ssl.write(data)
            self._flush()

    def send_records(self, parts: Iterable[bytes]) -> None:
        """Each part in a TLS record of its own, all in one go."""
        assert self._ssl is not None
        for part in parts:
            self._ssl.write(part)
        self._flush()

    def reset(self) -> None:
        """Close with a RST of our own."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def read(self, size: int = READ) -> str | None:
        """Take what the next recv gives; how the connection ended, or None while it goes on."""
        try:
            data = self.sock.recv(size)
        except TimeoutError:
            return OPEN
        except ConnectionResetError:
            return RST
        if not data:
            return FIN
        if self._ssl is None:
            self.received += data
        else:
            self._decrypt(data)
        return None

    def _decrypt(self, data: bytes) -> None:
        assert self._ssl is not None
        self._incoming.write(data)
        while True:
            try:
                plain = self._ssl.read(READ)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLZeroReturnError:
                plain = b""
            if not plain:
                self.close_notify = True
                if self.answers_close_notify:
                    self._answer_close_notify()
                return
            self.received += plain

    def _answer_close_notify(self) -> None:
        """What every TLS library does when its user closes; only then does the server's FIN follow."""
        assert self._ssl is not None
        self._ssl.unwrap()
        with contextlib.suppress(OSError):
            self._flush()

    def result(self, end: str) -> Received:
        return Received(bytes(self.received), end, self.close_notify)

    def until_end(self, *, timeout: float | None = None, pause: float = 0.0, size: int = READ) -> Received:
        """Read until FIN, RST or nothing comes for `timeout` seconds; `pause` makes a slow reader."""
        if timeout is not None:
            self.sock.settimeout(timeout)
        while (end := self.read(size)) is None:
            if pause:
                time.sleep(pause)
        return self.result(end)

    def until(self, what: bytes, *, after: int = 0) -> Received:
        """Read until some bytes have come; the connection must not end before."""
        while what not in self.received[after:]:
            end = self.read()
            assert end is None, f"{end} before {what!r}: {bytes(self.received)!r}"
        return self.result(OPEN)

    def response(self) -> Received:
        """One whole response of a connection that stays open; anything read so far is dropped first."""
        self.received.clear()
        self.until(b"\r\n\r\n")
        while not complete(self.result(OPEN)):
            end = self.read()
            assert end is None, f"{end} within a response: {bytes(self.received)!r}"
        return self.result(OPEN)


def complete(got: Received) -> bool:
    """Whether a response has come whole, by its own framing."""
    if got.headers.get("transfer-encoding") == "chunked":
        return got.chunked.terminated
    return len(got.after_head) >= int(got.headers.get("content-length", 0))


def exchange(
    address: tuple[str, int] | str, data: bytes, *, tls: bool = False, timeout: float = 10.0
) -> Received:
    """Send, then read everything until the connection ends or is silent for `timeout`."""
    with Connection(address, tls=tls, timeout=timeout) as connection:
        connection.send(data)
        return connection.until_end()


def ask(address: tuple[str, int], data: bytes, *, tls: bool = False) -> Received:
    """Send one request, read one whole response."""
    with Connection(address, tls=tls) as connection:
        connection.send(data)
        return connection.response()
