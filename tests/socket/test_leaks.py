"""Five hundred clients vanish; nothing of them stays."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.rawclient import Connection, ask, fault_request, payload, request
from tests.support.server import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.server import Server

CLIENTS = 500
FOREVER = "delay_ms=18446744073709551615"
PIPELINED = request("GET", "/health") * 400  # above 16 KiB, below 64 KiB
assert 16384 < len(PIPELINED) < 65536


def _close(connection: Connection) -> None:
    connection.sock.close()


def _reset(connection: Connection) -> None:
    connection.reset()


def _pipeline_then_close(connection: Connection) -> None:
    connection.send(PIPELINED)
    connection.sock.close()


def _pipeline_then_reset(connection: Connection) -> None:
    connection.send(PIPELINED)
    connection.reset()


WAYS = (_close, _reset, _pipeline_then_close, _pipeline_then_reset)


def _vanish(
    server: Server,
    data: bytes,
    last: bytes,
    leave: Callable[[Connection], None],
    clients: int,
    *,
    tls: bool = False,
) -> None:
    assert server.has_let_go(), "of what earlier tests left behind"
    with ExitStack() as stack:
        connections = [stack.enter_context(Connection(server.address, tls=tls)) for _ in range(clients)]
        for connection in connections:
            connection.send(data)
        for connection in connections:
            connection.until(last)
        assert eventually(lambda: server.connections() == clients)
        for connection in connections:
            leave(connection)
        assert server.has_let_go(), f"{server.connections()} descriptors are left"
    assert ask(server.address, request("GET", "/health"), tls=tls).json == {"status": "ok"}


@pytest.mark.parametrize("leave", WAYS)
def test_five_hundred_stalled_streams_leave_no_descriptor(
    server: Server, leave: Callable[[Connection], None]
) -> None:
    _vanish(server, fault_request(CHAT, "stall;delay_ms=0"), b"0002", leave, CLIENTS)


@pytest.mark.parametrize("leave", WAYS)
def test_streams_in_a_very_long_pause_leave_no_descriptor(
    server: Server, leave: Callable[[Connection], None]
) -> None:
    data = fault_request(COMPLETIONS, f"reset;after_chunks=9;{FOREVER}")
    _vanish(server, data, b"0000", leave, 100)


@pytest.mark.parametrize("leave", WAYS)
def test_engine_requests_whose_clients_vanish_leave_no_descriptor(
    server: Server, leave: Callable[[Connection], None]
) -> None:
    _vanish(server, request("POST", CHAT, payload(CHAT, model="slow")), b"assistant", leave, 100)


@pytest.mark.parametrize("leave", WAYS)
def test_whole_answers_that_nobody_waits_for_leave_no_descriptor(
    server: Server, leave: Callable[[Connection], None]
) -> None:
    _vanish(server, request("POST", CHAT, payload(CHAT, model="slow", stream=False)), b"", leave, 100)


@pytest.mark.parametrize("leave", WAYS)
def test_stalled_streams_over_tls_leave_no_descriptor(
    tls_server: Server, leave: Callable[[Connection], None]
) -> None:
    _vanish(tls_server, fault_request(CHAT, "stall;delay_ms=0"), b"0002", leave, 50, tls=True)


UNFINISHED = {
    "a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n",
    "a body": request("POST", CHAT, headers={"Content-Length": "300000"}) + b" " * 200000,
    "a chunked body": request("POST", CHAT, headers={"Transfer-Encoding": "chunked"})
    + b"30d40\r\n"
    + b" " * 200000
    + b"\r\n1",
    "a body too large": request("POST", CHAT, headers={"Content-Length": "99999999999"}) + b" " * 100000,
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED)
@pytest.mark.parametrize("leave", [_close, _reset])
def test_unfinished_requests_leave_no_descriptor(
    server: Server, data: bytes, leave: Callable[[Connection], None]
) -> None:
    _vanish(server, data, b"", leave, 50)


@pytest.mark.parametrize(
    ("data", "sign"),
    [
        (fault_request(CHAT, "stall;delay_ms=0"), b"0002"),
        (fault_request(CHAT, f"reset;{FOREVER}"), b"assistant"),
        (request("POST", CHAT, payload(CHAT, model="slow")), b"0000"),
    ],
    ids=["stalled", "paused", "engine"],
)
def test_vanished_clients_leave_no_memory_behind(server: Server, data: bytes, sign: bytes) -> None:
    """Players kept alive would be 4 MiB and more each time; the allocator takes some MiB more now and then.

    `tests/unit/wire/test_vanished.py` looks at the objects themselves.
    """
    for leave in (_close, _reset):
        _vanish(server, data, sign, leave, CLIENTS)
    grown = []
    for _ in range(5):
        base = server.rss()
        _vanish(server, data, sign, _reset, CLIENTS)
        grown.append(server.rss() - base)
    assert min(grown) < 2 << 20, grown


def test_idle_after_all_of_them_means_idle(server: Server) -> None:
    """A timer left behind would keep the process busy: it takes next to no processor time now."""
    _vanish(server, fault_request(CHAT, "stall;after_chunks=4294967295;delay_ms=1"), b"0009", _close, 100)

    def ticks() -> int:
        with open(f"/proc/{server.pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
            fields = stat.read().rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])

    base = ticks()
    with Connection(server.address) as quiet:
        quiet.until_end(timeout=1.0)
    assert ticks() - base <= 10, "a tenth of a second of work in a second of silence"
