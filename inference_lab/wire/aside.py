"""A thread for pure work that takes longer than a turn of the reactor may: what a large body says.

The core needs no reactor, so it may run beside it. Python gives another thread its turn every 5 ms, and the work is cut
so that no single call of it takes much longer. One body at a time: they would only slow each other, and every one takes
memory of its own while it is read.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred, execute
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

LARGE_BYTES: Final = 65_536
"""A body of this size is read in some 10 ms, the longest that goes without a thread."""


class Aside(Protocol):
    """Where long work is done."""

    def __call__(self, work: Callable[[], _T]) -> Deferred[_T]:
        """Do it, and fire with what it returns or raises; cancelled, nobody waits for it any more."""


def at_once(work: Callable[[], _T]) -> Deferred[_T]:
    """An `Aside` for tests, which have no reactor that runs."""
    return execute(work)


class Thread:
    """See `Aside`; the thread begins with the first work. Work that is under way does not hold up the process's end."""

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
