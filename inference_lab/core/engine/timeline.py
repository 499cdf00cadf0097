"""How a run went over time: queue, running requests, KV use and token rate in equal slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inference_lab.core.engine.cluster import Cluster
    from inference_lab.core.engine.step import Step


class Slice(NamedTuple):
    """Means over one slice of time, from `start_s` on.

    Requests waiting and running, the fraction of KV blocks in use, and output tokens per second.
    """

    start_s: float
    waiting: float
    running: float
    kv_used: float
    tokens_per_s: float


class Timeline:
    """Watches the steps of `cluster`; between two steps of a replica its state is taken to stay as it was."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._total_blocks = sum(replica.total_blocks for replica in cluster.replicas)
        self._changes: list[tuple[float, int, int, int]] = []
        self._tokens: list[tuple[float, float, int]] = []

    def watch(self, step: Step) -> None:
        """Take in a step, before the next one of any replica."""
        replicas = self._cluster.replicas
        self._changes.append(
            (
                step.start_s,
                sum(replica.waiting_count for replica in replicas),
                sum(replica.running_count for replica in replicas),
                sum(replica.used_blocks for replica in replicas),
            )
        )
        if not step.is_idle:
            self._tokens.append((step.start_s, step.end_s, step.output_tokens))

    def slices(self, count: int) -> list[Slice]:
        """The run from 0 to its end in `count` equal slices; empty for a run that took no time."""
        end_s = max((end for _, end, _ in self._tokens), default=0.0)
        if not end_s:
            return []
        width_s = end_s / count
        sums = [[0.0, 0.0, 0.0, 0.0] for _ in range(count)]
        following = [change[0] for change in self._changes[1:]] + [end_s]
        for (start, waiting, running, blocks), until in zip(self._changes, following, strict=True):
            for index, seconds in _overlaps(start, until, width_s, count):
                total = sums[index]
                total[0] += waiting * seconds
                total[1] += running * seconds
                total[2] += blocks / self._total_blocks * seconds
        for start, until, tokens in self._tokens:
            for index, seconds in _overlaps(start, until, width_s, count):
                sums[index][3] += tokens * seconds / (until - start)
        return [Slice(index * width_s, *(total / width_s for total in sums[index])) for index in range(count)]


def _overlaps(start_s: float, end_s: float, width_s: float, count: int) -> list[tuple[int, float]]:
    """The slices that a stretch of time touches, and for how many seconds each."""
    found = []
    index = int(start_s / width_s)
    while index < count and index * width_s < end_s:
        seconds = min(end_s, (index + 1) * width_s) - max(start_s, index * width_s)
        if seconds > 0:
            found.append((index, seconds))
        index += 1
    return found
