"""The routers: which rank of which replica takes an arrival.

Rules: docs/engine.md, "Replicas and routers". Among equals the rank with the lowest index is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.engine.deployment_spec import KvAware, KvAwareDecode, LeastLoaded, PrefixAffinity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inference_lab.core.engine.deployment_spec import RouterSpec
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.scheduler import Scheduler


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
