"""A cluster run offline over a list of arrivals, in simulated time."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inference_lab.core.engine.cluster import Cluster
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.step import Step


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
