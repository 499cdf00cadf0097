"""How long a step takes: roofline per dtype, collectives, and the wait for the slowest rank.

Rules: docs/engine.md, "What a step costs" and "Formulas". Work is gathered per rank in a BatchWork and priced by the
Roofline of a deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from inference_lab.core.engine.model_costs import (
    AttentionTerms,
    projection_bytes,
    projection_dtype,
    read_bytes,
)
from inference_lab.core.engine.specs import Dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.specs import Fabric, Link


class Path(NamedTuple):
    """One path of a collective: `fixed_s` seconds, and `seconds_per_byte` of the tensor."""

    fixed_s: float
    seconds_per_byte: float


Collective = tuple[Path, ...]


def seconds(collective: Collective, size_bytes: float) -> float:
    """How long `collective` takes for a tensor of `size_bytes`."""
    return max(path.fixed_s + path.seconds_per_byte * size_bytes for path in collective)


def all_reduce(fabric: Fabric, gpus: int) -> Collective:
    """Every GPU ends with the sum over all; the size is that of the whole tensor."""
    up = fabric.scale_up
    per_node, nodes, out = _shape(fabric, gpus)
    if out is None:
        return (Path(up.latency, _reduce_factor(up, gpus) / up.bandwidth),)
    # Reduce-scatter within each node, reduce the shards across nodes, gather within each node.
    within = (per_node - 1) / per_node / up.bandwidth
    across = _reduce_factor(out, nodes) / per_node / out.bandwidth
    return (Path(2 * up.latency + out.latency, 2 * within + across),)


def gather_scatter(fabric: Fabric, gpus: int) -> Collective:
    """An all-gather before a layer and a reduce-scatter after it; the switch sums neither."""
    up = fabric.scale_up
    per_node, nodes, out = _shape(fabric, gpus)
    if out is None:
        return (Path(2 * up.latency, _ring(gpus) / up.bandwidth),)
    within = (per_node - 1) / per_node / up.bandwidth
    across = _ring(nodes) / per_node / out.bandwidth
    return (Path(2 * (2 * up.latency) + 2 * out.latency, 2 * within + across),)


def all_to_all(fabric: Fabric, gpus: int) -> Collective:
    """Every GPU sends its own part to every other; the size is what one GPU sends in all."""
    up = fabric.scale_up
    per_node, _, out = _shape(fabric, gpus)
    if out is None:
        return (Path(up.latency, (gpus - 1) / gpus / up.bandwidth),)
    return (
        Path(up.latency, (per_node - 1) / gpus / up.bandwidth),
        Path(out.latency, (gpus - per_node) / gpus / out.bandwidth),
    )


def _shape(fabric: Fabric, gpus: int) -> tuple[int, int, Link | None]:
    """GPUs per node, nodes, and the link between nodes; None if the group fits in one node."""
    per_node = max(1, fabric.gpus_per_node)
    if gpus <= per_node:
        return per_node, 1, None
    if fabric.scale_out is None:
        raise ValueError(f"a group of {gpus} GPUs needs a scale_out link, expected at most {per_node}")
    return per_node, -(-gpus // per_node), fabric.scale_out


def _ring(members: int) -> float:
    """Times the tensor's size that each member of a ring sends."""
    return 2 * (members - 1) / members


def _reduce_factor(link: Link, members: int) -> float:
    return 1.0 if link.in_network_reduction else _ring(members)


class StreamCost(Struct, frozen=True):
    """What one dtype costs in a step: FLOPs, bytes, the seconds of each, and the longer of the two."""

    flops: float
    bytes: float
    compute_s: float
    memory_s: float
    seconds: float


class StepCost(Struct, frozen=True):
    """A step's price and its parts.

    `roofline_seconds` is the sum of the streams and the collectives, after the deployment's time correction;
    `step_seconds` adds the wait for the slowest rank. Attention FLOPs, KV reads and state reads are parts of
    `flops` and `bytes`. `rank_attention_seconds` is empty without dp_attention.
    """

    step_seconds: float
    roofline_seconds: float
    collective_seconds: float
    skew_seconds: float
    flops: float
    bytes: float
    attention_flops: float
    kv_read_bytes: float
    state_read_bytes: float
    total_new_tokens: int
    streams: dict[Dtype, StreamCost]
    rank_attention_seconds: tuple[float, ...]


class BatchWork:
    """What the entries of one rank ask for in a step.

    `new_tokens` and `entries` count, `flops` of attention are per dtype slot of `terms`, `kv_bytes` are read.
    `cascades`: entries with a common prefix may read it once, see `read_together`.
    """

    def __init__(self, terms: AttentionTerms, *, cascades: bool = False) -> None:
        self._terms = terms
        self.new_tokens = 0
        self.entries = 0
        self.flops: list[float] = [0] * len(terms.dtypes)
        self.kv_bytes = 0
        # Mean contexts, and how many entries have each.
        self._contexts: list[tuple[int, int]] | None = [] if cascades else None

    def add(self, context_tokens: int, new_tokens: int, *, decode: bool, count: int = 1) -> None:
        """`count` entries, each of `new_tokens` on top of `context_tokens`; priced at their mean context."""
        terms = self._terms
        positions = context_tokens + (new_tokens + 1) // 2
        tokens = new_tokens * count
        self.new_tokens += tokens
        self.entries += count
        flops = self.flops
        read = 0.0
        for layer, index_slot in terms.with_index_slots:
            attended = layer.attended(positions)
            per_position = layer.decode_flops if decode else layer.prefill_flops
            flops[terms.attention_slot] += layer.count * per_position * tokens * attended
            if layer.index_flops:
                flops[index_slot] += layer.count * layer.index_flops * (positions // layer.stride) * tokens
            read += layer.read_bytes(positions, attended)
        self.kv_bytes += int(read) * count
        if self._contexts is not None:
            self._contexts.append((positions, count))

    def add_decodes(self, contexts: Sequence[int]) -> None:
        """One token on top of each of `contexts`, of which there are some, as `add` prices it."""
        self.new_tokens += len(contexts)
        self.entries += len(contexts)
        costs = map(self._terms.decode_costs.__getitem__, contexts)
        read_bytes, *flops = map(sum, zip(*costs, strict=True))
        self.kv_bytes += read_bytes
        for slot, more in enumerate(flops):
            self.flops[slot] += more
        if self._contexts is not None:
            self._contexts += [(context + 1, 1) for context in contexts]

    def add_linear_decodes(self, count: int, positions: int) -> None:
        """`count` decodes at `positions` in all, each at `terms.linear_from` or more. Not for work that cascades."""
        terms = self._terms
        self.new_tokens += count
        self.entries += count
        self.flops[terms.attention_slot] += terms.flops_per_position * positions + terms.flops_fixed * count
        self.kv_bytes += terms.read_per_position * positions + terms.read_fixed * count

    def read_together(self, shared_positions: int) -> None:
        """Let all entries, two or more, read their first `shared_positions` once (cascade attention)."""
        if self._contexts is not None:
            rest = (
                self._terms.read_bytes(max(0, context - shared_positions)) * count
                for context, count in self._contexts
            )
            self.kv_bytes = self._terms.read_bytes(shared_positions) + sum(rest)


class Roofline:
    """Prices the steps of one replica of `deployment`."""

    def __init__(self, deployment: Deployment) -> None:
        model = deployment.model
        self._deployment = deployment
        self.terms = AttentionTerms(model)
        slots = {dtype: slot for slot, dtype in enumerate(self.terms.dtypes)}
        self._streams = [(slots[stream.precision], stream) for stream in model.weights]
        self._gpu_rates = [_rate(deployment, dtype) for dtype in self.terms.dtypes]
        self._gpu_bandwidth = deployment.hardware.memory_bandwidth
        self._has_ranks = deployment.dp_attention and deployment.tp > 1
        self._repeated_slot = slots[projection_dtype(model)]
        self._repeated_bytes = (deployment.tp - 1) * projection_bytes(model) if self._has_ranks else 0
        self._collectives = _collectives(deployment)

    def batch(self) -> BatchWork:
        """An empty batch of one rank."""
        return BatchWork(self.terms, cascades=self._deployment.scheduler.enable_cascade_attention)

    def price(self, ranks: Sequence[BatchWork]) -> StepCost:
        """The cost of a step that does the work of all `ranks`; idle ones may be left out."""
        new_tokens = sum(rank.new_tokens for rank in ranks)
        flops: list[float] = [0] * len(self.terms.dtypes)
        size: list[float] = [0] * len(self.terms.dtypes)
        for rank in ranks:
            for slot, attention_flops in enumerate(rank.flops):
                flops[slot] += attention_flops
        attention_flops = sum(flops)
        kv_read_bytes = sum(rank.kv_bytes for rank in ranks)
        state_read_bytes = sum(rank.entries for rank in ranks) * self.terms.state_bytes
        size[self.terms.attention_slot] += kv_read_bytes + state_read_bytes
        size[self._repeated_slot] += self._repeated_bytes
        for slot, stream in self._streams:
            flops[slot] += new_tokens * 2 * stream.active_params
            size[slot] += read_bytes(stream, new_tokens)
        streams = {}
        tp = self._deployment.tp
        memory_rate = self._gpu_bandwidth * tp
        roofline_seconds = 0.0
        for slot, dtype in enumerate(self.terms.dtypes):
            if flops[slot] or size[slot]:
                compute_s = flops[slot] / (self._gpu_rates[slot] * tp)
                memory_s = size[slot] / memory_rate
                longer = max(compute_s, memory_s)
                roofline_seconds += longer
                streams[dtype] = StreamCost(flops[slot], size[slot], compute_s, memory_s, longer)
        collective_seconds = sum(
            calls * seconds(collective, new_tokens * bytes_per_token)
            for calls, collective, bytes_per_token in self._collectives
        )
        roofline_seconds += collective_seconds
        correction = self._deployment.time_correction
        if correction is not None:
            roofline_seconds = correction.alpha * roofline_seconds + correction.beta
        rank_seconds = self._rank_attention_seconds(ranks)
        skew_seconds = max(0.0, max(rank_seconds) - sum(rank_seconds) / tp) if rank_seconds else 0.0
        return StepCost(
            step_seconds=roofline_seconds + skew_seconds,
            roofline_seconds=roofline_seconds,
            collective_seconds=collective_seconds,
            skew_seconds=skew_seconds,
            flops=sum(flops),
            bytes=sum(size),
            attention_flops=attention_flops,
            kv_read_bytes=kv_read_bytes,
            state_read_bytes=state_read_bytes,
            total_new_tokens=new_tokens,
            streams=streams,
            rank_attention_seconds=rank_seconds,
        )

    def _rank_attention_seconds(self, ranks: Sequence[BatchWork]) -> tuple[float, ...]:
        if not self._has_ranks:
            return ()
        times = [
            max(
                sum(flops / rate for flops, rate in zip(rank.flops, self._gpu_rates, strict=True)),
                (rank.kv_bytes + rank.entries * self.terms.state_bytes) / self._gpu_bandwidth,
            )
            for rank in ranks
        ]
        return (*times, *[0.0] * (self._deployment.tp - len(times)))


def _rate(deployment: Deployment, dtype: Dtype) -> float:
    rate = deployment.hardware.flops_per_s(dtype)
    if rate is None:
        raise ValueError(f"{deployment.hardware.name} has no {dtype} FLOP rate")
    return rate


def _collectives(deployment: Deployment) -> list[tuple[int, Collective, float]]:
    """What a step exchanges: calls, collective, bytes per new token of the step."""
    model, fabric, tp, ep = deployment.model, deployment.hardware.fabric, deployment.tp, deployment.ep
    if tp == 1 or fabric is None:
        return []
    hidden_bytes = model.hidden_dim * model.activation_bytes
    routings = [stream.routing for stream in model.weights if stream.routing is not None]
    layers = sum(layer.count for layer in model.layers)
    moe_layers = sum(routing.moe_layers for routing in routings)
    dense_layers = max(0, layers - moe_layers)
    if not deployment.dp_attention:
        # One all-reduce after each mixer, one after each feed-forward network.
        return [(layers + dense_layers + moe_layers, all_reduce(fabric, tp), hidden_bytes)]
    if ep == 1:
        return [(dense_layers + moe_layers, gather_scatter(fabric, tp), hidden_bytes)]
    exchanges = [
        (2 * routing.moe_layers, all_to_all(fabric, ep), routing.experts_per_tok * hidden_bytes / ep)
        for routing in routings
    ]
    return [(dense_layers, gather_scatter(fabric, tp), hidden_bytes), *exchanges]
