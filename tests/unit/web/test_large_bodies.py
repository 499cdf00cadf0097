"""A large body is read beside the reactor: nobody waits for it but its own client, and a small one never goes there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import Deferred, execute

from inference_lab.wire.turns import LARGE_BYTES
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import FIN, OPEN, Received, request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = "word " * LARGE_BYTES
BODIES = {
    CHAT: {"model": "m", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": LONG}]},
    COMPLETIONS: {"model": "m", "stream": True, "max_tokens": 2, "prompt": LONG},
    "/tokenize": {"model": "m", "prompt": LONG},
}


class Later:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred(lambda _: self.waiting.clear())
        self.waiting.append(lambda: execute(work).addBoth(done.callback) and None)
        return done


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def lab(tmp_path: Path, later: Later) -> MemoryLab:
    folder = write(tmp_path, {"m": MODEL.format(name="m")})
    return MemoryLab(folder, aside=later)


@pytest.mark.parametrize("path", BODIES)
def test_others_are_answered_before_it_is_read(lab: MemoryLab, later: Later, path: str) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", path, json.dumps(BODIES[path]).encode()))
    lab.clock.advance(0.01)
    assert transport.value() == b""
    assert lab.exchange(
        path, {**BODIES[path], "prompt": "p", "messages": [{"role": "user", "content": "p"}]}
    ).status
    assert len(later.waiting) == 1, "the small one has not gone there"
    later.waiting.pop()()
    lab.clock.advance(0.01)
    assert Received(transport.value(), OPEN if transport.connected else FIN).status == 200
    transport.loseConnection()


@pytest.mark.parametrize("body", [b"[" * 2 * LARGE_BYTES, b"\xff" * 2 * LARGE_BYTES])
def test_what_is_wrong_with_it_is_refused_as_of_a_small_one(
    lab: MemoryLab, later: Later, body: bytes
) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", CHAT, body))
    later.waiting.pop()()
    lab.clock.advance(0.01)
    got = Received(transport.value(), OPEN)
    assert got.status == 400
    assert got.error["code"] == "invalid_request"
    transport.loseConnection()


def test_one_whose_client_has_left_is_recorded_as_that_and_not_read(lab: MemoryLab, later: Later) -> None:
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", CHAT, json.dumps(BODIES[CHAT]).encode()))
    transport.loseConnection()
    assert later.waiting == []
    (row,) = lab.rows.values()
    assert (row.state, row.ending, row.status) == ("ended", "client_left", None)
