"""Facts of a GPU and of the links between GPUs.

Field names are the keys of `catalog/hardware/*.toml` and of an inline `spec` table. Rates are per GPU.
"""

from __future__ import annotations

from msgspec import Struct

from inference_lab.core.engine.units import (
    U32,
    Dtype,
    NotNegative,
    Positive,
    PositiveU64,
)


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of link.

    `bandwidth` in bytes/s per GPU and direction, `latency` in seconds per collective call;
    `in_network_reduction`: the switch itself sums what passes through it.
    """

    bandwidth: Positive
    latency: NotNegative = 0.0
    in_network_reduction: bool = False


class Fabric(Struct, frozen=True, forbid_unknown_fields=True):
    """How GPUs are joined: `gpus_per_node` by `scale_up`, nodes by `scale_out` (absent: only one node)."""

    gpus_per_node: U32
    scale_up: Link
    scale_out: Link | None = None


class HardwareSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU: dense FLOP/s per dtype (absent: unsupported), memory in bytes, bandwidth in bytes/s."""

    name: str
    memory_bandwidth: Positive
    memory_capacity: PositiveU64
    flops_fp4: Positive | None = None
    flops_fp8: Positive | None = None
    flops_bf16: Positive | None = None
    flops_fp16: Positive | None = None
    fabric: Fabric | None = None

    def flops_per_s(self, dtype: Dtype) -> float | None:
        """Dense FLOP/s in `dtype`, None if the GPU cannot. The rate of fp32 is half the rate of fp16."""
        if dtype == "fp32":
            return None if self.flops_fp16 is None else self.flops_fp16 / 2
        rates = {
            "fp4": self.flops_fp4,
            "fp8": self.flops_fp8,
            "bf16": self.flops_bf16,
            "fp16": self.flops_fp16,
        }
        return rates[dtype]
