"""A turn of the reactor serves a few sockets, then the timers: how many are ready at once is for others to say.

A request takes half a millisecond and more. Two thousand that come at once would be one turn, in which no deadline is
kept; the kernel tells of those that are left in the next turns, in their order.

Private Twisted name used here, guarded by tests/wire/test_twisted_internals.py:
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
    from select import epoll

SOCKETS: Final = 8
"""So many are served in a turn: some five milliseconds, if each brings a request."""


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
