"""What keeps the reactor's turns short: a few sockets and requests in each, and long work in slices or on a thread.

Two thousand requests that come together would be one turn of a second and more, in which no deadline is kept. The
kernel reports the sockets that are left in the next turns, in their order. A request takes ten times as long to answer
as to read, so those beyond a few wait in a line, and who asks for `/health` not after them.

Private Twisted name used here, guarded by tests/socket/test_twisted_internals.py:
`EPollReactor._poller` (twisted/internet/epollreactor.py).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

from inference_lab.wire.pacer import TURN_US

try:
    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # no Linux: turns are as long as the reactor makes them
    _EPOLL: tuple[type[Any], ...] = ()
else:
    _EPOLL = (EPollReactor,)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from select import epoll

    from inference_lab.wire.pacer import Pacer

_T = TypeVar("_T")

SOCKETS: Final = 32
"""So many are served in a turn: some milliseconds, if each brings a request that is to wait."""
AT_ONCE: Final = 8
"""So many requests are answered as they come, in a time in which as many could be: some five milliseconds of work."""
_WHILE_US: Final = 10_000
LARGE_BYTES: Final = 65_536
"""A body of this size is read in some 10 ms, the longest that goes without a thread."""


# -- sockets and requests


class _FewAtOnce:
    """An epoll object that reports a few descriptors at a time."""

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


# -- long work


def in_slices(pacer: Pacer, work: Generator[object, None, _T]) -> Deferred[_T]:
    """What `work` returns, which yields wherever the others may have their turn; what it raises is the failure.

    What it does up to its first `yield` is done at once, the rest in turns to come. To cancel is to close it.
    """
    slices = _Slices(pacer, work)
    slices.begin()
    return slices.done


class _Slices(Generic[_T]):
    def __init__(self, pacer: Pacer, work: Generator[object, None, _T]) -> None:
        self._pacer = pacer
        self._work = work
        self.done: Deferred[_T] = Deferred(self._cancel)

    def begin(self) -> None:
        if self._advance():
            self._pacer.soon(self._go_on)

    def _go_on(self) -> None:
        begun_us = self._pacer.now_us()
        while self._advance():
            if self._pacer.now_us() - begun_us >= TURN_US:
                self._pacer.soon(self._go_on)
                return

    def _advance(self) -> bool:
        """Do a part; whether there is more to do."""
        try:
            next(self._work)
        except StopIteration as end:
            self.done.callback(end.value)
        except Exception:  # noqa: BLE001 - whoever waits hears of it
            self.done.errback()
        else:
            return True
        return False

    def _cancel(self, _: object) -> None:
        self._pacer.forget_soon(self._go_on)
        self._work.close()


class Aside(Protocol):
    """Where pure work is done that takes longer than a turn of the reactor may: what a large body says."""

    def __call__(self, work: Callable[[], _T]) -> Deferred[_T]:
        """Do it, and fire with what it returns or raises; cancelled, nobody waits for it any more."""


def at_once(work: Callable[[], _T]) -> Deferred[_T]:
    """An `Aside` for tests, which have no reactor that runs."""
    return execute(work)


class Thread:
    """See `Aside`: Python gives another thread its turn every 5 ms, and no single call of the work takes much longer.

    One body at a time: they would only slow each other, and every one takes memory of its own while it is read. The
    thread begins with the first work; work that is under way does not hold up the process's end.
    """

    def __init__(self, reactor: Any) -> None:  # noqa: ANN401 - Twisted does not type its reactor
        self._reactor = reactor
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, work: Callable[[], _T]) -> Deferred[_T]:
        """See `Aside.__call__`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="large bodies", daemon=True)
            self._thread.start()
        waiting = [work]  # emptied when nobody waits any more, so that nothing is kept of what has been done

        def leave(_: Deferred[_T]) -> None:
            waiting.clear()

        done: Deferred[_T] = Deferred(leave)

        def begin() -> None:
            if not waiting:  # its client has left before its turn came
                return
            try:
                result: _T | Failure = waiting[0]()
            except Exception:  # noqa: BLE001 - whatever it is, whoever waits gets it
                result = Failure()
            self._reactor.callFromThread(end, result)

        def end(result: _T | Failure) -> None:
            if waiting:
                waiting.clear()
                done.callback(result)  # a Failure makes it an errback

        self._work.put(begin)
        return done

    def stop(self) -> None:
        """Begin no other work."""
        with suppress(Empty):
            while True:
                self._work.get_nowait()
        self._work.put(None)

    def _run(self) -> None:
        while (begin := self._work.get()) is not None:
            begin()
            del begin  # or it would be kept until the next comes
