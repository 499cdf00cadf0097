"""A turn of the reactor serves a few sockets and a few requests, then the timers, however many are ready at once.

Two thousand requests that come together would be one turn of a second and more, in which no deadline is kept. The
kernel tells of sockets that are left in the next turns, in their order. A request takes ten times as long to answer as
to read, so those beyond a few wait in a line, and who asks for `/health` not behind them.

Private Twisted name used here, guarded by tests/socket/test_twisted_internals.py:
`EPollReactor._poller` (twisted/internet/epollreactor.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

try:
    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # no Linux: turns are as long as the reactor makes them
    _EPOLL: tuple[type[Any], ...] = ()
else:
    _EPOLL = (EPollReactor,)

if TYPE_CHECKING:
    from collections.abc import Callable
    from select import epoll

    from inference_lab.wire.pacer import Pacer

SOCKETS: Final = 32
"""So many are served in a turn: some milliseconds, if each brings a request that is to wait."""
AT_ONCE: Final = 8
"""So many requests are answered as they come, in a time in which as many could be: some five milliseconds of work."""
_WHILE_US: Final = 10_000


class _FewAtOnce:
    """An epoll object that tells of a few descriptors at a time."""

    def __init__(self, poller: epoll) -> None:
        self._poller = poller
        self.register = poller.register
        self.modify = poller.modify
        self.unregister = poller.unregister
        self.close = poller.close

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        """The descriptors that are ready, `most` at most, and no more than a turn has time for."""
        return self._poller.poll(timeout, min(most, SOCKETS))


def bound_turns(reactor: Any) -> None:  # noqa: ANN401 - Twisted does not type its reactor
    """Let the turns of a process's own reactor be short."""
    if isinstance(reactor, _EPOLL) and not isinstance(reactor._poller, _FewAtOnce):  # noqa: SLF001 - see above
        reactor._poller = _FewAtOnce(reactor._poller)  # noqa: SLF001


class Line:
    """Lets requests in: at once while they are few, else one after the other, as each turn has time for them."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._waiting = 0
        self._since_us = 0
        self._count = 0

    def enter(self, answer: Callable[[], None]) -> None:
        """Call `answer` now or later, in the order of those that enter."""
        now_us = self._pacer.now_us()
        if now_us - self._since_us >= _WHILE_US:
            self._since_us, self._count = now_us, 0
        self._count += 1
        if self._count <= AT_ONCE and not self._waiting:
            answer()
            return

        def in_turn() -> None:
            self._waiting -= 1
            answer()

        self._waiting += 1
        self._pacer.soon(in_turn)
