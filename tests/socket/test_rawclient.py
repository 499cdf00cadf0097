"""The test client itself: unless it tells the ends of plain sockets apart, no other test means much."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.rawclient import FIN, OPEN, RST, Connection, dechunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.tls import Certificate


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[socket.socket], None]], tuple[str, int]]]:
    """Start a peer that accepts one connection and does something with it."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(what: Callable[[socket.socket], None]) -> tuple[str, int]:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                what(connection)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return listener.getsockname()

    yield serve
    for thread in threads:
        thread.join(5)
    listener.close()


def _reset(peer: socket.socket) -> None:
    peer.recv(1)  # the client has read what came before
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_fin_is_a_fin(listen: Callable) -> None:
    with Connection(listen(lambda peer: peer.sendall(b"abc"))) as connection:
        assert connection.until_end().end == FIN
        assert bytes(connection.received) == b"abc"


def test_a_rst_is_a_rst(listen: Callable) -> None:
    with Connection(listen(_reset)) as connection:
        connection.send(b"x")
        assert connection.until_end().end == RST


def test_silence_is_open(listen: Callable) -> None:
    with Connection(listen(lambda peer: peer.recv(1))) as connection:
        assert connection.until_end(timeout=0.1).end == OPEN


@pytest.mark.parametrize(
    ("how", "end", "close_notify"),
    [("unwrap", FIN, True), ("close", FIN, False), ("reset", RST, False)],
)
def test_below_tls_the_end_of_tcp_and_the_close_notify_are_two_things(
    listen: Callable, certificate: Certificate, how: str, end: str, *, close_notify: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)

    def peer(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=True) as wrapped:
            wrapped.sendall(b"abc")
            if how == "reset":
                _reset(wrapped)
            elif how == "unwrap":
                wrapped.settimeout(0.2)
                with contextlib.suppress(OSError):
                    wrapped.unwrap()

    with Connection(listen(peer), tls=True) as connection:
        connection.until(b"abc")
        if how == "reset":
            connection.send(b"x")
        got = connection.until_end()
    assert (got.end, got.close_notify, got.raw) == (end, close_notify, b"abc")


@pytest.mark.parametrize(
    ("raw", "chunks", "terminated", "rest"),
    [
        (b"", [], False, b""),
        (b"3\r\nabc\r\n", [b"abc"], False, b""),
        (b"3\r\nabc\r\n0\r\n\r\n", [b"abc"], True, b""),
        (b"3\r\nabc\r\n0\r\n\r\nHTTP", [b"abc"], True, b"HTTP"),
        (b"3\r\nabc\r\n0\r\n", [b"abc"], False, b"0\r\n"),
        (b"a\r\nabc", [], False, b"a\r\nabc"),
        (b"3\r\nabc\r\n5", [b"abc"], False, b"5"),
    ],
)
def test_a_chunked_body_is_taken_apart(
    raw: bytes, chunks: list[bytes], rest: bytes, *, terminated: bool
) -> None:
    got = dechunk(raw)
    assert (got.chunks, got.terminated, got.rest) == (chunks, terminated, rest)
