"""Work beside the reactor: who waits for it gets what comes of it, and nobody keeps it."""

from __future__ import annotations

import gc
import weakref
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from inference_lab.wire.turns import Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Reactor:
    """Takes what a thread hands over, until the test asks for it."""

    def __init__(self) -> None:
        self.calls: Queue[Callable[[], object]] = Queue()

    def callFromThread(self, function: Callable[..., object], *args: Any) -> None:  # noqa: N802 - Twisted's name
        self.calls.put(lambda: function(*args))

    def turn(self) -> None:
        self.calls.get(timeout=60)()


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


@pytest.fixture
def thread(reactor: Reactor) -> Iterator[Thread]:
    thread = Thread(reactor)
    yield thread
    thread.stop()


def results(done: Deferred[Any]) -> list[Any]:
    found: list[Any] = []
    done.addBoth(found.append)
    return found


def test_what_work_returns_or_raises_comes_in_a_turn_of_the_reactor(thread: Thread, reactor: Reactor) -> None:
    found = results(thread(lambda: 6 * 7))
    failed = results(thread(lambda: {}["no"]))
    assert found == failed == []
    reactor.turn()
    reactor.turn()
    assert found == [42]
    assert failed[0].check(KeyError)


def test_work_whose_client_has_left_is_not_begun_and_what_it_was_to_do_is_let_go(
    thread: Thread, reactor: Reactor
) -> None:
    class Body:
        """What a request holds."""

    gate, begun, body = Queue[None](), [], Body()
    kept = weakref.ref(body)
    first = results(thread(lambda: gate.get(timeout=60)))
    second = thread(lambda body=body: begun.append(body))
    found = results(second)
    second.cancel()
    assert found[0].check(CancelledError)
    del body, second
    gate.put(None)
    third = results(thread(lambda: "third"))
    while not third:
        reactor.turn()
    assert first == [None]
    assert begun == []
    gc.collect()
    assert kept() is None


def test_work_that_is_under_way_does_not_hold_up_the_end_and_none_is_begun_after_it(
    thread: Thread, reactor: Reactor
) -> None:
    gate, begun = Queue[None](), Queue[None]()

    def wait() -> None:
        begun.put(None)
        gate.get(timeout=60)

    thread(wait)
    begun.get(timeout=60)
    after = results(thread(lambda: "after"))
    thread.stop()  # would wait for the gate, if it waited for the work
    gate.put(None)
    reactor.turn()
    assert reactor.calls.empty()
    assert after == []
