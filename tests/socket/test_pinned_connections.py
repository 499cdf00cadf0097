"""Clients that do not read: let go in time, with a log line, in bounded memory, at nobody else's cost."""

from __future__ import annotations

import re
import select
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT
from tests.support.rawclient import FIN, OPEN, RST, Connection, ask, exchange, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

MIB = 1 << 20
ENDLESS = "after_chunks=4294967295"
LOST = re.compile(r"(?i)(lost )?(?P<count>[\d,_]+) bytes (?(1)|(were |are )?lost)")
FOREVER = "delay_ms=18446744073709551615"


def wait_for_hangup(connection: Connection, timeout: float = 15.0) -> bool:
    """Wait for a RST without reading a byte."""
    poll = select.poll()
    poll.register(connection.sock, 0)  # POLLERR and POLLHUP are always reported
    return bool(poll.poll(timeout * 1000))


@pytest.mark.parametrize("mode", ["reset", "cut_between_frames"])
def test_a_reader_that_never_reads_is_let_go_and_the_log_counts_the_lost_bytes(
    server: Server, impatient: Server, mode: str
) -> None:
    data = fault_request(CHAT, f"{mode};after_chunks=5000;delay_ms=0")
    whole = exchange(server.address, data)
    mark = impatient.log.mark()
    with Connection(impatient.address, receive_buffer=4096) as connection:
        connection.send(data)
        line = impatient.log.wait_for(LOST, since=mark, timeout=15)
        assert impatient.has_let_go()
        got = connection.until_end(timeout=5)
    assert got.end in {RST, FIN}
    missing = len(whole.raw) - len(got.raw)
    assert missing > 0
    assert int(re.sub(r"[,_]", "", line["count"])) == missing, (line.string, got.end)


@pytest.mark.parametrize(
    "data",
    [
        fault_request(CHAT, f"stall;{ENDLESS};delay_ms=0"),
        fault_request(CHAT, f"no_done;{ENDLESS};delay_ms=0"),
        request("POST", CHAT, payload(CHAT, max_tokens=130_000)),
    ],
    ids=["abrupt", "graceful", "engine"],
)
def test_a_stream_without_progress_is_reset_and_recorded_while_it_still_has_frames(
    impatient: Server, data: bytes
) -> None:
    mark = impatient.log.mark()
    with Connection(impatient.address, receive_buffer=4096) as connection:
        connection.send(data)
        assert wait_for_hangup(connection)
        assert connection.until_end(timeout=5).end == RST
    assert impatient.has_let_go()
    impatient.log.wait_for(r"(?i)/v1/chat/completions.*progress|progress.*/v1/chat/completions", since=mark)


@pytest.mark.parametrize("mode", ["reset", "cut_between_frames"])
def test_a_tls_reader_that_never_reads_is_let_go_too(impatient_tls_server: Server, mode: str) -> None:
    server = impatient_tls_server
    mark = server.log.mark()
    with Connection(server.address, tls=True, receive_buffer=4096) as connection:
        connection.send(fault_request(CHAT, f"{mode};after_chunks=5000;delay_ms=0"))
        assert (
            "lost"
            in server.log.wait_for(r"(?i)^.*\b[\d,_]+ bytes.*lost.*$|^.*lost.*bytes.*$", since=mark).group()
        )
        assert server.has_let_go()


def test_a_tls_client_that_never_answers_the_close_notify_is_let_go(impatient_tls_server: Server) -> None:
    with Connection(impatient_tls_server.address, tls=True, answers_close_notify=False) as connection:
        connection.send(fault_request(CHAT, "cut_between_frames"))
        got = connection.until_end(timeout=6)
        assert got.close_notify
        assert got.end in {FIN, RST}
        assert impatient_tls_server.has_let_go()


def test_a_slow_reader_that_makes_progress_is_not_let_go(impatient: Server) -> None:
    """Three times --linger-s in all, but something is acknowledged all the time."""
    with Connection(impatient.address, receive_buffer=4096) as connection:
        connection.send(fault_request(CHAT, "reset;after_chunks=2000;delay_ms=0"))
        got = connection.until_end(size=1024, pause=0.008)
    assert got.end == RST
    assert len(got.chunked.chunks) == 2001


def test_a_stall_has_nothing_to_send_and_outlives_both_limits(impatient: Server) -> None:
    got = exchange(impatient.address, fault_request(CHAT, "stall"), timeout=3)
    assert got.end == OPEN


def test_an_endless_script_is_served_in_constant_memory(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, f"cut_between_frames;{ENDLESS};delay_ms=0"))
        total = 0
        base = 0
        while total < 32 * MIB:
            assert connection.read() is None
            total += len(connection.received)
            connection.received.clear()
            base = base or (server.rss() if total > 2 * MIB else 0)
        assert server.rss() - base < 8 * MIB
    assert ask(server.address, request("GET", "/health")).status == 200


@pytest.mark.parametrize(
    "data",
    [
        fault_request(CHAT, f"reset;{ENDLESS};delay_ms=0"),
        request("POST", CHAT, payload(CHAT, max_tokens=130_000)),
    ],
    ids=["fault", "engine"],
)
def test_long_answers_to_readers_that_never_read_take_bounded_memory_each(
    server: Server, data: bytes
) -> None:
    base = server.rss()
    connections = [Connection(server.address, receive_buffer=4096) for _ in range(20)]
    try:
        for connection in connections:
            connection.send(data)
        for _ in range(20):  # each answer lets every stream have its turn
            assert ask(server.address, request("GET", "/health")).status == 200
        got = exchange(server.address, fault_request(CHAT, "reset;after_chunks=2000;delay_ms=0"))
        assert len(got.chunked.chunks) == 2001
        assert server.rss() - base < 20 * MIB
    finally:
        for connection in connections:
            connection.reset()


@pytest.mark.parametrize("mode", ["stall", "reset", "no_done", "cut_mid_frame"])
def test_the_longest_delay_is_a_very_long_pause_and_not_a_crash(server: Server, mode: str) -> None:
    base = server.rss()
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, f"{mode};{ENDLESS};{FOREVER}"))
        connection.until(b"assistant")
        assert connection.until_end(timeout=0.2).end == OPEN
        assert server.rss() - base < 8 * MIB
    assert server.has_let_go()


def test_a_reader_that_does_not_read_holds_up_no_other_stream(server: Server) -> None:
    with Connection(server.address, receive_buffer=4096) as stuck:
        stuck.send(fault_request(CHAT, f"reset;{ENDLESS};delay_ms=0"))
        for endpoint_fault in ("reset", "no_done", "cut_mid_frame"):
            assert (
                exchange(server.address, fault_request(CHAT, endpoint_fault, Connection="close")).status
                == 200
            )
        healthy = ask(server.address, request("POST", CHAT, payload(CHAT, max_tokens=50)))
        assert healthy.chunked.chunks[-1] == b"data: [DONE]\n\n"
        stuck.reset()
