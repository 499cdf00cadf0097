"""A client whose body is too large is answered at once, listened to for a while, and then let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.reference_model.contract import CHAT
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import request

if TYPE_CHECKING:
    from pathlib import Path


def test_a_client_that_goes_on_for_ever_is_closed_after_ten_seconds_and_counted_once(tmp_path: Path) -> None:
    lab = MemoryLab(write(tmp_path, {"m": MODEL.format(name="m")}))
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", CHAT, headers={"Content-Length": str(1 << 40)}))
    answer = transport.value()
    assert answer.startswith(b"HTTP/1.1 413 ")
    for _ in range(19):
        channel.dataReceived(b" " * 65536)
        lab.clock.advance(0.5)
        assert transport.connected
    lab.clock.advance(0.5)
    assert not transport.connected
    assert transport.value() == answer
    assert list(channel.site.counters.requests.items()) == [(("", "", "", "refused"), 1)]
