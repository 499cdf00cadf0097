"""What a class of layers costs at a context length: bytes stored, bytes read, FLOPs of its attention.

Rules: docs/engine.md, "What a step costs" and "The KV cache".
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from inference_lab.core.engine.model_spec import AttentionLayers, LinearLayers
from inference_lab.core.engine.units import BYTES_PER_VALUE, Dtype

if TYPE_CHECKING:
    from inference_lab.core.engine.model_spec import LayerClass, MlaLayers, ModelSpec

_MEMO_SIZE: Final = 2**14


class LayerTerms(Struct, frozen=True):
    """The coefficients of one class of `count` identical layers; everything else is per layer and sequence.

    `position_bytes` per position stored or read; `window` in positions, 0 for the whole context; `stride` in
    positions per entry of a compressed history, 0 without one; `top_k` entries read of it at most, 0 for all;
    `index_bytes` per entry; `index_flops` per entry and token, in `index_dtype`; `decode_flops` and
    `prefill_flops` per position attended and token, in the model's attention dtype; `state_bytes` of
    recurrent state.
    """

    count: int
    position_bytes: float = 0.0
    window: int = 0
    stride: int = 0
    top_k: int = 0
    index_bytes: float = 0.0
    index_flops: int = 0
    index_dtype: Dtype | None = None
    decode_flops: int = 0
    prefill_flops: int = 0
    state_bytes: int = 0

    def content_bytes(self, positions: int) -> float:
        """Bytes that all layers store in what grows with the whole context."""
        if self.stride:
            entries = positions / self.stride
            return self.count * (self.position_bytes * entries + self.index_bytes * entries)
        return 0.0 if self.window else self.count * (self.position_bytes * positions)

    def window_bytes(self, positions: int) -> float:
        """Bytes that all layers store in their windows."""
        return self.count * (self.position_bytes * min(positions, self.window))

    def attended(self, positions: int) -> int:
        """Positions and history entries that a token attends to in one layer."""
        if not self.stride:
            return min(positions, self.window) if self.window else positions
        entries = positions // self.stride
        return min(positions, self.window) + (min(entries, self.top_k) if self.top_k else entries)

    def read_bytes(self, positions: int, attended: int) -> float:
        """Bytes of KV that all layers read once, of which `attended` positions and entries whole."""
        read = self.position_bytes * attended
        if self.index_bytes:
            read += positions / self.stride * self.index_bytes
        return self.count * read


def layer_terms(layer: LayerClass, model: ModelSpec) -> LayerTerms:
    """The coefficients of `layer` in `model`."""
    if isinstance(layer, LinearLayers):
        return LayerTerms(layer.count, state_bytes=layer.state_bytes)
    if isinstance(layer, AttentionLayers):
        stored = (1 if layer.kv_shared else 2) * layer.kv_heads * layer.head_dim
        flops = 4 * layer.heads * layer.head_dim
        return LayerTerms(
            layer.count,
            position_bytes=stored * BYTES_PER_VALUE[layer.kv_precision],
            window=layer.window,
            decode_flops=flops,
            prefill_flops=flops,
        )
    return _mla_terms(layer, model)


def _mla_terms(layer: MlaLayers, model: ModelSpec) -> LayerTerms:
    decode_flops = prefill_flops = 4 * model.hidden_dim
    if layer.heads is not None and layer.qk_head_dim is not None and layer.v_head_dim is not None:
        # Decoding uses the absorbed form: scores and values in the latent space.
        decode_flops = 2 * layer.heads * (2 * layer.latent_dim + layer.rope_dim)
        prefill_flops = 2 * layer.heads * (layer.qk_head_dim + layer.v_head_dim)
    terms = LayerTerms(
        layer.count,
        position_bytes=(layer.latent_dim + layer.rope_dim) * BYTES_PER_VALUE[layer.kv_precision],
        window=layer.window,
        decode_flops=decode_flops,
        prefill_flops=prefill_flops,
    )
    history = layer.history
    if history is None:
        return terms
    terms = replace(terms, stride=history.compress_ratio, top_k=history.index_topk)
    indexer = history.indexer
    if indexer is None:
        return terms
    return replace(
        terms,
        index_bytes=indexer.head_dim * BYTES_PER_VALUE[indexer.kv_precision],
        index_flops=2 * indexer.heads * indexer.head_dim,
        index_dtype=indexer.precision or model.attention_precision,
    )


class AttentionTerms:
    """The attention of a model: all its layer classes, in the dtypes that its steps multiply in.

    From `linear_from` positions on, a decode costs `flops_per_position * positions + flops_fixed` and reads
    `read_per_position * positions + read_fixed` bytes. A compressed history, whose entries come in strides,
    never becomes linear.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.classes = tuple(layer_terms(layer, model) for layer in model.layers)
        self.dtypes = model.compute_dtypes()
        self.attention_slot = self.dtypes.index(model.attention_precision)
        self.with_index_slots = tuple(
            (terms, self.dtypes.index(terms.index_dtype) if terms.index_dtype else self.attention_slot)
            for terms in self.classes
        )
        self.state_bytes = sum(terms.count * terms.state_bytes for terms in self.classes)
        whole = [terms for terms in self.classes if not terms.window]
        windowed = [terms for terms in self.classes if terms.window]
        self.flops_per_position = sum(terms.count * terms.decode_flops for terms in whole)
        self.flops_fixed = sum(terms.count * terms.decode_flops * terms.window for terms in windowed)
        per_position = sum(terms.count * terms.position_bytes for terms in whole)
        fixed = sum(terms.count * terms.position_bytes * terms.window for terms in windowed)
        self.read_per_position = int(per_position)
        self.read_fixed = int(fixed)
        # Each entry reads whole bytes, so only whole coefficients may be multiplied by a sum over entries.
        whole_bytes = per_position == self.read_per_position and fixed == self.read_fixed
        strided = any(terms.stride for terms in self.classes)
        widest = max((terms.window for terms in windowed), default=0)
        self.linear_from: float = widest if whole_bytes and not strided else inf

        self.decode_costs = _DecodeCosts(self)

    def read_bytes(self, positions: int) -> int:
        """Bytes of KV that one sequence of `positions` reads in a step."""
        return int(sum(terms.read_bytes(positions, terms.attended(positions)) for terms in self.classes))


class _DecodeCosts(dict[int, tuple[int, ...]]):
    """What a decode on top of so many positions costs: bytes of KV, then FLOPs per dtype slot.

    Remembered, as all sequences pass the same lengths, most of them many at a time; emptied when full.
    """

    def __init__(self, terms: AttentionTerms) -> None:
        super().__init__()
        self._terms = terms

    def __missing__(self, context: int) -> tuple[int, ...]:
        terms, positions = self._terms, context + 1
        flops = [0] * len(terms.dtypes)
        for layer, index_slot in terms.with_index_slots:
            flops[terms.attention_slot] += layer.count * layer.decode_flops * layer.attended(positions)
            if layer.index_flops:
                flops[index_slot] += layer.count * layer.index_flops * (positions // layer.stride)
        if len(self) >= _MEMO_SIZE:
            self.clear()
        self[context] = cost = (terms.read_bytes(positions), *flops)
        return cost
