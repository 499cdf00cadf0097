"""Signals, as the reactor hears of them: one wish to end, and then how soon."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.service.process import on_further_signal, take_signals

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loop:
    """A reactor that calls what came from a signal when it is told to."""

    def __init__(self) -> None:
        self.stopped_by: list[int] = []
        self._queue: list[tuple[Any, ...]] = []

    def sigTerm(self, number: int, _: object = None) -> None:  # noqa: N802 - Twisted's name
        self.stopped_by.append(number)

    def sigInt(self, number: int, _: object = None) -> None:  # noqa: N802 - Twisted's name
        self.stopped_by.append(number)

    def callFromThread(self, *call: Any) -> None:  # noqa: N802 - Twisted's name
        self._queue.append(call)

    def turn(self) -> None:
        queue, self._queue = self._queue, []
        for function, *arguments in queue:
            function(*arguments)


@contextmanager
def heeded(hang_up: Any = signal.SIG_DFL) -> Iterator[Loop]:
    """A loop that has taken the signals; not a fixture, since pytest-twisted may start its reactor behind one."""
    made = Loop()
    handlers = ((signal.SIGTERM, made.sigTerm), (signal.SIGINT, made.sigInt), (signal.SIGHUP, hang_up))
    before = {number: signal.signal(number, handler) for number, handler in handlers}
    try:
        take_signals(made)
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_before_the_end_has_begun_is_the_same_wish(second: signal.Signals) -> None:
    with heeded() as loop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(second)
        loop.turn()
    assert loop.stopped_by == [signal.SIGTERM]


def test_a_hang_up_is_the_wish_to_end() -> None:
    with heeded() as loop:
        signal.raise_signal(signal.SIGHUP)
        loop.turn()
    assert loop.stopped_by == [signal.SIGHUP]


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    with heeded(signal.SIG_IGN) as loop:  # as nohup(1) does
        signal.raise_signal(signal.SIGHUP)
        loop.turn()
    assert loop.stopped_by == []


def test_a_signal_once_the_end_has_begun_is_for_whoever_waits() -> None:
    hurried: list[None] = []
    with heeded() as loop:
        signal.raise_signal(signal.SIGINT)
        loop.turn()
        on_further_signal(loop, lambda: hurried.append(None))
        signal.raise_signal(signal.SIGTERM)
        loop.turn()
    assert (loop.stopped_by, hurried) == ([signal.SIGINT], [None])
