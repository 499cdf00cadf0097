"""The pacing wheel on a clock that the test advances."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import LogEvent, globalLogPublisher

from inference_lab.wire.pacer import TURN_US, Pacer
from tests.support.memory import TurnClock


class Recorder:
    """Something that waits, and remembers when it was called."""

    def __init__(self, pacer: Pacer, due_us: int) -> None:
        self.pacer = pacer
        self.due_us = due_us
        self.called_us: list[int] = []
        self.slot = pacer.at(due_us, self.wake)

    def wake(self) -> None:
        self.called_us.append(self.pacer.now_us())

    def forget(self) -> None:
        self.pacer.forget(self.slot, self.wake)


def wheel() -> tuple[Clock, Pacer]:
    clock = Clock()
    return clock, Pacer(clock, clock.seconds)


@given(st.lists(st.integers(0, 50_000), max_size=40), st.data())
def test_each_waiter_is_called_once_never_early_and_at_most_a_slot_late(
    dues: list[int], data: st.DataObject
) -> None:
    clock, pacer = wheel()
    waiters = [Recorder(pacer, due) for due in dues]
    forgotten = [waiter for waiter in waiters if data.draw(st.booleans())]
    for waiter in forgotten:
        waiter.forget()
        waiter.forget()  # a second time does nothing
    for _ in range(60):
        clock.advance(2**-10)  # a binary fraction just under a slot, which adds up exactly
    for waiter in waiters:
        if waiter in forgotten:
            assert waiter.called_us == []
        else:
            (called_us,) = waiter.called_us
            assert waiter.due_us <= called_us <= waiter.due_us + 2_000
    assert clock.getDelayedCalls() == []


def test_waiters_of_one_slot_are_called_first_come_first_served() -> None:
    clock, pacer = wheel()
    order: list[str] = []
    pacer.at(1500, lambda: order.append("a"))
    pacer.at(1200, lambda: order.append("b"))
    clock.advance(0.002)
    assert order == ["a", "b"]


def test_one_timer_is_armed_however_many_wait() -> None:
    clock, pacer = wheel()
    waiters = [Recorder(pacer, due * 700) for due in range(100)]
    assert len(clock.getDelayedCalls()) == 1
    for waiter in waiters:
        waiter.forget()
    assert clock.getDelayedCalls() == []


def test_a_waiter_may_forget_its_neighbour_of_the_same_slot_and_wait_again() -> None:
    clock, pacer = wheel()
    second: Recorder

    def first() -> None:
        second.forget()
        later.append(Recorder(pacer, 10_000))

    later: list[Recorder] = []
    pacer.at(1_000, first)
    second = Recorder(pacer, 1_000)
    clock.advance(0.0015)
    assert second.called_us == []
    clock.advance(0.01)
    assert len(later[0].called_us) == 1
    assert clock.getDelayedCalls() == []


def test_who_forgets_the_last_neighbour_of_a_slot_may_wait_for_the_same_slot() -> None:
    clock, pacer = wheel()
    again: list[Recorder] = []

    def first() -> None:
        last.forget()
        again.append(Recorder(pacer, 1_000))

    pacer.at(1_000, first)
    last = Recorder(pacer, 1_000)
    clock.advance(0.002)
    clock.advance(0.002)
    assert last.called_us == []
    assert len(again[0].called_us) == 1
    assert clock.getDelayedCalls() == []


def test_what_a_turn_has_no_time_for_is_served_in_the_next_ones_and_others_in_between() -> None:
    clock = TurnClock()
    pacer = Pacer(clock, clock.seconds)
    order: list[int | str] = []

    def work(number: int) -> None:
        order.append(number)
        clock.rightNow += 0.001

    for number in range(100):
        pacer.at(1_000 + number // 50 * 1_000, partial(work, number))
    clock.rightNow = 0.01
    turns = 0
    while clock.getDelayedCalls():
        begun = len(order)
        clock.callLater(0, order.append, "another")
        clock.turn()
        clock.turn()  # what was called for at once, behind what was due
        turns += 1
        assert len(order) - begun <= 2 * (TURN_US // 1_000 + 16)
    assert [entry for entry in order if entry != "another"] == list(range(100)), "first come, first served"
    assert turns > 1
    assert order.count("another") == turns


def test_who_has_more_to_do_waits_behind_the_others_and_for_time() -> None:
    clock = TurnClock()
    pacer = Pacer(clock, clock.seconds)
    order: list[int] = []

    def work(number: int) -> None:
        order.append(number)
        clock.rightNow += 0.001
        if order.count(number) < 3:
            pacer.soon(works[number])

    works = [partial(work, number) for number in range(20)]
    for each in works:
        pacer.soon(each)
    pacer.forget_soon(works[7])
    turns = 0
    while clock.getDelayedCalls():
        begun = len(order)
        clock.turn()
        turns += 1
        assert len(order) - begun <= TURN_US // 1_000
    assert order == 3 * [number for number in range(20) if number != 7]
    assert turns >= 3 * 19 * 1_000 // TURN_US
    pacer.soon(works[7])
    pacer.forget_soon(works[7])
    assert clock.getDelayedCalls() == []


def test_a_deadline_of_two_to_the_64_milliseconds_waits_and_is_forgotten() -> None:
    clock, pacer = wheel()
    far = Recorder(pacer, (2**64 - 1) * 1000 * (2**32 - 1))
    clock.advance(86_400)
    assert far.called_us == []
    far.forget()
    assert clock.getDelayedCalls() == []


def test_forgotten_far_deadlines_do_not_pile_up() -> None:
    _, pacer = wheel()
    near = Recorder(pacer, 1_000)
    for due in range(10_000):
        Recorder(pacer, 10**12 + due * 1000).forget()
    assert len(pacer._order) < 200  # noqa: SLF001 - memory is what is being looked at
    near.forget()


def test_a_call_that_fails_is_logged_and_stops_nobody_else() -> None:
    clock, pacer = wheel()
    failures: list[LogEvent] = []
    observer = failures.append
    globalLogPublisher.addObserver(observer)
    try:
        pacer.at(1_000, lambda: 1 // 0)  # type: ignore[arg-type,return-value] # what it returns is not looked at
        after = [Recorder(pacer, 1_000), Recorder(pacer, 5_000)]
        clock.advance(0.002)
        clock.advance(0.01)
    finally:
        globalLogPublisher.removeObserver(observer)
    assert [len(waiter.called_us) for waiter in after] == [1, 1]
    assert [event["log_failure"].type for event in failures] == [ZeroDivisionError]


def test_lateness_is_logged_past_20_ms_and_then_the_worst_every_ten_seconds() -> None:
    clock, pacer = wheel()
    said: list[str] = []

    def observe(event: LogEvent) -> None:
        if "late" in event:
            said.append(f"{event['late']:.0f}")

    globalLogPublisher.addObserver(observe)
    try:
        for late_s in (0.015, 0.25, 0.5, 0.125, 11, 0.0625):
            Recorder(pacer, pacer.now_us())
            clock.advance(late_s)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert said == ["250", "11000"], (
        "15 ms is no news, and what is late soon after the first line is not worse"
    )


def test_ten_thousand_deadlines_do_not_drift() -> None:
    clock, pacer = wheel()
    called: list[int] = []

    def wake() -> None:
        called.append(pacer.now_us())
        if len(called) < 10_000:
            pacer.at(len(called) * 10_000, wake)

    pacer.at(0, wake)
    while len(called) < 10_000:
        clock.advance(2**-11)
    assert all(0 <= at - place * 10_000 <= 1_500 for place, at in enumerate(called))
