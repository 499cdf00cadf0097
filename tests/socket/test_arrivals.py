"""What a client sees whose request takes too long to arrive; the times themselves: tests/unit/wire/test_arrivals.py."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT
from tests.support.rawclient import FIN, Connection, request
from tests.support.server import eventually, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server import Server
    from tests.support.tls import Certificate

HEADS = {
    "a head": b"GET /health HTTP/1.1\r\nHo",
    "a body": request("POST", CHAT, headers={"Content-Length": "9"}) + b"{",
    "chunks": request("POST", CHAT, headers={"Transfer-Encoding": "chunked"}) + b"1\r\n{\r\n",
}


@pytest.fixture(scope="module")
def quick(one_config: Path) -> Iterator[Server]:
    server = start(one_config, "--request-timeout-s", "0.3", "--enable-directives")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def quick_tls(one_config: Path, certificate: Certificate) -> Iterator[Server]:
    server = start(one_config, "--request-timeout-s", "0.5", "--endpoint", certificate.endpoint())
    yield server
    server.stop()


@pytest.mark.parametrize("what", HEADS)
@pytest.mark.parametrize("tls", [False, True])
def test_a_request_that_does_not_arrive_is_a_408_and_a_close(
    request: pytest.FixtureRequest, what: str, *, tls: bool
) -> None:
    server: Server = request.getfixturevalue("quick_tls" if tls else "quick")
    mark = server.log.mark()
    with Connection(server.address, tls=tls) as connection:
        connection.send(HEADS[what])
        got = connection.until_end()
    assert (got.status, got.end, got.error["code"]) == (408, FIN, "request_timeout")
    assert got.headers["connection"] == "close"
    assert eventually(lambda: any("408" in line for line in server.log.since(mark))), server.log.since()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"])
def test_a_handshake_that_does_not_come_to_its_end_is_closed(quick_tls: Server, said: bytes) -> None:
    with socket.create_connection(quick_tls.address, timeout=10) as sock:
        sock.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert quick_tls.has_let_go()
