"""The simulated cluster on the reactor: steps begin and end when the simulation says, tokens leave at their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.engine.content import block_ids
from inference_lab.engine.request import Request

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

    def submit(self, job: Job, on_tokens: Callable[[int], None]) -> _Ticket:
        """See `Engine.submit`."""
        now_us = self._pacer.now_us()
        for driver in self._drivers.values():
            driver.catch_up(now_us)  # a step that has ended must not take in what arrives after its end
        ticket = _Ticket(self._cluster, job, on_tokens, block_ids(job.prompt_ids, self._block_size))
        replica = self._cluster.submit(ticket.request, self.simulated_s(now_us))
        self._drivers[id(replica)].wake()
        return ticket

    def simulated_s(self, us: int) -> float:
        """Simulated seconds at a time of the pacer."""
        return (us - self._origin_us) * self._speed / 1e6

    def real_us(self, simulated_s: float) -> int:
        """The pacer's time at which so many simulated seconds have passed."""
        return self._origin_us + round(simulated_s / self._speed * 1e6)


class _Ticket:
    """A request in the cluster and who is told of its tokens."""

    def __init__(
        self, cluster: Cluster, job: Job, on_tokens: Callable[[int], None], content: list[bytes]
    ) -> None:
        self._cluster = cluster
        self._on_tokens: Callable[[int], None] | None = on_tokens
        self.request = Request(
            self, len(job.prompt_ids), job.output_tokens, priority=job.priority, block_ids=content
        )

    @property
    def cached_tokens(self) -> int:
        """See `Ticket.cached_tokens`."""
        return self.request.cached_tokens

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
        self._waiting = False

    def wake(self) -> None:
        """Something was submitted: an idle replica starts a step in the reactor's next turn.

        Whatever else arrives in this turn joins that step.
        """
        if self._step is None and not self._waiting:
            self._waiting = True
            self._pacer.clock.callLater(0, self._due)

    def catch_up(self, now_us: int) -> None:
        """End every step that is due by now, and start the next ones at the ends."""
        while self._step is not None:
            step = self._step
            if self._engine.real_us(step.end_s) > now_us:
                return
            self._step = None
            self._deliver(step)
            self._begin(step.end_s)

    def _due(self) -> None:
        self._waiting = False
        now_us = self._pacer.now_us()
        if self._step is None:
            self._begin(self._engine.simulated_s(now_us))
        self.catch_up(now_us)
        if self._step is not None:
            self._waiting = True
            self._pacer.at(self._engine.real_us(self._step.end_s), self._due)

    def _begin(self, now_s: float) -> None:
        step = self._replica.step(now_s)
        if not step.is_idle:
            self._step = step

    @staticmethod
    def _deliver(step: Step) -> None:
        finished = set(map(id, step.finished))
        produced = [chunk.request for chunk in step.chunks if chunk.output_tokens]
        for request in (*produced, *step.decodes):
            ticket = request.id
            assert isinstance(ticket, _Ticket)  # noqa: S101 - `submit` has put it there
            ticket.produce(last=id(request) in finished)
