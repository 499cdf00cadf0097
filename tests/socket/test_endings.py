"""How connections end: RST by errno, FIN by the missing terminator, the terminator by a second request."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import (
    ABRUPT_FIN,
    CHAT,
    ENDPOINTS,
    GRACEFUL,
    HELLO,
    Stream,
    expected_chunks,
    tag_of,
)
from tests.support.curl import JSON, curl
from tests.support.rawclient import (
    FIN,
    OPEN,
    RST,
    Connection,
    client_context,
    exchange,
    fault_request,
    payload,
    request,
)
from tests.support.server import Server

if TYPE_CHECKING:
    from pathlib import Path

HEALTH = request("GET", "/health")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_reset_ends_in_connection_reset_after_all_its_frames(server: Server, endpoint: str) -> None:
    got = exchange(server.address, fault_request(endpoint, "reset;after_chunks=20;delay_ms=0"))
    assert got.end == RST
    assert len(got.chunked.chunks) == 20 + (endpoint == CHAT)
    assert (got.chunked.terminated, got.chunked.rest) == (False, b"")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", ABRUPT_FIN)
def test_a_cut_ends_in_fin_without_the_terminator_or_anything_after_the_last_byte(
    server: Server, mode: str, endpoint: str
) -> None:
    got = exchange(server.address, fault_request(endpoint, f"{mode};delay_ms=0"))
    assert got.end == FIN
    assert (got.chunked.terminated, got.chunked.rest) == (False, b"")


@pytest.mark.parametrize("mode", [*ABRUPT_FIN, "reset"])
def test_a_request_pipelined_behind_an_abrupt_death_is_not_answered(server: Server, mode: str) -> None:
    alone = exchange(server.address, fault_request(CHAT, mode))
    piped = exchange(server.address, fault_request(CHAT, mode) + HEALTH)
    assert piped.after_head == alone.after_head
    assert piped.end in {alone.end, RST}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", GRACEFUL)
def test_the_terminator_leaves_a_connection_that_serves_the_next_request(
    server: Server, mode: str, endpoint: str
) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(endpoint, mode))
        first = connection.response()
        assert first.chunked.terminated
        connection.send(HEALTH)
        second = connection.response()
        assert (second.status, second.json) == (200, {"status": "ok"})
        connection.send(fault_request(endpoint, mode))
        assert connection.response().after_head == first.after_head


@pytest.mark.parametrize("mode", GRACEFUL)
def test_a_request_pipelined_behind_a_graceful_mode_is_answered_after_it(server: Server, mode: str) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, mode) + HEALTH)
        got = connection.until(b'{"status":"ok"}')
    first = got.chunked
    assert first.terminated
    assert first.rest.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stall_stays_open_and_silent_after_its_frames(server: Server, endpoint: str) -> None:
    got = exchange(server.address, fault_request(endpoint, "stall;delay_ms=0"), timeout=0.7)
    assert got.end == OPEN
    assert len(got.chunked.chunks) == 3 + (endpoint == CHAT)
    assert got.chunked.rest == b""


@pytest.mark.parametrize("mode", ["cut_between_frames", "reset", "no_done"])
def test_a_client_that_asks_for_close_gets_the_same_bytes(server: Server, mode: str) -> None:
    plain = exchange(server.address, fault_request(CHAT, mode), timeout=1)
    closing = exchange(server.address, fault_request(CHAT, mode, Connection="close"))
    assert closing.end == (RST if mode == "reset" else FIN)
    assert closing.after_head == plain.after_head


def test_a_frame_is_sent_when_it_is_due_and_not_held_back_for_the_next(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, "stall;after_chunks=9;delay_ms=18446744073709551615"))
        got = connection.until(b"assistant")
        assert len(got.chunked.chunks) == 1
        assert connection.until_end(timeout=0.3).end == OPEN
        assert len(connection.result(OPEN).chunked.chunks) == 1


class TestOverTls:
    """The same endings below TLS, where the TCP end and the close_notify are two things."""

    def test_a_cut_closes_tls_properly_and_leaves_out_the_terminator(self, tls_server: Server) -> None:
        got = exchange(tls_server.address, fault_request(CHAT, "cut_between_frames"), tls=True)
        assert (got.end, got.close_notify) == (FIN, True)
        assert len(got.chunked.chunks) == 4
        assert not got.chunked.terminated

    @pytest.mark.parametrize("delay", [0, 10])
    def test_a_reset_is_a_tcp_reset_with_no_close_notify_before_it(
        self, tls_server: Server, delay: int
    ) -> None:
        got = exchange(
            tls_server.address, fault_request(CHAT, f"reset;after_chunks=9;delay_ms={delay}"), tls=True
        )
        assert (got.end, got.close_notify) == (RST, False)
        assert len(got.chunked.chunks) == 10

    def test_the_ssl_module_calls_the_reset_an_unexpected_end(self, tls_server: Server) -> None:
        plain = socket.create_connection(tls_server.address, timeout=10)
        with client_context().wrap_socket(plain, suppress_ragged_eofs=False) as wrapped:
            wrapped.sendall(fault_request(CHAT, "reset"))
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                list(iter(lambda: wrapped.recv(65536), b""))

    @pytest.mark.parametrize(("mode", "code"), [("reset", 56), ("cut_between_frames", 18), ("no_done", 0)])
    def test_curl_gives_the_same_exit_codes(self, tls_server: Server, mode: str, code: int) -> None:
        asked = ("-H", f"x-inference-lab-fault: {mode}", "-d", payload(CHAT).decode())
        ran = curl("-k", tls_server.url + CHAT, *JSON, *asked)
        assert ran.code == code, ran.complaint
        assert ran.out.count(b"data: ") >= 4

    def test_the_terminator_keeps_the_connection(self, tls_server: Server) -> None:
        with Connection(tls_server.address, tls=True) as connection:
            connection.send(fault_request(CHAT, "no_usage"))
            assert connection.response().chunked.terminated
            connection.send(HEALTH)
            assert connection.response().status == 200

    def test_http_2_is_not_offered(self, tls_server: Server) -> None:
        context = client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(socket.create_connection(tls_server.address, timeout=10)) as wrapped:
            assert wrapped.selected_alpn_protocol() in {None, "http/1.1"}

    def test_the_bytes_are_those_of_plain_tcp(self, server: Server, tls_server: Server) -> None:
        data = fault_request(CHAT, "cut_mid_frame;utf8=true;after_chunks=8")
        plain, secret = exchange(server.address, data), exchange(tls_server.address, data, tls=True)
        assert secret.after_head == plain.after_head


class TestSlowReaders:
    """Five thousand frames at once to a reader with 4 KiB to put them in: not a byte may be lost."""

    @pytest.mark.parametrize(("mode", "end"), [("reset", RST), ("cut_between_frames", FIN)])
    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_a_slow_reader_gets_all_frames_and_then_the_end(
        self, server: Server, tls_server: Server, endpoint: str, mode: str, end: str, *, tls: bool
    ) -> None:
        where = tls_server if tls else server
        with Connection(where.address, tls=tls, receive_buffer=4096) as connection:
            connection.send(fault_request(endpoint, f"{mode};after_chunks=5000;delay_ms=0"))
            got = connection.until_end(size=2048, pause=0.0005)
        assert got.end == end
        stream = Stream.of(endpoint, got.chunked.chunks[0], tag_of(HELLO[endpoint]))
        assert got.chunked.chunks == expected_chunks(stream, mode, 5000)
        assert got.chunked.rest == b""
        assert got.close_notify == (tls and end == FIN)

    def test_a_slow_reader_of_a_graceful_mode_gets_the_terminator(self, server: Server) -> None:
        with Connection(server.address, receive_buffer=4096) as connection:
            connection.send(fault_request(CHAT, "no_done;after_chunks=5000;delay_ms=0"))
            got = connection.response()
        assert len(got.chunked.chunks) == 5002
        assert got.chunked.terminated


class TestUnixSocket:
    """A transport that has no RST to give."""

    def test_a_reset_becomes_a_fin_and_a_warning(self, configs: Path, tmp_path: Path) -> None:
        configs_without_static_reset = tmp_path / "lab.toml"
        configs_without_static_reset.write_text((configs / "lab.toml").read_text())
        path = tmp_path / "lab.sock"
        options = [
            "--config",
            str(configs_without_static_reset),
            "--endpoint",
            f"unix:{path}",
            "--enable-directives",
        ]
        local = Server(options).wait_until_ready()
        try:
            mark = local.log.mark()
            got = exchange(str(path), fault_request(CHAT, "reset"))
            assert got.end == FIN
            assert len(got.chunked.chunks) == 4
            assert not got.chunked.terminated
            local.log.wait_for(r"(?i)warn.*reset", since=mark)
            with Connection(str(path)) as connection:
                flood = "stall;after_chunks=1000000;delay_ms=0"
                connection.send(fault_request(CHAT, flood, **{"x-request-id": "unread"}))
                connection.until(b"0002")
            with Connection(str(path)) as asker:
                asker.send(request("GET", "/lab/journal?request_id=unread&wait=20"))
                (row,) = asker.response().json["data"]
            assert (row["ending"], row["peer"]) == ("client_left", "rst")
            assert 0 < row["bytes_unsent"] == row["bytes_written"] - row["bytes_acknowledged"]
        finally:
            local.stop()
