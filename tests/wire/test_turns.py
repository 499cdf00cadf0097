"""A turn of the reactor serves a few sockets, however many are ready."""

from __future__ import annotations

import os

from twisted.internet.epollreactor import EPollReactor

from inference_lab.wire.turns import SOCKETS, bound_turns


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
