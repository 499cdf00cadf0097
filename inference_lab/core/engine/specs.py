"""Facts of a model and of the GPUs it runs on, as the keys of `catalog/` and of inline tables name them.

A model is the streams of weights it multiplies with and the classes of layers that mix tokens. Rates of hardware are
per GPU. Values are checked where they are built; a bad one raises ValueError (through msgspec: ValidationError, with
the path of the value).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

U32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**32 - 1)]
"""A u32 of at least one."""
# A TOML integer is signed 64-bit (toml.io v1.0.0, "Integer"), so a u64 key cannot hold more than this.
U64: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveU64: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]

Dtype: TypeAlias = Literal["fp4", "fp8", "bf16", "fp16", "fp32"]

BYTES_PER_VALUE: Final[Mapping[Dtype, float]] = MappingProxyType(
    {"fp4": 0.5, "fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
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


class Routing(Struct, frozen=True, forbid_unknown_fields=True):
    """How a stream's experts are chosen.

    `routed_experts` E of which a token uses `experts_per_tok` k, in each of `moe_layers` layers. E = 0 means
    that every weight of the stream is read whatever the batch.
    """

    routed_experts: U32
    experts_per_tok: Count
    moe_layers: Count

    def __post_init__(self) -> None:
        if 0 < self.routed_experts < self.experts_per_tok:
            raise ValueError(
                f"routed_experts is {self.routed_experts}, expected 0 or at least experts_per_tok"
                f" ({self.experts_per_tok})"
            )


class WeightStream(Struct, frozen=True, forbid_unknown_fields=True):
    """Matmul weights of one precision.

    `active_params` are touched per token, `resident_params` lie in memory; both count parameters over all
    layers.
    """

    precision: Dtype
    active_params: U64
    resident_params: U64
    routing: Routing | None = None

    def __post_init__(self) -> None:
        if self.resident_params < self.active_params:
            raise ValueError(
                f"resident_params is {self.resident_params},"
                f" expected at least active_params ({self.active_params})"
            )


class AttentionLayers(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="attention"):
    """`count` layers of grouped-query attention.

    `kv_shared`: K and V are one tensor. `window` is in positions, 0 for the whole context.
    """

    count: Count
    heads: Count
    head_dim: Count
    kv_heads: Count
    kv_precision: Dtype
    kv_shared: bool = False
    window: U32 = 0


class Indexer(Struct, frozen=True, forbid_unknown_fields=True):
    """The small attention that picks which compressed positions a layer reads.

    `precision` is the dtype of its scores, by default the model's attention precision.
    """

    heads: Count
    head_dim: Count
    kv_precision: Dtype
    precision: Dtype | None = None


class History(Struct, frozen=True, forbid_unknown_fields=True):
    """What a layer keeps of the context after its window.

    One entry per `compress_ratio` positions, of which `index_topk` are read (0: all of them).
    """

    compress_ratio: Count
    index_topk: U32 = 0
    indexer: Indexer | None = None


class MlaLayers(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="mla"):
    """`count` layers of multi-head latent attention.

    Dimensions in values: `latent_dim` and `rope_dim` are what a position stores; `heads`, `qk_head_dim` and
    `v_head_dim` come all three or not at all; `q_latent_dim` and `o_latent_dim` are low-rank projections.
    `window` is in positions, 0 for the whole context.
    """

    count: Count
    latent_dim: U32
    kv_precision: Dtype
    rope_dim: U32 = 0
    window: U32 = 0
    heads: Count | None = None
    qk_head_dim: Count | None = None
    v_head_dim: Count | None = None
    q_latent_dim: Count | None = None
    o_latent_dim: Count | None = None
    history: History | None = None

    def __post_init__(self) -> None:
        if self.latent_dim + self.rope_dim == 0:
            raise ValueError("latent_dim + rope_dim is 0, expected at least 1")
        given = [field is not None for field in (self.heads, self.qk_head_dim, self.v_head_dim)]
        if any(given) and not all(given):
            raise ValueError("heads, qk_head_dim and v_head_dim belong together: expected all three or none")


class LinearLayers(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="linear"):
    """`count` recurrent layers, each with `state_bytes` bytes of state per sequence."""

    count: Count
    state_bytes: PositiveU64


LayerClass: TypeAlias = AttentionLayers | MlaLayers | LinearLayers


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the engine knows about a model.

    `name` is what clients send unless the deployment says otherwise; `hidden_dim` the residual width in
    values; `max_seq_len` the context limit in tokens; `attention_precision` the dtype of score and value
    matmuls, to which all KV and state reads are billed; `activation_bytes` bytes per activation value on the
    wire between GPUs.
    """

    name: str
    hidden_dim: Count
    max_seq_len: Count
    weights: tuple[WeightStream, ...]
    layers: tuple[LayerClass, ...]
    attention_precision: Dtype = "bf16"
    activation_bytes: U32 = 2

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError('name is "", expected the model\'s name')
        if not self.weights:
            raise ValueError("weights is empty, expected at least one [[weights]] table")
        if not self.layers:
            raise ValueError("layers is empty, expected at least one [[layers]] table")
        if all(isinstance(layer, LinearLayers) for layer in self.layers):
            raise ValueError("layers are all linear, expected at least one class that stores KV per position")

    def compute_dtypes(self) -> tuple[Dtype, ...]:
        """Every dtype that a step multiplies in, each once: what the hardware must have a FLOP rate for."""
        dtypes: dict[Dtype, None] = {stream.precision: None for stream in self.weights}
        dtypes[self.attention_precision] = None
        for layer in self.layers:
            if (
                isinstance(layer, MlaLayers)
                and layer.history is not None
                and layer.history.indexer is not None
            ):
                dtypes[layer.history.indexer.precision or self.attention_precision] = None
        return tuple(dtypes)
