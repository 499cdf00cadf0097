"""--drain-s: SIGTERM lets healthy answers finish, refuses what is new, and waits for nothing else."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT
from tests.support.processes import has_ended, workers_of
from tests.support.rawclient import FIN, OPEN, Connection, ask, fault_request, payload, request
from tests.support.server import CONSOLE, TWISTD, eventually, start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.rawclient import Received
    from tests.support.server import Server

STEADY = 'model = "llama-3.1-8b-instruct"\nname = "lab"\n[latency]\nttft_ms = 20\nitl_ms = 20\n'
WORDS = 60  # 1.2 s of them: long enough that the signal always comes in between


@pytest.fixture
def steady(tmp_path: Path) -> Path:
    """A model whose answers take a while."""
    file = tmp_path / "lab.toml"
    file.write_text(STEADY)
    return file


def healthy(*, stream: bool = True) -> bytes:
    return request("POST", CHAT, payload(CHAT, max_tokens=WORDS, stream=stream))


def refusal(server: Server, data: bytes) -> Received:
    """The first answer that is no success: the signal is on its way, to each worker by itself."""
    got = ask(server.address, data)
    while got.status == 200:
        got = ask(server.address, data)
    return got


@pytest.mark.parametrize(
    ("how", "workers"), [(TWISTD, "1"), (CONSOLE, "1"), (CONSOLE, "2")], ids=["twistd", "console", "two"]
)
def test_healthy_answers_finish_and_new_requests_are_refused(
    steady: Path, how: Sequence[str], workers: str
) -> None:
    server = start(steady, "--enable-directives", "--drain-s", "30", "--workers", workers, how=how)
    try:
        with ExitStack() as stack:
            stream, whole, stalled, idle = (stack.enter_context(Connection(server.address)) for _ in range(4))
            stalled.send(fault_request(CHAT, "stall;delay_ms=0"))
            stalled.until(b"0002")
            idle.send(request("GET", "/health"))
            assert idle.response().status == 200
            stream.send(healthy())
            whole.send(healthy(stream=False))
            stream.until(b"0001")
            server.process.terminate()
            refused = refusal(server, request("GET", "/health"))
            assert refused.status == 503
            assert refused.error["code"] == "draining"
            assert refused.error["type"] == "server_error"
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            late = refusal(server, healthy())
            assert (late.status, late.error["code"]) == (503, "draining")
            stream.until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert whole.response().json["usage"]["completion_tokens"] == WORDS
            assert server.process.wait(10) is not None
            assert stalled.until_end().end == FIN
    finally:
        server.stop()
    log = server.log.since()
    assert [line for line in log if "stall" in line and "ended: shutdown" in line]
    assert [line for line in log if "engine" in line and "ended: terminator" in line]
    assert not [line for line in log + server.errors.since() if "Traceback" in line]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_does_not_finish_in_time_is_ended(steady: Path, workers: str) -> None:
    server = start(steady, "--drain-s", "0.2", "--workers", workers, how=CONSOLE)
    try:
        with Connection(server.address) as connection:
            connection.send(request("POST", CHAT, payload(CHAT, max_tokens=100_000)))
            connection.until(b"0001")
            server.process.terminate()
            assert connection.until_end().end != OPEN
            assert server.process.wait(10) == 0
    finally:
        server.stop()
    server.log.wait_for("engine: .* ended: shutdown")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_the_wait(steady: Path, workers: str) -> None:
    server = start(steady, "--drain-s", "600", "--workers", workers, how=CONSOLE)
    try:
        with Connection(server.address) as connection:
            connection.send(request("POST", CHAT, payload(CHAT, max_tokens=100_000)))
            connection.until(b"0001")
            server.process.terminate()
            while ask(server.address, request("GET", "/health")).status == 200:
                time.sleep(0.01)
            server.process.terminate()
            assert server.process.wait(20) == 0
    finally:
        server.stop()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_a_worker_that_hears_of_both_signals_at_once_ends_like_the_others(steady: Path) -> None:
    server = start(steady, "--enable-directives", "--drain-s", "600", "--workers", "2", how=CONSOLE)
    try:
        late, other = workers_of(server.pid)
        os.kill(late, signal.SIGSTOP)
        server.process.terminate()
        assert eventually(lambda: "\n".join(server.log.since()).count("Received SIGTERM") == 2)
        server.process.terminate()
        assert eventually(lambda: has_ended(other))
        os.kill(late, signal.SIGCONT)
        assert server.process.wait(20) == 0
    finally:
        server.stop()
    said = server.log.since() + server.errors.since()
    assert not [line for line in said if "Traceback" in line or "#error" in line]


def test_a_signal_to_every_process_of_the_service_is_one_signal(steady: Path) -> None:
    server = start(steady, "--drain-s", "30", "--workers", "2", how=CONSOLE)
    try:
        with Connection(server.address) as connection:
            connection.send(healthy())
            connection.until(b"0001")
            workers = workers_of(server.pid)
            for pid in workers:
                os.kill(pid, signal.SIGTERM)
            assert eventually(lambda: "\n".join(server.log.since()).count("Received SIGTERM") == len(workers))
            server.process.terminate()
            connection.until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert server.process.wait(10) == 0
    finally:
        server.stop()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_stalls_and_dying_streams_hold_nothing_up(steady: Path) -> None:
    server = start(steady, "--enable-directives", "--drain-s", "600", how=CONSOLE)
    try:
        with ExitStack() as stack:
            for fault in ("stall;delay_ms=0", "reset;delay_ms=60000", "no_done;delay_ms=60000"):
                connection = stack.enter_context(Connection(server.address))
                connection.send(fault_request(CHAT, fault))
                connection.until(b"assistant")
            server.process.terminate()
            assert server.process.wait(10) == 0
    finally:
        server.stop()
