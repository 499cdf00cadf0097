"""What a run amounts to, gathered step by step: latencies, throughput, utilisation; and how it went over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inference_lab.core.engine.cluster import Cluster
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.scheduler import Step


class Distribution(Struct, frozen=True):
    """A set of times in seconds; percentiles are interpolated between the two nearest values."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Summary(Struct, frozen=True):
    """A whole run.

    Times in seconds, rates per simulated second up to `end_time`. Distributions are None where nothing was measured.
    `busy`, `compute` and `memory` are fractions of the replicas' time spent in steps, of their peak FLOP rate and of
    their memory bandwidth; `kv_mean` and `kv_max` fractions of all KV blocks in use; `batch_mean` requests per step.
    """

    requests: int
    completed: int
    rejected: int
    preemptions: int
    steps: int
    request_steps: int
    end_time: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft: Distribution | None
    itl: Distribution | None
    latency: Distribution | None
    busy: float
    compute: float
    memory: float
    kv_mean: float
    kv_max: float
    batch_mean: float


class Statistics:
    """Watches the steps of `cluster`; `summary` tells what they came to."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._total_blocks = sum(replica.total_blocks for replica in cluster.replicas)
        self._last_token_s: dict[int, float] = {}
        self._gaps: Counter[float] = Counter()
        self._steps = 0
        self._request_steps = 0
        self._preemptions = 0
        self._busy_s = 0.0
        self._compute_s = 0.0
        self._memory_s = 0.0
        self._block_seconds = 0.0
        self._most_blocks = 0

    def watch(self, replica: int, step: Step) -> None:
        """Take in a step of the replica with index `replica`, before its next one."""
        self._preemptions += step.preempted
        cost = step.cost
        if cost is None:
            return
        end_s = step.end_s
        last, gaps = self._last_token_s, self._gaps
        for request in step.decodes:
            key = id(request)
            gaps[end_s - last[key]] += 1
            last[key] = end_s
        for chunk in step.chunks:
            if chunk.output_tokens:
                last[id(chunk.request)] = end_s
        for request in step.finished:
            del last[id(request)]
        self._steps += 1
        self._request_steps += len(step.decodes) + len(step.chunks)
        self._busy_s += cost.step_seconds
        self._compute_s += sum(stream.compute_s for stream in cost.streams.values())
        self._memory_s += sum(stream.memory_s for stream in cost.streams.values())
        self._block_seconds += self._cluster.replicas[replica].used_blocks * cost.step_seconds
        self._most_blocks = max(self._most_blocks, sum(other.used_blocks for other in self._cluster.replicas))

    def summary(self, requests: Sequence[Request]) -> Summary:
        """The run of `requests`, all of which have ended."""
        completed = [request for request in requests if not request.rejected]
        end_time = max((request.finish_s or 0.0 for request in requests), default=0.0)
        prompt_tokens = sum(request.prompt_tokens for request in completed)
        output_tokens = sum(request.produced for request in completed)
        per_s = 1 / end_time if end_time else 0.0
        per_replica_s = per_s / len(self._cluster.replicas)
        return Summary(
            requests=len(requests),
            completed=len(completed),
            rejected=len(requests) - len(completed),
            preemptions=self._preemptions,
            steps=self._steps,
            request_steps=self._request_steps,
            end_time=end_time,
            prompt_tokens=prompt_tokens,
            cached_tokens=sum(request.cached_tokens for request in completed),
            output_tokens=output_tokens,
            requests_per_s=len(completed) * per_s,
            prompt_tokens_per_s=prompt_tokens * per_s,
            output_tokens_per_s=output_tokens * per_s,
            ttft=distribution(
                Counter(_since_arrival(request, request.first_token_s) for request in completed)
            ),
            itl=distribution(self._gaps),
            latency=distribution(Counter(_since_arrival(request, request.finish_s) for request in completed)),
            busy=self._busy_s * per_replica_s,
            compute=self._compute_s * per_replica_s,
            memory=self._memory_s * per_replica_s,
            kv_mean=self._block_seconds * per_s / self._total_blocks,
            kv_max=self._most_blocks / self._total_blocks,
            batch_mean=self._request_steps / self._steps if self._steps else 0.0,
        )


def _since_arrival(request: Request, moment_s: float | None) -> float:
    return (moment_s or 0.0) - request.arrival_s


def distribution(counts: Mapping[float, int]) -> Distribution | None:
    """The distribution of values that occur `counts` times each; None if there are none."""
    values = sorted(counts)
    total = sum(counts.values())
    if not total:
        return None
    # Rank of the first occurrence after each value, so that the value of a rank is found in order.
    ends = []
    seen = 0
    for value in values:
        seen += counts[value]
        ends.append(seen)

    def at_rank(rank: int) -> float:
        return values[bisect_right(ends, rank)]

    def quantile(fraction: float) -> float:
        position = fraction * (total - 1)
        rank = int(position)
        low, high = at_rank(rank), at_rank(min(rank + 1, total - 1))
        return low + (high - low) * (position - rank)

    return Distribution(
        mean=sum(value * count for value, count in counts.items()) / total,
        p50=quantile(0.5),
        p90=quantile(0.9),
        p95=quantile(0.95),
        p99=quantile(0.99),
        max=values[-1],
    )


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
