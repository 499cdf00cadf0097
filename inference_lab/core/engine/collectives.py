"""How long GPUs of a group take to exchange a tensor, as straight lines over its size.

Rules: docs/engine.md, "Formulas". A collective is a set of paths that run side by side, each a fixed time plus
seconds per byte; it ends with the slowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inference_lab.core.engine.hardware_spec import Fabric, Link


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
