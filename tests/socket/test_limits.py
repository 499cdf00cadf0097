"""Bodies too large, input behind an unfinished answer, and clients that close one half."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.reference_model.contract import CHAT
from tests.support.curl import curl
from tests.support.rawclient import FIN, OPEN, RST, Connection, ask, exchange, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

MIB = 1 << 20
TOO_LARGE = b" " * (16 * MIB + 1)
SMALL_LIMIT = MIB


def is_413(status: int, body: bytes) -> bool:
    return status == 413 and json.loads(body)["error"]["code"] == "body_too_large"


def chunked_upload(connection: Connection, size: int) -> None:
    """A request in chunks of 64 KiB; the server may cut it short."""
    connection.send(request("POST", CHAT, headers={"Transfer-Encoding": "chunked"}))
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    try:
        for _ in range(size // 65536):
            connection.send(piece)
        connection.send(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass


class TestDeclaredLength:
    """Content-Length says so, and the answer comes before the body does."""

    def test_a_raw_client_is_answered_before_it_sends_any_body(self, server: Server) -> None:
        with Connection(server.address) as connection:
            connection.send(request("POST", CHAT, headers={"Content-Length": str(len(TOO_LARGE))}))
            got = connection.until_end(timeout=5)
        assert got.status == 413
        assert got.error["code"] == "body_too_large"
        assert got.end == FIN, "the sending side is shut"
        assert got.headers["access-control-allow-origin"] == "*"

    @pytest.mark.parametrize("length", ["16777217", "99999999999999999999", "016777217"])
    def test_any_length_over_the_limit_is_refused(self, server: Server, length: str) -> None:
        assert (
            exchange(server.address, request("POST", CHAT, headers={"Content-Length": length})).status == 413
        )

    @pytest.mark.parametrize("expect", [(), ("-H", "Expect:")])
    def test_curl_reads_the_answer(self, server: Server, expect: tuple[str, ...]) -> None:
        ran = curl(server.url + CHAT, "-w", "%{http_code}", *expect, data=TOO_LARGE)
        assert ran.code == 0, ran.complaint
        assert is_413(int(ran.out[-3:]), ran.out[:-3])

    def test_http_client_reads_the_answer(self, server: Server) -> None:
        client = http.client.HTTPConnection(*server.address, timeout=20)
        try:
            client.request("POST", CHAT, body=TOO_LARGE)
            response = client.getresponse()
            assert is_413(response.status, response.read())
        finally:
            client.close()

    def test_httpx_reads_the_answer(self, server: Server) -> None:
        response = httpx.post(server.url + CHAT, content=TOO_LARGE, timeout=20, trust_env=False)
        assert is_413(response.status_code, response.content)

    def test_tls_clients_read_the_answer(self, tls_server: Server) -> None:
        ran = curl("-k", tls_server.url + CHAT, "-w", "%{http_code}", "-H", "Expect:", data=TOO_LARGE)
        assert ran.code == 0, ran.complaint
        assert is_413(int(ran.out[-3:]), ran.out[:-3])

    def test_a_client_that_does_not_leave_sees_the_end_of_the_answer(self, server: Server) -> None:
        """How long it may stay: tests/unit/wire/test_dismissal.py."""
        with Connection(server.address) as connection:
            connection.send(request("POST", CHAT, headers={"Content-Length": str(1 << 40)}))
            assert connection.until_end().end == FIN
            assert server.connections() > 0
        assert server.has_let_go()

    def test_the_client_that_leaves_after_the_answer_leaves_no_descriptor(self, server: Server) -> None:
        exchange(server.address, request("POST", CHAT, headers={"Content-Length": str(len(TOO_LARGE))}))
        assert server.has_let_go()

    def test_what_is_dropped_is_not_kept_in_memory(self, server: Server) -> None:
        base = server.rss()
        http_client = http.client.HTTPConnection(*server.address, timeout=20)
        try:
            http_client.request("POST", CHAT, body=TOO_LARGE * 4)
            assert http_client.getresponse().status == 413
            assert server.rss() - base < 8 * MIB
        finally:
            http_client.close()


class TestTheLimitItself:
    """--max-body-bytes is the largest body that passes."""

    @pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
    def test_a_declared_body(self, impatient: Server, over: int, status: int) -> None:
        body = payload(CHAT, stream=False)
        body += b" " * (SMALL_LIMIT + over - len(body))
        with Connection(impatient.address) as connection:
            connection.send(request("POST", CHAT, body))
            assert connection.response().status == status

    @pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
    def test_a_chunked_body(self, impatient: Server, over: int, status: int) -> None:
        body = payload(CHAT, stream=False)
        body += b" " * (SMALL_LIMIT + over - len(body))
        with Connection(impatient.address) as connection:
            connection.send(request("POST", CHAT, headers={"Transfer-Encoding": "chunked"}))
            connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert connection.response().status == status


class TestChunkedBody:
    """Nothing declares its size."""

    def test_twenty_mebibytes_are_refused(self, server: Server) -> None:
        with Connection(server.address) as connection:
            chunked_upload(connection, 20 * MIB)
            got = connection.response()
        assert got.status == 413
        assert got.error["code"] == "body_too_large"

    def test_memory_stays_bounded(self, impatient: Server) -> None:
        base = impatient.rss()
        with Connection(impatient.address) as connection:
            chunked_upload(connection, 64 * MIB)
            assert connection.response().status == 413
        assert impatient.peak_rss() - base < 8 * MIB

    def test_an_upload_without_end_is_refused_or_waited_for_in_bounded_memory(
        self, impatient: Server
    ) -> None:
        """No terminator ever comes; the contract does not say that the answer may not wait for it."""
        base = impatient.rss()
        with Connection(impatient.address) as connection:
            connection.send(request("POST", CHAT, headers={"Transfer-Encoding": "chunked"}))
            piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
            try:
                for _ in range(32 * SMALL_LIMIT // 65536):
                    connection.send(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass
            got = connection.until_end(timeout=0.5)
            assert impatient.rss() - base < 8 * MIB
        if got.raw:
            assert got.status == 413
            assert got.error["code"] == "body_too_large"
        else:
            assert got.end == OPEN

    def test_curl_reads_the_answer(self, server: Server) -> None:
        chunked = ("-H", "Transfer-Encoding: chunked")
        ran = curl(server.url + CHAT, *chunked, "-w", "%{http_code}", data=TOO_LARGE + b" " * 4 * MIB)
        assert ran.code == 0, ran.complaint
        assert is_413(int(ran.out[-3:]), ran.out[:-3])


class TestBehindAnUnfinishedAnswer:
    """Clients may pipeline, but not without bound."""

    def _stalled(self, server: Server) -> Connection:
        connection = Connection(server.address)
        connection.send(fault_request(CHAT, "stall;delay_ms=0"))
        connection.until(b"0002")
        return connection

    def test_more_than_sixty_four_kibibytes_end_the_connection_with_a_reset_and_a_log_line(
        self, server: Server
    ) -> None:
        mark = server.log.mark()
        with self._stalled(server) as connection:
            try:
                connection.send(b"x" * (65536 + 32768))
                end = connection.until_end(timeout=5).end
            except (ConnectionResetError, BrokenPipeError):
                end = RST
        assert end == RST
        server.log.wait_for(r"(?i)pipelined|65,?_?536|64 KiB", since=mark)

    def test_a_client_has_one_log_line_however_small_its_tls_records_are(self, tls_server: Server) -> None:
        mark = tls_server.log.mark()
        with Connection(tls_server.address, tls=True) as connection, suppress(OSError):
            connection.send(fault_request(CHAT, "stall;delay_ms=0"))
            connection.until(b"0002")
            connection.send_records([b"x"] * 70_000)
            connection.until_end(timeout=5)
        tls_server.log.wait_for(r"ended: ", since=mark)
        said = [line for line in tls_server.log.since(mark) if "pipelined more" in line]
        assert len(said) == 1

    def test_sixty_kibibytes_are_fine(self, server: Server) -> None:
        with self._stalled(server) as connection:
            connection.send(b"x" * 60000)
            assert connection.until_end(timeout=0.5).end == OPEN

    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("fault", ["stall", "cut_between_frames;after_chunks=9;delay_ms=60000"])
    def test_a_flood_in_the_same_breath_as_the_request_is_no_different(
        self, server: Server, tls_server: Server, fault: str, *, tls: bool
    ) -> None:
        with Connection((tls_server if tls else server).address, tls=tls) as connection:
            try:
                connection.send(fault_request(CHAT, fault) + b"x" * 200000)
                end = connection.until_end(timeout=5).end
            except (ConnectionResetError, BrokenPipeError):
                end = RST
        assert end == RST

    def test_pipelined_requests_are_answered_in_order(self, server: Server) -> None:
        targets = ["/health", "/v1/models", "/nope", "/health"]
        with Connection(server.address) as connection:
            connection.send(b"".join(request("GET", target) for target in targets))
            connection.until(b'{"status":"ok"}')
            while connection.received.count(b'{"status":"ok"}') < 2:
                assert connection.read() is None
            statuses = [part[:3] for part in bytes(connection.received).split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"200", b"200", b"404", b"200"]


class TestHalfClose:
    """A client that shuts its sending side has left, as far as anyone can tell."""

    @pytest.mark.parametrize(
        "data",
        [
            fault_request(CHAT, "stall"),
            fault_request(CHAT, "reset;after_chunks=9;delay_ms=60000"),
            request("POST", CHAT, payload(CHAT, model="slow")),
            request("GET", "/health"),
            request("POST", CHAT, headers={"Content-Length": "9"}),
        ],
    )
    def test_it_is_let_go_at_once(self, server: Server, data: bytes) -> None:
        with Connection(server.address) as connection:
            connection.send(data)
            connection.sock.shutdown(socket.SHUT_WR)
            assert connection.until_end(timeout=5).end in {FIN, RST}
            assert server.has_let_go()
        assert ask(server.address, request("GET", "/health")).status == 200
