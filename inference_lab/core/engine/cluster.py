"""A deployment in steps: the router over all ranks, replicas whose ranks step together, and a run in simulated time.

Rules: docs/engine.md, "Replicas and routers".
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from inference_lab.core.engine.deployment_spec import KvAware, KvAwareDecode, LeastLoaded, PrefixAffinity
from inference_lab.core.engine.model_costs import KvLayout
from inference_lab.core.engine.roofline import Roofline
from inference_lab.core.engine.scheduler import Scheduler, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from inference_lab.core.engine.deployment_spec import Deployment, RouterSpec
    from inference_lab.core.engine.request import Request


class Router:
    """Chooses among `workers`, all ranks of all replicas, by the rule of `spec`."""

    def __init__(self, spec: RouterSpec, workers: Sequence[Scheduler], block_size: int) -> None:
        self._workers = workers
        self._block_size = block_size
        self._arrivals = 0
        self._spec = spec

    def choose(self, request: Request) -> int:
        """The index of the worker that takes `request`."""
        spec = self._spec
        self._arrivals += 1
        if isinstance(spec, LeastLoaded):
            return self._least_loaded()
        if isinstance(spec, PrefixAffinity):
            return self._prefix_affinity(request, spec.max_load_ratio)
        if isinstance(spec, KvAware):
            return self._cheapest(request, lambda worker: spec.load_weight * worker.queued_tokens)
        if isinstance(spec, KvAwareDecode):
            return self._cheapest(
                request, lambda worker: spec.load_weight * len(worker.running), needs_room=True
            )
        return (self._arrivals - 1) % len(self._workers)

    def _least_loaded(self) -> int:
        workers = self._workers
        return min(
            range(len(workers)),
            key=lambda index: (workers[index].request_count, workers[index].queued_tokens),
        )

    def _prefix_affinity(self, request: Request, max_load_ratio: float | None) -> int:
        workers = self._workers
        lengths = [worker.pool.resident_prefix(request.block_ids) for worker in workers]
        if not any(lengths):
            return self._least_loaded()
        chosen = min(range(len(workers)), key=lambda index: (-lengths[index], workers[index].request_count))
        if max_load_ratio is not None:
            mean = sum(worker.request_count for worker in workers) / len(workers)
            if workers[chosen].request_count > max_load_ratio * mean:
                return self._least_loaded()
        return chosen

    def _cheapest(
        self, request: Request, load: Callable[[Scheduler], float], *, needs_room: bool = False
    ) -> int:
        """The worker with the smallest sum of prompt positions to compute and load."""
        missing = [
            max(0, request.prompt_tokens - worker.pool.resident_prefix(request.block_ids) * self._block_size)
            for worker in self._workers
        ]
        indices: Sequence[int] = range(len(self._workers))
        if needs_room:
            roomy = [
                index
                for index in indices
                if self._workers[index].pool.free * self._block_size >= missing[index]
            ]
            indices = roomy or indices
        return min(indices, key=lambda index: missing[index] + load(self._workers[index]))


class Replica:
    """`ranks` schedulers whose batches make up one step.

    Its user calls `step` when the replica wakes up (`is_idle` and something was submitted) and at the end of each step.
    """

    def __init__(
        self,
        deployment: Deployment,
        roofline: Roofline,
        layout: KvLayout,
        *,
        rank_count: int,
        rank_blocks: int,
    ) -> None:
        self._roofline = roofline
        self.ranks = [Scheduler(deployment, roofline, layout, rank_blocks) for _ in range(rank_count)]
        self.is_idle = True

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a seat."""
        return sum(len(rank.waiting) for rank in self.ranks)

    @property
    def running_count(self) -> int:
        """Requests that have a seat."""
        return sum(len(rank.running) for rank in self.ranks)

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, of all ranks; cached blocks that nobody uses are free."""
        return sum(rank.pool.total - rank.pool.free for rank in self.ranks)

    @property
    def total_blocks(self) -> int:
        """KV blocks of all ranks."""
        return sum(rank.pool.total for rank in self.ranks)

    def step(self, now_s: float) -> Step:
        """Start the step that begins at `now_s`, in seconds, and move every request in it to the step's end.

        The step before, if any, must have ended. An idle step means: nothing more to do until the next `submit`.
        """
        step = Step(now_s)
        preempted = -1
        # A pass that only made room admits nobody; the next one, at the same instant, does.
        while step.is_idle and step.preempted > preempted:
            preempted = step.preempted
            works = [rank.schedule(step) for rank in self.ranks]
        self.is_idle = step.is_idle
        if not self.is_idle:
            step.cost = self._roofline.price(works)
        end_s = step.end_s
        for chunk in step.chunks:
            if chunk.request.admitted_s is None:
                chunk.request.admitted_s = now_s
            if chunk.output_tokens:
                chunk.request.first_token_s = end_s
        for request in step.finished:
            request.finish_s = end_s
        for request in step.rejected:
            request.finish_s = now_s
        return step


class Cluster:
    """The simulated engine of a deployment: requests go in, and its `replicas` step.

    Pure: the time is an argument, and what happens next is for the caller: after `submit`, a replica that is idle wants
    a `step` now; after a step, the next one at its end. `rank_blocks` are the KV blocks of each rank.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._layout = KvLayout(deployment.model, deployment.scheduler.block_size)
        self.rank_blocks = deployment.kv_capacity(self._layout.block_bytes).rank_blocks
        roofline = Roofline(deployment)
        self.rank_count = deployment.rank_count
        self.replicas = [
            Replica(
                deployment, roofline, self._layout, rank_count=self.rank_count, rank_blocks=self.rank_blocks
            )
            for _ in range(deployment.replicas)
        ]
        self._workers = [rank for replica in self.replicas for rank in replica.ranks]
        self._router = Router(deployment.router, self._workers, deployment.scheduler.block_size)
        self._submissions = 0

    def blocks_needed(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV blocks that a request holds at its end; what needs more than `rank_blocks` can never run."""
        return self._layout.blocks(max(1, prompt_tokens) + max(1, output_tokens) - 1)

    def submit(self, request: Request, now_s: float) -> Replica:
        """Queue `request`, which arrives at `now_s`; returns the replica that it went to."""
        request.arrival_s = now_s
        request.submission = self._submissions
        self._submissions += 1
        request.worker = self._router.choose(request)
        self._workers[request.worker].submit(request)
        return self.replicas[request.worker // self.rank_count]

    def cancel(self, request: Request) -> None:
        """Take `request` out wherever it is; its seat and blocks are free at the next step."""
        self._workers[request.worker].cancel(request)


class ReplicaStep(NamedTuple):
    """A step, and the index of the replica that takes it."""

    replica: int
    step: Step


def simulate(cluster: Cluster, arrivals: Sequence[tuple[float, Request]]) -> Iterator[ReplicaStep]:
    """Every step until all `arrivals` (seconds, request) are served, in order of their starts.

    Events of one instant happen in the order in which they came about: arrivals first, in the order given, so that all
    of them take part in the step that they wake up.
    """
    upcoming = sorted(arrivals, key=lambda arrival: arrival[0])  # stable
    upcoming.reverse()
    indices = {id(replica): index for index, replica in enumerate(cluster.replicas)}
    passes: list[tuple[float, int, int]] = []
    pending: set[int] = set()
    created = 0
    while upcoming or passes:
        if upcoming and (not passes or upcoming[-1][0] <= passes[0][0]):
            now_s, request = upcoming.pop()
            index = indices[id(cluster.submit(request, now_s))]
        else:
            now_s, _, index = heappop(passes)
            pending.discard(index)
            step = cluster.replicas[index].step(now_s)
            yield ReplicaStep(index, step)
            if step.is_idle:
                continue
            now_s = step.end_s
        if index not in pending:
            pending.add(index)
            heappush(passes, (now_s, created, index))
            created += 1
