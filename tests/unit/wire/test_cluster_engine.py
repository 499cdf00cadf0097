"""The simulated cluster on a clock that the test advances: it does what the offline simulation says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from twisted.internet.task import Clock

from inference_lab.core.engine.block_pool import block_ids
from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request
from inference_lab.wire.cluster_engine import ClusterEngine
from inference_lab.wire.engine_driver import Job
from inference_lab.wire.pacer import Pacer
from tests.support.deployments import llama

if TYPE_CHECKING:
    from inference_lab.core.engine.deployment_spec import Deployment

TICK_S = 2**-11  # adds up exactly, and is finer than a slot of the pacer
SLOT_S = 0.001


class Client:
    """A request and when its tokens came."""

    def __init__(self, clock: Clock, arrival_s: float, job: Job) -> None:
        self.clock = clock
        self.arrival_s = arrival_s
        self.job = job
        self.times_s: list[float] = []

    def on_tokens(self, count: int) -> None:
        self.times_s += [self.clock.seconds()] * count


class Bench:
    """An engine on a clock."""

    def __init__(self, deployment: Deployment, *, speed: float = 1.0) -> None:
        self.clock = Clock()
        self.cluster = Cluster(deployment)
        self.engine = ClusterEngine(Pacer(self.clock, self.clock.seconds), self.cluster, speed=speed)

    def client(self, arrival_s: float, prompt: range, output_tokens: int, priority: int = 0) -> Client:
        return Client(self.clock, arrival_s, Job(list(prompt), output_tokens, priority))

    def run(self, clients: list[Client], seconds: float) -> None:
        upcoming = sorted(clients, key=lambda client: client.arrival_s)
        for _ in range(round(seconds / TICK_S)):
            while upcoming and upcoming[0].arrival_s <= self.clock.seconds():
                client = upcoming.pop(0)
                self.engine.submit(client.job, client.on_tokens)
            self.clock.advance(TICK_S)


def offline(deployment: Deployment, clients: list[Client]) -> list[Request]:
    size = deployment.scheduler.block_size
    requests = [
        Request(
            index,
            len(client.job.prompt_ids),
            client.job.output_tokens,
            priority=client.job.priority,
            block_ids=block_ids(client.job.prompt_ids, size),
        )
        for index, client in enumerate(clients)
    ]
    arrivals = [(client.arrival_s, request) for client, request in zip(clients, requests, strict=True)]
    for _ in simulate(Cluster(deployment), arrivals):
        pass
    return requests


@pytest.mark.parametrize(
    "scheduler",
    [
        {},
        {"max_num_seqs": 3},
        {"policy": "priority", "max_num_seqs": 3},
        {"kv_cache_capacity": 160 * 2_097_152},
    ],
    ids=["roomy", "three seats", "priorities", "preempting"],
)
def test_tokens_come_when_the_offline_simulation_says(scheduler: dict[str, object]) -> None:
    deployment = llama(**scheduler)
    bench = Bench(deployment)
    clients = [
        bench.client(
            (index * 13 % 40) * 2**-7,
            range(index * 5000, index * 5000 + 300 + 97 * index),
            60 + index,
            index % 3,
        )
        for index in range(20)
    ]
    expected = offline(deployment, clients)
    bench.run(clients, 16)
    if "kv_cache_capacity" in scheduler:
        assert sum(request.preemptions for request in expected) > 0
    for client, request in zip(clients, expected, strict=True):
        assert len(client.times_s) == request.output_tokens
        assert request.first_token_s is not None
        assert request.finish_s is not None
        assert request.first_token_s <= client.times_s[0] <= request.first_token_s + 2 * SLOT_S
        assert request.finish_s <= client.times_s[-1] <= request.finish_s + 2 * SLOT_S
    assert bench.clock.getDelayedCalls() == []


def test_a_prompt_served_before_is_cached_and_the_ticket_says_so() -> None:
    bench = Bench(llama())
    tickets = []
    for _ in range(2):
        client = bench.client(0, range(1000), 2)
        tickets.append(bench.engine.submit(client.job, client.on_tokens))
        bench.run([], 1)
        assert len(client.times_s) == 2
    assert [ticket.cached_tokens for ticket in tickets] == [
        0,
        992,
    ]  # whole blocks of 16, never the whole prompt


def test_the_ticket_tells_what_the_engine_took_in_real_time() -> None:
    bench = Bench(llama(max_num_seqs=1), speed=2.0)
    first = bench.engine.submit(Job(list(range(100)), 50), lambda _: None)
    second = bench.engine.submit(Job(list(range(1000, 1100)), 3), lambda _: None)
    assert first.timing == (first.timing.submitted_us, 0, None, None, 0)
    bench.clock.pump([TICK_S] * 4000)
    assert first.timing.queued_us == 0
    assert second.timing.queued_us is not None
    assert first.timing.duration_us is not None
    assert second.timing.queued_us >= first.timing.duration_us, "there is one seat"
    assert second.timing.ttft_us is not None
    assert second.timing.duration_us is not None
    assert second.timing.queued_us < second.timing.ttft_us < second.timing.duration_us
    assert first.timing.duration_us == pytest.approx(first.request.finish_s / 2 * 1e6, abs=1)


def test_an_idle_engine_starts_at_the_time_of_the_request() -> None:
    bench = Bench(llama())
    bench.run([], 2)
    late = bench.client(0, range(1000), 1)
    bench.engine.submit(late.job, late.on_tokens)
    bench.run([], 1)
    (alone,) = offline(llama(), [Client(bench.clock, 0, late.job)])
    assert alone.first_token_s is not None
    assert 2 + alone.first_token_s <= late.times_s[0] <= 2 + alone.first_token_s + 2 * SLOT_S


def test_a_late_wake_up_is_caught_up_on_absolute_times() -> None:
    deployment = llama()
    bench = Bench(deployment)
    early, later = bench.client(0, range(1000), 100), bench.client(1, range(9000, 10000), 1)
    bench.engine.submit(early.job, early.on_tokens)
    bench.clock.advance(TICK_S)
    bench.clock.advance(1 - TICK_S)  # the process stood still while dozens of steps were due
    assert len(early.times_s) == 100
    bench.engine.submit(later.job, later.on_tokens)
    bench.run([], 1)
    expected = offline(deployment, [early, later])[1]
    assert expected.first_token_s is not None
    assert expected.first_token_s <= later.times_s[0] <= expected.first_token_s + 2 * SLOT_S


def test_what_arrives_after_a_step_ended_does_not_join_the_next_one_in_the_past() -> None:
    bench = Bench(llama())
    first, second = bench.client(0, range(1000), 50), bench.client(0, range(2000, 3000), 1)
    bench.engine.submit(first.job, first.on_tokens)
    bench.clock.advance(TICK_S)
    bench.clock.rightNow += 0.5  # half a second passes, and no timer has fired yet
    bench.engine.submit(second.job, second.on_tokens)
    assert first.times_s == [], "nobody hears of tokens while another request is submitted"
    bench.clock.advance(SLOT_S)
    assert first.times_s, "steps that ended before the arrival are over before it"
    assert second.times_s == []
    bench.run([], 1)
    assert second.times_s[0] >= 0.5


def test_speed_makes_the_engine_faster_than_life() -> None:
    bench = Bench(llama(), speed=8)
    client = bench.client(0, range(1000), 20)
    bench.run([client], 1)
    (expected,) = offline(llama(), [client])
    assert expected.finish_s is not None
    assert expected.finish_s / 8 <= client.times_s[-1] <= expected.finish_s / 8 + 2 * SLOT_S


def test_a_client_that_leaves_frees_its_seat_at_the_next_step_and_hears_nothing_more() -> None:
    bench = Bench(llama(max_num_seqs=1))
    leaving, waiting = bench.client(0, range(1000), 10_000), bench.client(0, range(5000, 6000), 3)
    ticket = bench.engine.submit(leaving.job, leaving.on_tokens)
    bench.engine.submit(waiting.job, waiting.on_tokens)
    bench.run([], 0.25)
    heard = len(leaving.times_s)
    assert heard > 0
    assert waiting.times_s == []
    ticket.cancel()
    ticket.cancel()
    bench.run([], 0.25)
    assert len(leaving.times_s) == heard
    assert len(waiting.times_s) == 3
    assert bench.clock.getDelayedCalls() == []


def test_what_can_never_fit_is_refused_by_its_kv_blocks() -> None:
    bench = Bench(llama(kv_cache_capacity=10 * 2_097_152))
    fits = Job(list(range(100)), 61)  # the last token's own position is never computed: 160 positions
    assert bench.engine.refusal(fits) is None
    assert (
        bench.engine.refusal(Job(list(range(100)), 62))
        == "it needs 11 KV blocks of 16 tokens, and there are 10"
    )


def test_replicas_interleave() -> None:
    deployment = msgspec.structs.replace(llama(), replicas=3)
    bench = Bench(deployment)
    clients = [
        bench.client(index * 2**-6, range(index * 4000, index * 4000 + 2000), 10) for index in range(9)
    ]
    expected = offline(deployment, clients)
    bench.run(clients, 2)
    for client, request in zip(clients, expected, strict=True):
        assert request.finish_s is not None
        assert request.finish_s <= client.times_s[-1] <= request.finish_s + 2 * SLOT_S
    assert {request.worker for request in expected} == {0, 1, 2}


def test_a_request_that_a_finished_one_brings_about_joins_the_next_step() -> None:
    """As when the next request was pipelined behind a response."""
    bench = Bench(llama())
    first, second = bench.client(0, range(1000), 3), bench.client(0, range(5000, 6000), 3)

    def then_submit(count: int) -> None:
        first.on_tokens(count)
        if len(first.times_s) == 3:
            bench.engine.submit(second.job, second.on_tokens)

    bench.engine.submit(first.job, then_submit)
    bench.run([], 1)
    assert len(second.times_s) == 3
    assert second.times_s[0] > first.times_s[-1]
    assert bench.clock.getDelayedCalls() == []
