"""What bounds the load: --max-streams, descriptors up to the hard limit, and time."""

from __future__ import annotations

import re
import resource
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT
from tests.support.paths import ROOT
from tests.support.prometheus import samples_of
from tests.support.rawclient import FIN, Connection, ask, fault_request, payload, request
from tests.support.server import CONSOLE, Server, eventually, options, start

if TYPE_CHECKING:
    from collections.abc import Iterator

LLAMA = ROOT / "configs" / "llama-3.1-8b-instruct.toml"
MODEL = "Llama-3.1-8B-Instruct"


@pytest.fixture
def small(one_config: Path) -> Iterator[Server]:
    """A server that takes two streams."""
    server = start(one_config, "--enable-directives", "--max-streams", "2")
    yield server
    server.stop()


def test_one_stream_too_many_is_refused_until_another_ends(small: Server) -> None:
    stall = fault_request(CHAT, "stall;delay_ms=0")
    with ExitStack() as stack:
        first, second = (stack.enter_context(Connection(small.address)) for _ in range(2))
        for connection in (first, second):
            connection.send(stall)
            connection.until(b"0002")
        for data in (stall, request("POST", CHAT, payload(CHAT))):
            refused = ask(small.address, data)
            assert refused.status == 503
            assert refused.error["code"] == "overloaded"
            assert refused.error["type"] == "server_error"
            assert refused.headers["retry-after"] == "1"
        assert ask(small.address, request("GET", "/health")).status == 200
        assert ask(small.address, request("POST", CHAT, payload(CHAT, stream=False))).status == 200
        assert ask(small.address, request("POST", CHAT, payload(CHAT, model="nobody"))).status == 404
        first.reset()
        assert eventually(lambda: ask(small.address, request("POST", CHAT, payload(CHAT))).status == 200)


def test_a_connection_that_was_refused_can_be_used_again(small: Server) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(Connection(small.address)) for _ in range(2)]
        for connection in held:
            connection.send(fault_request(CHAT, "stall;delay_ms=0"))
            connection.until(b"0002")
        waiting = stack.enter_context(Connection(small.address))
        waiting.send(request("POST", CHAT, payload(CHAT)))
        assert waiting.response().status == 503
        held[0].reset()
        assert eventually(lambda: small.log.since()[-1].endswith("client left"))
        waiting.send(request("POST", CHAT, payload(CHAT)))
        assert waiting.response().status == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(one_config: Path, workers: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited = ["sh", "-c", 'ulimit -S -n 64 && exec "$@"', "sh", *CONSOLE]
    server = Server(options(one_config, "--workers", workers, "--enable-directives"), how=limited)
    try:
        server.wait_until_ready()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        for pid in [str(server.pid), *children]:
            found = re.search(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text())
            assert found
            assert found.groups() == (str(hard), str(hard))
        with ExitStack() as stack:
            for _ in range(150):
                connection = stack.enter_context(Connection(server.address))
                connection.send(fault_request(CHAT, "stall;delay_ms=0"))
                connection.until(b"0002")
    finally:
        server.stop()


def test_a_limit_that_cannot_be_raised_is_no_reason_not_to_serve(one_config: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *CONSOLE]
    server = Server(options(one_config), how=limited)
    try:
        server.wait_until_ready()
        assert ask(server.address, request("GET", "/health")).status == 200
    finally:
        server.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_first_requests_without_descriptors_are_answered_or_their_connections_closed(
    one_config: Path, workers: str
) -> None:
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *CONSOLE]
    requests = [
        request("POST", CHAT, payload(CHAT)),
        fault_request(CHAT, "ok;times=1,reset"),
        request("GET", "/lab/journal"),
        request("GET", "/metrics"),
        request("GET", "/nowhere"),
    ]
    server = Server(options(one_config, "--workers", workers, "--enable-directives"), how=limited)
    statuses = Counter[int]()
    try:
        server.wait_until_ready()
        with ExitStack() as stack:
            held = [stack.enter_context(Connection(server.address)) for _ in range(200)]
            for number, connection in enumerate(held):
                with suppress(OSError):  # closed by the server, which had no descriptor for it
                    connection.send(requests[number % len(requests)])
            for connection in held:
                connection.sock.settimeout(2.0)
                with suppress(OSError, AssertionError):  # closed, or still in the queue
                    statuses[connection.response().status] += 1
                connection.sock.close()
        assert ask(server.address, request("GET", "/health")).status == 200
    finally:
        server.stop()
    log = "\n".join(server.log.since() + server.errors.since())
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert statuses[200] > 10, statuses
    # 503: workers count `times` in a file, which is opened when it is first needed.
    assert statuses.keys() <= {200, 404, 503}, statuses


def test_who_asks_an_engine_for_more_than_there_is_time_for_is_late_and_nobody_else() -> None:
    """A stream whose hundred thousand steps are all due at once, and take a second and more to make."""
    server = start(LLAMA, "--speed", "1e9", "--enable-directives")
    try:
        with Connection(server.address) as late:
            late.send(request("POST", CHAT, payload(CHAT, model=MODEL, max_tokens=120_000)))
            late.until(b"data: ")
            assert ask(server.address, request("GET", "/health")).status == 200
            death = fault_request(
                CHAT, "cut_between_frames;after_chunks=3;delay_ms=20", payload(CHAT, model=MODEL)
            )
            with Connection(server.address) as dying:
                dying.send(death)
                assert dying.until_end().end == FIN
            during = samples_of(server)
            assert during["inference_lab_live_streams", ()] == 1
            assert during["inference_lab_engine_lag_seconds", (("model_name", MODEL),)] > 0.01
        assert eventually(lambda: server.log.since()[-1].endswith("client left"))
        assert any(
            "behind the clock: too many tokens for this process" in line for line in server.log.since()
        )
        got = ask(server.address, request("GET", "/lab/journal?trigger=engine")).json
        (row,) = got["data"]
        assert row["engine"]["lag_ms"] > row["engine"]["ttft_ms"]
    finally:
        server.stop()
