"""How a model is deployed: scheduler options, the router over replicas, and all of it on some hardware.

Field names are the keys of a deployment file's tables. A bad value raises ValueError (through msgspec:
ValidationError).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from inference_lab.core.engine.model_costs import KvCapacity, KvLayout, projection_bytes, weight_bytes
from inference_lab.core.engine.request import POLICIES
from inference_lab.core.engine.specs import (
    U32,
    U64,
    Count,
    HardwareSpec,
    ModelSpec,
    NotNegative,
    Positive,
)

_POLICY_ALIASES: Final = {"sjf": "sof"}


class SchedulerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`[scheduler]`, after a hardware entry's overrides.

    Budget and prefill thresholds in tokens, `max_num_seqs` in requests, `block_size` in positions; all of
    them per rank. `kv_cache_capacity` in bytes per replica, 0 to derive it from `gpu_memory_utilization` (a
    fraction of memory). `policy` is kept in lower case, `sjf` as `sof`. `max_model_len` in tokens, by default
    the model's limit.
    """

    max_num_batched_tokens: Count
    max_num_seqs: Count
    block_size: Count
    policy: str
    enable_chunked_prefill: bool
    long_prefill_token_threshold: U32 = 0
    max_num_partial_prefills: U32 = 1
    max_model_len: Count | None = None
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9
    kv_cache_capacity: U64 = 0
    enable_preemption_free: bool = False
    enable_cascade_attention: bool = False

    def __post_init__(self) -> None:
        lowered = self.policy.lower()
        policy = _POLICY_ALIASES.get(lowered, lowered)
        if policy not in POLICIES:
            known = ", ".join((*POLICIES, *_POLICY_ALIASES))
            raise ValueError(f"policy is {self.policy!r}, expected one of {known}")
        force_setattr(self, "policy", policy)


class RoundRobin(Struct, frozen=True, forbid_unknown_fields=True, tag_field="policy", tag="round_robin"):
    """Each request to the next worker in turn."""


class LeastLoaded(Struct, frozen=True, forbid_unknown_fields=True, tag_field="policy", tag="least_loaded"):
    """Each request to the worker with the fewest requests in it."""


class PrefixAffinity(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="policy", tag="prefix_affinity"
):
    """Each request to the worker that holds most of its prompt.

    Not to one with over `max_load_ratio` times the mean number of requests (None: no such limit).
    """

    max_load_ratio: NotNegative | None = None


class KvAware(Struct, frozen=True, forbid_unknown_fields=True, tag_field="policy", tag="kv_aware"):
    """Each request to the worker with the fewest prompt tokens left to compute.

    Each token queued there counts as `load_weight` more.
    """

    load_weight: NotNegative = 1.0


class KvAwareDecode(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="policy", tag="kv_aware_decode"
):
    """As `kv_aware`, among the workers with room for the prompt.

    Each request running there counts as `load_weight` tokens.
    """

    load_weight: NotNegative = 64.0


RouterSpec: TypeAlias = RoundRobin | LeastLoaded | PrefixAffinity | KvAware | KvAwareDecode


MOST_WORKERS: Final = 65_536
"""Schedulers of one deployment: each is simulated, and an absurd number would fill the memory without a word."""


class TimeCorrection(Struct, frozen=True, forbid_unknown_fields=True):
    """Calibration of step times: `alpha` (a factor) times roofline and collectives, plus `beta` seconds."""

    alpha: Positive = 1.0
    beta: NotNegative = 0.0


class Deployment(Struct, frozen=True):
    """One model on one kind of hardware: all that a simulation needs.

    `tp` GPUs per replica, in expert groups of `ep`; with `dp_attention` each of the tp GPUs is a rank with
    its own scheduler and KV cache. `replicas` identical copies, 0 counts as 1.

    Raises:
        ValueError: an impossible combination; the message starts with the key at fault.
    """

    model: ModelSpec
    hardware: HardwareSpec
    scheduler: SchedulerSpec
    tp: Count = 1
    ep: Count = 1
    dp_attention: bool = False
    replicas: U32 = 1
    router: RouterSpec = RoundRobin()
    time_correction: TimeCorrection | None = None

    def __post_init__(self) -> None:
        if self.replicas == 0:
            force_setattr(self, "replicas", 1)
        if self.tp % self.ep:
            raise ValueError(f"ep is {self.ep}, expected a divisor of tp ({self.tp})")
        workers = self.replicas * self.rank_count
        if workers > MOST_WORKERS:
            raise ValueError(
                f"replicas is {self.replicas}, which makes {workers} workers; at most {MOST_WORKERS}"
            )
        fabric = self.hardware.fabric
        if self.tp > 1:
            if fabric is None:
                raise ValueError(f"tp is {self.tp}, but {self.hardware.name} has no fabric: expected 1")
            if self.tp > max(1, fabric.gpus_per_node) and fabric.scale_out is None:
                raise ValueError(
                    f"tp is {self.tp}, but {self.hardware.name} has no scale_out link:"
                    f" expected at most gpus_per_node ({fabric.gpus_per_node})"
                )
        for dtype in self.model.compute_dtypes():
            if self.hardware.flops_per_s(dtype) is None:
                raise ValueError(
                    f"spec: {self.model.name} computes in {dtype},"
                    f" but {self.hardware.name} has no {dtype} FLOP rate"
                )
        self._refuse_without_kv()

    def _refuse_without_kv(self) -> None:
        block_bytes = KvLayout(self.model, self.scheduler.block_size).block_bytes
        capacity = self.kv_capacity(block_bytes)
        if capacity.rank_blocks > 0:
            return
        block = f"one block of {block_bytes} bytes per rank"
        if self.scheduler.kv_cache_capacity:
            raise ValueError(f"scheduler.kv_cache_capacity is {capacity.replica_bytes}, less than {block}")
        raise ValueError(
            f"tp is {self.tp}, which leaves less than {block} for KV: the weights take"
            f" {capacity.weight_bytes} bytes of {capacity.usable_bytes}; expected more GPUs or memory"
        )

    @property
    def rank_count(self) -> int:
        """KV domains of a replica, each with a scheduler of its own: with dp_attention every GPU is one."""
        return self.tp if self.dp_attention else 1

    def kv_capacity(self, block_bytes: int) -> KvCapacity:
        """The KV memory that is left beside the weights.

        With dp_attention every GPU holds the attention projections itself. Nothing else is reserved.
        """
        weights = weight_bytes(self.model) + (self.rank_count - 1) * projection_bytes(self.model)
        options = self.scheduler
        usable_bytes = int(self.hardware.memory_capacity * self.tp * options.gpu_memory_utilization)
        replica_bytes = options.kv_cache_capacity or max(0, usable_bytes - weights)
        rank_bytes = replica_bytes // self.rank_count
        return KvCapacity(usable_bytes, weights, replica_bytes, rank_bytes, rank_bytes // block_bytes)

    @property
    def context_limit_tokens(self) -> int:
        """Prompt and answer together must fit in this many tokens."""
        return self.scheduler.max_model_len or self.model.max_seq_len

    @property
    def long_prefill_token_threshold(self) -> int:
        """Largest prompt chunk in tokens, 0 for no limit.

        Derived as 4 % of the model length when several partial prefills are asked for without a threshold
        (vLLM's rule).
        """
        options = self.scheduler
        if (
            options.long_prefill_token_threshold == 0
            and options.enable_chunked_prefill
            and options.max_num_partial_prefills > 1
        ):
            return int(0.04 * self.context_limit_tokens)
        return options.long_prefill_token_threshold
