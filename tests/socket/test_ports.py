"""Several ports of one server are one world: one journal, one count, one conversation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.testing import running_lab
from tests.reference_model.contract import CHAT
from tests.support.rawclient import FIN, Received, ask, exchange, fault_request, payload, request
from tests.support.server import CONSOLE, TWISTD, Server, options, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.tls import Certificate

ONCE = "cut_between_frames;after_chunks=2;times=1, ok"


def ask_lab(address: tuple[str, int] | str, query: str) -> Any:
    return exchange(address, request("GET", f"/lab/{query}", headers={"Connection": "close"})).json


def fall_over(first: tuple[str, int] | str, second: tuple[str, int] | str, test: str) -> list[Received]:
    """A leg that dies at the one, and the next, with what it said, at the other."""
    messages = [{"role": "user", "content": "hello"}]
    died = exchange(first, fault_request(CHAT, ONCE, payload(CHAT, messages=messages), **{"x-test-id": test}))
    said = [*messages, {"role": "assistant", "content": "qu0000 qu0001"}]
    body = payload(CHAT, messages=said, max_tokens=3)
    went_on = exchange(second, fault_request(CHAT, ONCE, body, **{"x-test-id": test, "Connection": "close"}))
    return [died, went_on]


@pytest.fixture(params=[TWISTD, CONSOLE], ids=["twistd", "console script"])
def pair(request: pytest.FixtureRequest, one_config: Path) -> Iterator[Server]:
    """One server on two ports that the kernel picks."""
    server = start(one_config, "--enable-directives", "--port", "0", how=request.param)
    yield server
    server.stop()


def both(server: Server) -> tuple[tuple[str, int], tuple[str, int]]:
    first, second = server.ports
    assert first != second
    return (server.host, first), (server.host, second)


def test_the_ready_line_names_each_port_and_each_answers(pair: Server) -> None:
    first, second = both(pair)
    line = pair.log.wait_for("ready: .* serving").group()
    assert line == f"ready: http://127.0.0.1:{first[1]} and http://127.0.0.1:{second[1]} serving"
    for address in (first, second):
        assert ask(address, request("GET", "/health")).status == 200


def test_a_fall_over_is_one_conversation_with_the_ports_in_its_rows(pair: Server) -> None:
    first, second = both(pair)
    died, went_on = fall_over(first, second, "fall-over")
    assert (died.end, died.chunked.terminated) == (FIN, False)
    assert went_on.chunked.terminated
    for asked in (first, second):
        rows = ask_lab(asked, "journal?test=fall-over&count=2&wait=5")["data"]
        assert [(row["port"], row["progress"], row["ending"]) for row in rows] == [
            (first[1], 0, "fin"),
            (second[1], 2, "terminator"),
        ]
        (conversation,) = ask_lab(asked, "verdict?test=fall-over")["data"]
        assert (len(conversation["legs"]), conversation["end"]) == (2, "whole")
        assert conversation["findings"] == []


def test_times_counts_what_came_to_any_port(pair: Server) -> None:
    first, second = both(pair)
    data = fault_request(CHAT, "ok;status=503;times=1", **{"x-test-id": "count", "Connection": "close"})
    assert [exchange(address, data).status for address in (second, first, second)] == [503, 200, 200]


def test_workers_share_each_port(one_config: Path) -> None:
    server = start(one_config, "--enable-directives", "--port", "0", "--workers", "2", how=CONSOLE)
    try:
        first, second = both(server)
        server.log.wait_for(r"ready: \S+ and \S+ serving lab \(2 workers\)")
        assert fall_over(first, second, "workers")[1].chunked.terminated
        for _ in range(8):  # whichever worker answers
            rows = ask_lab(first, "journal?test=workers&count=2&wait=5")["data"]
            assert [row["port"] for row in rows] == [first[1], second[1]]
    finally:
        server.stop()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_a_busy_port_among_those_of_workers_is_named(pair: Server, one_config: Path) -> None:
    _, (_, taken) = both(pair)
    other = Server([*options(one_config), "--port", str(taken), "--workers", "2"], how=CONSOLE)
    assert other.process.wait(20) == 1
    other.stop()
    assert other.errors.since() == [
        f"inference-lab: cannot listen on 127.0.0.1:{taken}: Address already in use"
    ]


def test_endpoints_of_several_kinds_are_one_server_and_a_unix_socket_has_no_port(
    one_config: Path, tmp_path: Path, certificate: Certificate
) -> None:
    path = str(tmp_path / "lab.sock")
    server = start(
        one_config,
        "--enable-directives",
        "--endpoint",
        certificate.endpoint(),
        "--endpoint",
        f"unix:{path}",
        how=CONSOLE,
    )
    try:
        server.log.wait_for(rf"ready: https://127\.0\.0\.1:{server.port} and unix:{path} serving")
        assert Path(path).stat().st_mode & 0o777 == 0o600
        data = fault_request(CHAT, "no_done;delay_ms=0", **{"x-test-id": "kinds", "Connection": "close"})
        assert exchange(server.address, data, tls=True).status == exchange(path, data).status == 200
        rows = ask_lab(path, "journal?test=kinds&count=2&wait=5")["data"]
        assert [row["port"] for row in rows] == [server.port, None]
    finally:
        server.stop()


def test_a_lab_of_a_test_has_the_urls_of_all_its_ports() -> None:
    with running_lab("--port", "0", "--port=0") as lab:
        assert len(set(lab.urls)) == 2
        assert lab.url == lab.urls[0]
    with running_lab() as lab:
        assert lab.urls == (lab.url,)
