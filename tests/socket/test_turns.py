"""A turn of the reactor serves a few sockets, however many are ready."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.epollreactor import EPollReactor

from inference_lab.wire.pacer import TURN_US, Pacer
from inference_lab.wire.turns import AT_ONCE, SOCKETS, Line, bound_turns
from tests.reference_model.contract import CHAT
from tests.support.lab import MemoryLab, files, write
from tests.support.memory import TurnClock
from tests.support.rawclient import payload, request

if TYPE_CHECKING:
    from pathlib import Path


class Readable:
    """A pipe in which something lies that nobody takes."""

    def __init__(self) -> None:
        self._read_fd, write_fd = os.pipe()
        os.write(write_fd, b"x")
        self._write_fd = write_fd
        self.times = 0

    def fileno(self) -> int:
        return self._read_fd

    def logPrefix(self) -> str:  # noqa: N802 - Twisted's name
        return "readable"

    def doRead(self) -> None:  # noqa: N802 - Twisted's name
        self.times += 1

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


def test_a_few_sockets_are_served_a_turn_and_all_get_theirs() -> None:
    reactor = EPollReactor()
    bound_turns(reactor)
    bound_turns(reactor)  # once is enough
    ready = [Readable() for _ in range(5 * SOCKETS)]
    for readable in ready:
        reactor.addReader(readable)
    try:
        for turn in range(1, 11):
            reactor.doPoll(0)
            assert sum(readable.times for readable in ready) == turn * SOCKETS
        assert {readable.times for readable in ready} == {2}
    finally:
        reactor.removeAll()
        for readable in ready:
            readable.close()


def test_another_kind_of_reactor_is_left_alone() -> None:
    other = object()
    bound_turns(other)
    assert not hasattr(other, "_poller")


def test_few_requests_are_answered_as_they_come_and_many_in_their_turn_and_order() -> None:
    clock = TurnClock()
    line = Line(Pacer(clock, clock.seconds))
    answered: list[int] = []

    def answer(number: int) -> None:
        answered.append(number)
        clock.rightNow += 0.000_7

    for number in range(50):
        line.enter(partial(answer, number))
    assert answered == list(range(AT_ONCE))
    while clock.getDelayedCalls():
        begun = len(answered)
        clock.turn()
        assert len(answered) - begun <= TURN_US // 700 + 1
        if len(answered) == 4 * AT_ONCE:
            clock.rightNow += 1
            line.enter(partial(answer, 50))  # nobody comes before those that wait
    assert answered == list(range(51))
    clock.rightNow += 1
    line.enter(partial(answer, 51))
    assert answered[-1] == 51


def test_who_only_looks_does_not_wait_behind_requests_and_who_leaves_the_line_has_left(
    tmp_path: Path,
) -> None:
    lab = MemoryLab(write(tmp_path, files(families=("lab",))))
    asked = request("POST", CHAT, payload(CHAT, model="lab", max_tokens=1))
    clients = [lab.connect() for _ in range(3 * AT_ONCE)]
    for channel, _ in clients:
        channel.dataReceived(asked)
    assert [bool(transport.value()) for _, transport in clients] == [True] * AT_ONCE + [False] * 2 * AT_ONCE
    looking, health = lab.connect()
    looking.dataReceived(request("GET", "/health"))
    assert health.value().startswith(b"HTTP/1.1 200 ")
    clients[-1][1].loseConnection()
    lab.clock.advance(0)
    assert all(transport.value().startswith(b"HTTP/1.1 200 ") for _, transport in clients[:-1])
    assert not clients[-1][1].value()
    rows = lab.rows
    assert [rows[number].ending for number in sorted(rows)] == ["terminator"] * (3 * AT_ONCE - 1) + [
        "client_left"
    ]
