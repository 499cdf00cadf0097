"""What an engine does when more is due than there is time for, on a clock that work moves on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from inference_lab.core.engine.cluster import Cluster
from inference_lab.wire.cluster_engine import ClusterEngine
from inference_lab.wire.engine_driver import ConstantLatency, Job
from inference_lab.wire.pacer import TURN_US, Pacer
from tests.support.deployments import llama
from tests.support.memory import TurnClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.scheduler import Step
    from inference_lab.wire.engine_driver import Ticket

STEP_S = 0.000_2
"""What ending a step costs the process here, and handing a stream its tokens."""
STEPS_A_TURN = TURN_US / 1e6 / STEP_S


class Busy:
    """An engine in a process that takes its time; turns are given one by one."""

    def __init__(self, deployment: Deployment, speed: float) -> None:
        self.clock = TurnClock()
        self.pacer = Pacer(self.clock, self.clock.seconds)
        cluster = Cluster(deployment)
        self.engine = ClusterEngine(self.pacer, cluster, speed=speed)
        self.steps: list[tuple[Step, set[Request]]] = []
        self.heard: list[tuple[str, int]] = []
        self.turns = 0
        (replica,) = cluster.replicas
        step = replica.step

        def dear_step(now_s: float) -> Step:
            self.clock.rightNow += STEP_S
            begun = step(now_s)
            members = {*begun.decodes, *(chunk.request for chunk in begun.chunks)}
            self.steps.append((begun, members))
            return begun

        replica.step = dear_step  # type: ignore[method-assign] # so that it costs something

    def submit(self, name: str, output_tokens: int, prompt: range = range(20)) -> Ticket:
        def on_tokens(count: int) -> None:
            self.clock.rightNow += STEP_S
            self.heard.append((name, count))

        return self.engine.submit(Job(list(prompt), output_tokens), on_tokens)

    def tokens(self, name: str) -> int:
        return sum(count for who, count in self.heard if who == name)

    def turn(self) -> None:
        """One turn of the reactor, a millisecond after the one before."""
        self.turns += 1
        self.clock.rightNow += 0.001
        self.clock.turn()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Lines of the log that tell of lateness."""
    lines: list[str] = []

    def observe(event: LogEvent) -> None:
        if "late" in event:
            lines.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


def test_ten_thousand_steps_that_are_due_are_ended_over_many_turns_and_deadlines_are_kept(
    said: list[str],
) -> None:
    busy = Busy(llama(), speed=1e9)  # all of its steps are due at once
    ticket = busy.submit("a", 10_000)
    served: list[float] = []

    def fault() -> None:
        served.append(busy.clock.seconds())
        busy.pacer.at(round(busy.clock.seconds() * 1e6) + 50_000, fault)

    fault()
    lags = []
    while busy.tokens("a") < 10_000:
        begun, begun_s = len(busy.steps), busy.clock.seconds()
        busy.turn()
        assert len(busy.steps) - begun <= STEPS_A_TURN + 2
        assert busy.clock.seconds() - begun_s <= 2 * TURN_US / 1e6
        lags.append(busy.engine.load.lag_us or 0)
        assert busy.turns < 5_000
    busy.turn()
    assert len(busy.steps) > 10_000
    assert len(served) > 30
    gaps = [later - earlier for earlier, later in pairwise(served)]
    assert max(gaps) <= 0.05 + 2 * TURN_US / 1e6 + 0.002
    assert max(lags) > 1_500_000, "two seconds of work are due within some microseconds"
    assert busy.engine.load.lag_us == 0
    assert ticket.timing.lag_us == pytest.approx(2_000_000, rel=0.5)
    assert said[0].startswith("the simulation of Llama-3.1-8B-Instruct was up to ")
    assert said[0].endswith(" ms behind the clock: too many tokens for this process")
    assert len(said) == 1, "a line every ten seconds"
    assert len(busy.heard) < 1_000, "tokens that are due together are handed over together"


def test_the_tokens_of_a_step_are_handed_over_in_turns_too_and_in_order() -> None:
    busy = Busy(llama(), speed=1)
    for number in range(500):
        busy.submit(f"{number}", 2)
    while busy.tokens("499") < 2:
        heard, begun_s = len(busy.heard), busy.clock.seconds()
        busy.turn()
        assert len(busy.heard) - heard <= STEPS_A_TURN + 16
        assert busy.clock.seconds() - begun_s <= 0.001 + TURN_US / 1e6 + 16 * STEP_S + STEP_S
    first = list(dict.fromkeys(name for name, _ in busy.heard))
    assert first == [f"{number}" for number in range(500)]


def test_a_replica_rests_for_as_long_as_it_has_worked_so_that_tokens_share_a_write() -> None:
    busy = Busy(llama(), speed=1)
    for number in range(20):
        busy.submit(f"{number}", 200)
    begun_s = busy.clock.seconds()
    while busy.tokens("19") < 200:
        busy.turn()
    steps, shared = len(busy.steps), len(busy.heard) / 20
    assert shared < steps / 1.5, "twenty streams take 4 ms, and a step less than 5"
    spent_s = (steps + len(busy.heard)) * STEP_S
    assert spent_s <= 0.55 * (busy.clock.seconds() - begun_s)


def test_where_there_is_time_each_step_is_handed_over_as_it_ends() -> None:
    busy = Busy(llama(), speed=1)
    busy.submit("a", 100)
    while busy.tokens("a") < 100:
        busy.turn()
    assert [count for _, count in busy.heard] == [1] * 100


def test_what_arrives_while_the_simulation_is_behind_waits_for_its_steps_and_not_for_all_that_is_due() -> (
    None
):
    busy = Busy(llama(), speed=1e9)
    busy.submit("a", 10_000)
    for _ in range(20):
        busy.turn()
    begun = len(busy.steps)
    submitted_us = busy.pacer.now_us()
    late = busy.submit("b", 3, range(5000, 5100))
    assert len(busy.steps) - begun <= STEPS_A_TURN + 2
    over = len(busy.steps)
    for number in range(100):
        busy.submit(f"more {number}", 1)
    assert len(busy.steps) == over, "a hundred of them are no more work than one"
    while busy.tokens("b") < 3:
        busy.turn()
    (request,) = {r for _, members in busy.steps for r in members if r.prompt_tokens == 100}
    joined = next(place for place, (_, members) in enumerate(busy.steps) if request in members)
    assert joined >= over, "it has no part in a step that had begun"
    assert busy.tokens("a") < 1_000, "it does not wait for the thousands that are due"
    timing = late.timing
    assert timing.submitted_us == submitted_us
    assert timing.queued_us is not None
    assert timing.ttft_us is not None
    assert timing.duration_us is not None
    assert 0 <= timing.queued_us <= timing.ttft_us <= timing.duration_us
    assert timing.lag_us <= busy.pacer.now_us() - submitted_us


def test_constant_latencies_say_how_late_a_token_was() -> None:
    clock = TurnClock()
    engine = ConstantLatency(Pacer(clock, clock.seconds), ttft_us=10_000, itl_us=5_000)
    ticket = engine.submit(Job([1], 3), lambda _: None)
    clock.advance(0.01)
    assert ticket.timing.lag_us == 0
    clock.advance(0.5)
    assert ticket.timing.lag_us == 495_000
    assert engine.load.lag_us is None, "there is no simulation that could be behind"
