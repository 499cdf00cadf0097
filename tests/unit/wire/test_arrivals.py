"""Requests that drip are refused in time, and all bodies together have a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import CHAT, OPEN, Received, request

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.testing import StringTransportWithDisconnection

    from inference_lab.wire.h1.channel import LabChannel

HEALTH = request("GET", "/health")
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
CHUNKED = request("POST", CHAT, headers={"Transfer-Encoding": "chunked"})


@pytest.fixture
def lab(tmp_path: Path) -> MemoryLab:
    return MemoryLab(write(tmp_path, {"m": MODEL.format(name="m")}), max_bodies_bytes=2**25)


def drip(
    lab: MemoryLab, connection: tuple[LabChannel, StringTransportWithDisconnection], data: bytes
) -> float:
    """Send a byte at a time while it makes a difference; answers for how long."""
    channel, transport = connection
    begun = lab.clock.seconds()
    for byte in data:
        if transport.value():
            break
        channel.dataReceived(bytes([byte]))
        lab.clock.advance(5)
    return lab.clock.seconds() - begun


def late(raw: bytes) -> Received:
    got = Received(raw, OPEN)
    assert got.status == 408
    assert got.error["code"] == "request_timeout"
    assert got.headers["connection"] == "close"
    return got


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "kept alive"])
def test_a_head_that_drips_is_refused_after_a_minute_and_let_go(lab: MemoryLab, before: bytes) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(before)
    transport.clear()
    assert drip(lab, (channel, transport), HEALTH) == 60
    assert "head" in late(transport.value()).error["message"]
    lab.clock.advance(10)
    assert not transport.connected
    assert not lab.rows


@pytest.mark.parametrize("head", [request("POST", CHAT, headers={"Content-Length": "900"}), CHUNKED])
def test_a_body_that_drips_is_refused_with_a_row(lab: MemoryLab, head: bytes) -> None:
    channel, transport = lab.connect()
    lab.clock.advance(50)
    channel.dataReceived(head)
    assert drip(lab, (channel, transport), b"1" * 50) == 60
    assert "body" in late(transport.value()).error["message"]
    assert [(row.status, row.error) for row in lab.rows.values()] == [(408, "request_timeout")]


def test_a_body_at_the_least_rate_may_take_its_time(lab: MemoryLab) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", CHAT, headers={"Content-Length": "90001", "Expect": "100-continue"}))
    assert transport.value() == b"HTTP/1.1 100 Continue\r\n\r\n"
    transport.clear()
    for _ in range(36):
        channel.dataReceived(b" " * 2500)
        lab.clock.advance(5)
    assert not transport.value()
    channel.dataReceived(b" ")
    assert Received(transport.value(), OPEN).status == 400


def test_the_time_of_a_pipelined_head_begins_behind_the_answer_before_it(lab: MemoryLab) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(
        request("POST", CHAT, BODY, headers={"x-inference-lab-fault": "ok;status_delay_ms=0"})[:-1]
    )
    lab.clock.advance(30)
    channel.dataReceived(b"}" + HEALTH[:-1])
    lab.clock.advance(1)
    transport.clear()
    lab.clock.advance(58)
    assert not transport.value()
    channel.dataReceived(HEALTH[-1:])
    assert Received(transport.value(), OPEN).status == 200


def test_an_idle_connection_and_one_that_says_nothing_are_closed_without_an_answer(lab: MemoryLab) -> None:
    for said in (b"", HEALTH, HEALTH + b"\r\n"):
        channel, transport = lab.connect()
        channel.dataReceived(said)
        transport.clear()
        lab.clock.advance(61)
        assert not transport.value()
        assert not transport.connected


def test_a_server_without_connections_has_no_timer(lab: MemoryLab) -> None:
    lab.send(HEALTH)
    assert not lab.clock.getDelayedCalls()


def announced(size: int) -> bytes:
    return request("POST", CHAT, headers={"Content-Length": str(size)})


def test_a_body_without_room_is_a_503_until_another_is_let_go(lab: MemoryLab) -> None:
    bodies = lab.site.bodies
    held = [lab.connect() for _ in range(2)]
    for channel, _ in held:
        channel.dataReceived(announced(2**24))
    assert bodies.held_bytes == bodies.limit_bytes
    for refused in (announced(1), CHUNKED + b"1\r\n{\r\n"):
        channel, transport = lab.connect()
        channel.dataReceived(refused)
        got = Received(transport.value(), OPEN)
        assert (got.status, got.error["code"], got.headers["retry-after"]) == (503, "overloaded", "1")
    held[0][1].loseConnection()
    assert bodies.held_bytes == 2**24
    assert lab.exchange(CHAT, BODY).status == 200
    held[1][1].loseConnection()
    assert bodies.held_bytes == 0


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_been_answered_or_stalls_holds_no_body(
    lab: MemoryLab,
    stream: bool,
) -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    ).encode()
    channel, _ = lab.connect()
    channel.dataReceived(
        request("POST", CHAT, body, headers={"x-inference-lab-fault": "stall"} if stream else {})
    )
    lab.clock.advance(1)
    assert lab.site.bodies.held_bytes == 0


def test_what_is_pipelined_counts_and_is_reset_without_room(lab: MemoryLab) -> None:
    bodies = lab.site.bodies
    stalled = request(
        "POST", CHAT, BODY[:-1] + b',"stream":true}', headers={"x-inference-lab-fault": "stall"}
    )
    channel, transport = lab.connect()
    channel.dataReceived(stalled + b"x" * 1000)
    channel.dataReceived(b"x" * 500)
    assert bodies.held_bytes == 1500
    bodies.take(bodies.limit_bytes - 1500)
    channel.dataReceived(b"x")
    assert not transport.connected
    assert bodies.held_bytes == bodies.limit_bytes - 1500
