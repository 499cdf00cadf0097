"""Of a client that has left nothing stays: neither its connection nor its request nor what played the response."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.wire.player import Player
from tests.reference_model.contract import CHAT
from tests.support.rawclient import fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.lab import MemoryLab

LEFT = {
    "a stall": fault_request(CHAT, "stall;delay_ms=0", payload(CHAT, model="lab")),
    "a pause": fault_request(CHAT, f"reset;delay_ms={2**64 - 1}", payload(CHAT, model="lab")),
    "a silence before the first token": fault_request(
        CHAT, f"ok;ttft_ms={2**31}", payload(CHAT, model="lab")
    ),
    "an echo": request("POST", CHAT, payload(CHAT, model="lab", messages=[{"role": "user", "content": "x"}])),
    "half a body": request("POST", CHAT, headers={"Content-Length": "300000"}) + b" " * 200_000,
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n",
    "much behind a stall": fault_request(CHAT, "stall;delay_ms=0", payload(CHAT, model="lab"))
    + request("GET", "/health") * 400,
}


@pytest.fixture(autouse=True)
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a log begins, Twisted keeps its events for it, and with them what they are about."""
    silent = Logger(observer=lambda _: None)
    for name, module in list(sys.modules.items()):
        if name.startswith("inference_lab.") and hasattr(module, "_log"):
            monkeypatch.setattr(module, "_log", silent)


def players() -> list[Player]:
    return [found for found in gc.get_objects() if isinstance(found, Player)]


@pytest.mark.parametrize("reason", [ConnectionDone, ConnectionLost])
@pytest.mark.parametrize("data", LEFT.values(), ids=LEFT)
def test_nothing_is_kept_of_a_client_that_has_left(
    lab: MemoryLab, data: bytes, reason: type[Exception]
) -> None:
    gc.collect()
    before = len(players())
    left: list[weakref.ref[Any]] = []
    for _ in range(3):
        channel, transport = lab.connect()
        channel.dataReceived(data)
        lab.clock.advance(0.5)
        left += [weakref.ref(channel), *map(weakref.ref, channel.requests)]
        transport.connected = False
        channel.connectionLost(Failure(reason()))
        del channel, transport
    lab.clock.advance(1.0)
    gc.collect()
    assert [kept for kept in left if kept() is not None] == []
    assert len(players()) == before
