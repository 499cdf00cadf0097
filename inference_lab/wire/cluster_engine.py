"""The simulated cluster on the reactor: steps begin and end when the simulation says, tokens leave at their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.engine.content import block_ids
from inference_lab.engine.request import Request
from inference_lab.wire.engine_driver import Load, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.engine.cluster import Cluster
    from inference_lab.engine.replica import Replica
    from inference_lab.engine.step import Step
    from inference_lab.wire.engine_driver import Job
    from inference_lab.wire.pacer import Pacer


class ClusterEngine:
    """Drives `cluster`; one second of life is `speed` simulated seconds.

    A request arrives at the simulated time of its submission; an idle replica starts a step then, a busy one takes it
    in when its step ends. Steps follow each other on absolute times, so a late wake-up is caught up, not added.
    """

    def __init__(self, pacer: Pacer, cluster: Cluster, *, speed: float) -> None:
        self._pacer = pacer
        self._cluster = cluster
        self._speed = speed
        self._origin_us = pacer.now_us()
        self._block_size = cluster.deployment.scheduler.block_size
        self._drivers = {id(replica): _ReplicaDriver(self, pacer, replica) for replica in cluster.replicas}

    def refusal(self, job: Job) -> str | None:
        """See `Engine.refusal`: what needs more KV blocks than a rank has can never run."""
        needed = self._cluster.blocks_needed(len(job.prompt_ids), job.output_tokens)
        if needed <= self._cluster.rank_blocks:
            return None
        return f"it needs {needed} KV blocks of {self._block_size} tokens, and there are {self._cluster.rank_blocks}"

    @property
    def load(self) -> Load:
        """See `Engine.load`."""
        replicas = self._cluster.replicas
        used, total = (
            sum(counts) for counts in zip(*((r.used_blocks, r.total_blocks) for r in replicas), strict=True)
        )
        return Load(
            sum(replica.waiting_count for replica in replicas),
            sum(replica.running_count for replica in replicas),
            used / total,
        )

    def submit(self, job: Job, on_tokens: Callable[[int], None]) -> _Ticket:
        """See `Engine.submit`."""
        now_us = self._pacer.now_us()
        for driver in self._drivers.values():
            driver.catch_up(now_us)  # a step that has ended must not take in what arrives after its end
        ticket = _Ticket(self, self._cluster, job, on_tokens, block_ids(job.prompt_ids, self._block_size))
        now_s = (now_us - self._origin_us) * self._speed / 1e6
        replica = self._cluster.submit(ticket.request, now_s)
        self._drivers[id(replica)].wake(now_s)
        return ticket

    def now_us(self) -> int:
        """The pacer's time."""
        return self._pacer.now_us()

    def real_us(self, simulated_s: float) -> int:
        """The pacer's time at which so many simulated seconds have passed."""
        return self._origin_us + round(simulated_s / self._speed * 1e6)


class _Ticket:
    """A request in the cluster and who is told of its tokens."""

    def __init__(
        self,
        engine: ClusterEngine,
        cluster: Cluster,
        job: Job,
        on_tokens: Callable[[int], None],
        content: list[bytes],
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._on_tokens: Callable[[int], None] | None = on_tokens
        self.request = Request(
            self, len(job.prompt_ids), job.output_tokens, priority=job.priority, block_ids=content
        )

    @property
    def cached_tokens(self) -> int:
        """See `Ticket.cached_tokens`."""
        return self.request.cached_tokens

    @property
    def timing(self) -> Timing:
        """See `Ticket.timing`."""
        request = self.request
        later = map(self._since_arrival, (request.admitted_s, request.first_token_s, request.finish_s))
        return Timing(self._engine.real_us(request.arrival_s), *later)

    def _since_arrival(self, at_s: float | None) -> int | None:
        """Microseconds from arrival to a simulated time; a step under way knows its end before it has come."""
        if at_s is None or self._engine.real_us(at_s) > self._engine.now_us():
            return None
        return self._engine.real_us(at_s) - self._engine.real_us(self.request.arrival_s)

    def cancel(self) -> None:
        """See `Ticket.cancel`."""
        if self._on_tokens is not None:
            self._on_tokens = None
            self._cluster.cancel(self.request)

    def produce(self, *, last: bool) -> None:
        """A token has come out."""
        on_tokens = self._on_tokens
        if on_tokens is not None:
            if last:
                self._on_tokens = None
            on_tokens(1)


class _ReplicaDriver:
    """One replica's step under way, and the wait for its end."""

    def __init__(self, engine: ClusterEngine, pacer: Pacer, replica: Replica) -> None:
        self._engine = engine
        self._pacer = pacer
        self._replica = replica
        self._step: Step | None = None
        self._slot: int | None = None  # waiting for the step's end

    def wake(self, now_s: float) -> None:
        """Something was submitted: an idle replica starts a step with it, a busy one takes it in at its step's end."""
        if self._step is None:
            self._step = self._begin(now_s)
            self._wait()

    def catch_up(self, now_us: int) -> None:
        """End every step that is due by now, start the next ones at the ends, and wait for the last to end."""
        ended = self._step
        while self._step is not None and self._engine.real_us(self._step.end_s) <= now_us:
            step = self._step
            # The next step first: a delivery may bring a new request, which has no part in what starts now.
            self._step = self._begin(step.end_s)
            self._deliver(step)
        if self._step is not ended:
            self._wait()

    def _wait(self) -> None:
        if self._slot is not None:
            self._pacer.forget(self._slot, self._end)
            self._slot = None
        if self._step is not None:
            self._slot = self._pacer.at(self._engine.real_us(self._step.end_s), self._end)

    def _end(self) -> None:
        self._slot = None
        self.catch_up(self._pacer.now_us())

    def _begin(self, now_s: float) -> Step | None:
        step = self._replica.step(now_s)
        return None if step.is_idle else step

    @staticmethod
    def _deliver(step: Step) -> None:
        finished = set(map(id, step.finished))
        produced = [chunk.request for chunk in step.chunks if chunk.output_tokens]
        for request in (*produced, *step.decodes):
            ticket = request.id
            assert isinstance(ticket, _Ticket)  # noqa: S101 - `submit` has put it there
            ticket.produce(last=id(request) in finished)
