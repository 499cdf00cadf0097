"""Deaths that could cost the server its memory or its turn, and those that no request on an endpoint could meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.models import INSTANT, MODEL
from tests.support.rawclient import OPEN, Connection, ask, dechunk, exchange, fault_request, payload, request
from tests.support.server import Server, options, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tls import Certificate

MIB = 1024 * 1024


def growth(server: Server, before: int) -> int:
    return server.peak_rss() - before


@pytest.mark.parametrize("fault", ["reset;after_chunks=1;frame_bytes=2147483647", "ok;frame_bytes=33554432"])
def test_a_reader_that_does_not_read_a_wide_frame_costs_no_memory(server: Server, fault: str) -> None:
    before = server.forget_peak()
    with Connection(server.address, receive_buffer=4096) as connection:
        connection.send(fault_request(CHAT, fault))
        connection.until(b"  " * 1000)
        assert ask(server.address, request("GET", "/health")).status == 200
    assert server.has_let_go()
    assert growth(server, before) < 16 * MIB


def test_a_wide_frame_is_one_chunk_of_exactly_its_size_and_costs_no_memory(server: Server) -> None:
    before = server.forget_peak()
    got = exchange(
        server.address, fault_request(CHAT, "cut_between_frames;after_chunks=1;frame_bytes=16777216")
    )
    chunks = dechunk(got.after_head).chunks
    assert [len(chunk) for chunk in chunks[1:]] == [16777216]
    assert chunks[1].endswith(b" " * 100 + b"}\n\n")
    assert growth(server, before) < 16 * MIB


def test_bytes_one_by_one_leave_other_requests_their_turn_and_cost_no_memory(server: Server) -> None:
    before = server.forget_peak()
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, "stall;after_chunks=4294967295;delay_ms=0;segment=byte"))
        connection.until(b"1\r\nd\r\n")
        for _ in range(20):
            assert ask(server.address, request("GET", "/health")).status == 200
    assert server.has_let_go()
    assert growth(server, before) < 16 * MIB


@pytest.mark.parametrize(
    "fault",
    [
        "ok;segment=whole",
        "ok;length=both",
        "ok;after_chunks=3;then=rest;length=+1",
        "ok;after_chunks=100000;comments=1000;segment=whole",
    ],
)
def test_what_is_counted_first_has_an_end(server: Server, fault: str) -> None:
    body = payload(COMPLETIONS, max_tokens=2**31 - 1)
    error = ask(server.address, fault_request(COMPLETIONS, fault, body)).error
    assert "at most" in error["message"]


def test_a_far_frame_is_left_out_at_once(server: Server) -> None:
    body = payload(COMPLETIONS, max_tokens=2**31 - 1)
    fault = "ok;after_chunks=1;delay_ms=1;then=rest;sequence=drop:130000"
    with Connection(server.address) as connection:
        connection.send(fault_request(COMPLETIONS, fault, body))
        connection.until(b"130001")


def test_no_header_can_be_split(server: Server) -> None:
    for fault in ('ok;content_type="a\tb"', 'ok;status=503;retry_after="\x7f"', 'ok;content_type="\xc3\xa9"'):
        got = ask(server.address, fault_request(CHAT, fault))
        assert (got.status, got.error["code"]) == (400, "invalid_fault_directive"), fault


IMPOSSIBLE = {
    "tls_raw": ('mode = "ok"\nclose = "tls_raw"', "needs TLS"),
    "stale": ('mode = "stale_connection"', "a Unix socket has no reset"),
    "rst": ('mode = "rst_after_complete"', "a Unix socket has no reset"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_request_could_meet_stops_the_start(tmp_path: Path, name: str) -> None:
    table, reason = IMPOSSIBLE[name]
    config = tmp_path / "lab.toml"
    config.write_text(f'{MODEL}name = "lab"\n{INSTANT}[fault]\n{table}\n')
    where = ["--port", "0"] if name == "tls_raw" else ["--endpoint", f"unix:{tmp_path / 'lab.sock'}"]
    server = Server(options(config, *where))
    try:
        assert server.process.wait(20) == 1
        assert reason in server.errors.wait_for(r"lab\.toml: fault: .*").group()
    finally:
        server.stop()


def test_over_tls_a_model_may_close_without_saying_so(tmp_path: Path, certificate: Certificate) -> None:
    config = tmp_path / "lab.toml"
    config.write_text(f'{MODEL}name = "lab"\n{INSTANT}[fault]\nmode = "ok"\nclose = "tls_raw"\n')
    server = start(config, "--endpoint", certificate.endpoint())
    try:
        got = exchange(server.address, request("POST", CHAT, payload(CHAT, max_tokens=2)), tls=True)
        assert not got.close_notify
        assert got.end != OPEN
    finally:
        server.stop()
