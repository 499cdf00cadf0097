"""When things happen: silences, heartbeats and pieces, read off the scripts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.faults.death import Close
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.stream.events import Event, Frame, Pause
from tests.reference_model.contract import CHAT
from tests.support.axes_scripts import script_of
from tests.support.memory import GET, Stage, body_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def moments(directive: str) -> list[tuple[int, bytes]]:
    """When each piece goes out, in milliseconds from the start, and what it begins with."""
    now = 0
    found = []
    for event in script_of(parse_directive(directive).death, CHAT):
        if isinstance(event, Pause):
            now += event.ms
        elif isinstance(event, Frame):
            found.append((now, event.data[:6]))
    return found


D, B = b"data: ", b": ping"
TIMES = {
    "ok;after_chunks=1": [(0, D), (10, D), (20, D), (30, D), (30, D)],
    "ok;after_chunks=1;ttft_ms=70": [(70, D), (80, D), (90, D), (100, D), (100, D)],
    "reset;after_chunks=1;ttft_ms=2500;heartbeat=ping": [(1000, B), (2000, B), (2500, D), (2510, D)],
    "reset;after_chunks=1;ttft_ms=2500;heartbeat=ping;beats=1": [(1000, B), (2500, D), (2510, D)],
    "reset;after_chunks=9;then=rest;delay_ms=0;pause_ms=1500;heartbeat=ping": [
        *[(0, D)] * 10,
        (1000, B),
        (1500, D),
    ],
    "reset;after_chunks=9;then=rest;delay_ms=0;heartbeat=ping;beats=2": [
        *[(0, D)] * 10,
        (1000, B),
        (2000, B),
        (2000, D),
    ],
    "stall;after_chunks=0;heartbeat=ping;beats=2": [(0, D), (1000, B), (2000, B)],
    # A piece is sent when its last frame is due; gaps cost nothing that the delays would not have cost.
    "reset;after_chunks=3;segment=2": [(10, D), (30, D)],
    "reset;after_chunks=3;segment=2;gap_ms=15": [(10, D), (30, D)],
    "reset;after_chunks=3;segment=2;gap_ms=50": [(10, D), (60, D)],
    "reset;after_chunks=3;segment=whole": [(30, D)],
}


@pytest.mark.parametrize("directive", TIMES)
def test_each_piece_has_its_moment(directive: str) -> None:
    assert moments(directive) == TIMES[directive]


def test_the_deadlines_of_frames_stand_however_slow_the_pieces_are_up_to_the_fault_point() -> None:
    times = [
        now
        for now, data in moments("reset;after_chunks=3;delay_ms=1000;segment=byte;gap_ms=1")
        if data == b"d"
    ]
    assert times[0] == 0
    starts = [now for now in times if now % 1000 == 0]
    assert starts == [0, 1000, 2000, 3000]
    pieces = [now for now, _ in moments("reset;after_chunks=0;then=rest;segment=byte;gap_ms=1;pause_ms=5000")]
    assert max(after - before for before, after in pairwise(pieces)) >= 5000


def test_pieces_leave_in_sends_of_their_own() -> None:
    def script() -> Iterator[Event]:
        yield Frame(b"a", alone=True)
        yield Frame(b"b", alone=True)
        yield Frame(b"c")
        yield Frame(b"d")
        yield Close.HANG

    stage = Stage(script)
    channel, transport = stage.connect()
    sends: list[bytes] = []
    write = transport.write

    def noted(data: bytes) -> None:
        sends.append(data)
        write(data)

    transport.write = noted  # type: ignore[method-assign]
    channel.dataReceived(GET)
    assert body_of(transport).count(b"1\r\n") == 4
    assert [data[-4:] for data in sends] == [b"\na\r\n", b"\nb\r\n", b"\nd\r\n"]
