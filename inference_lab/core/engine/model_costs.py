"""What a model's weights and layers cost: bytes in memory, bytes read, FLOPs; and the KV cache of a sequence in blocks.

Rules: docs/engine.md, "Formulas", "What a step costs" and "The KV cache". Lengths are in positions (one token's slot in
a sequence), sizes in bytes.
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from inference_lab.core.engine.specs import BYTES_PER_VALUE, AttentionLayers, Dtype, LinearLayers

if TYPE_CHECKING:
    from inference_lab.core.engine.specs import LayerClass, MlaLayers, ModelSpec, WeightStream

# A model whose heads are not given has heads of this many values in queries and keys, and in values.
_USUAL_HEAD_DIM = 128

_MEMO_SIZE: Final = 2**14


def weight_bytes(model: ModelSpec) -> int:
    """Bytes of all weights in memory."""
    return sum(int(stream.resident_params * BYTES_PER_VALUE[stream.precision]) for stream in model.weights)


def read_bytes(stream: WeightStream, new_tokens: int) -> int:
    """Bytes of `stream` that a step of `new_tokens` reads.

    Of experts, those that uniform routing is expected to hit.
    """
    return int(_params_read(stream, new_tokens) * BYTES_PER_VALUE[stream.precision])


def _params_read(stream: WeightStream, new_tokens: int) -> int:
    routing = stream.routing
    if routing is None or routing.routed_experts <= routing.experts_per_tok:
        return stream.active_params
    experts, chosen = routing.routed_experts, routing.experts_per_tok
    per_expert = (stream.resident_params - stream.active_params) / (experts - chosen)
    shared = max(0.0, stream.active_params - chosen * per_expert)
    distinct = experts * (1 - (1 - 1 / experts) ** (new_tokens * chosen))
    return floor(shared + distinct * per_expert + 0.5)


def projection_bytes(model: ModelSpec) -> int:
    """Bytes of the projections around attention; under dp_attention every GPU holds and reads its own."""
    return int(projection_params(model) * BYTES_PER_VALUE[projection_dtype(model)])


def projection_params(model: ModelSpec) -> int:
    """Parameters of the projections into and out of attention, over all layers."""
    return sum(layer.count * _projection_params(layer, model.hidden_dim) for layer in model.layers)


def projection_dtype(model: ModelSpec) -> Dtype:
    """The dtype of the largest dense stream (the last of several), else of attention."""
    dense = [stream for stream in model.weights if stream.routing is None]
    if not dense:
        return model.attention_precision
    return max(reversed(dense), key=lambda stream: stream.resident_params).precision


def _projection_params(layer: LayerClass, width: int) -> int:
    if isinstance(layer, LinearLayers):
        return 0
    if isinstance(layer, AttentionLayers):
        kv_tensors = 1 if layer.kv_shared else 2
        return width * layer.head_dim * (2 * layer.heads + kv_tensors * layer.kv_heads)
    return _mla_projection_params(layer, width)


def _mla_projection_params(layer: MlaLayers, width: int) -> int:
    heads = layer.heads if layer.heads is not None else width // _USUAL_HEAD_DIM
    query = layer.qk_head_dim if layer.qk_head_dim is not None else _USUAL_HEAD_DIM
    value = layer.v_head_dim if layer.v_head_dim is not None else _USUAL_HEAD_DIM
    unrotated = max(0, query - layer.rope_dim)
    params = width * (layer.latent_dim + layer.rope_dim) + layer.latent_dim * heads * (unrotated + value)
    if layer.q_latent_dim is None:
        params += width * heads * query
    else:
        params += width * layer.q_latent_dim + layer.q_latent_dim * heads * query
    if layer.o_latent_dim is None:
        params += heads * value * width
    else:
        params += heads * value * layer.o_latent_dim + layer.o_latent_dim * width
    if layer.history is not None and layer.history.indexer is not None:
        indexer = layer.history.indexer
        params += width * indexer.heads * indexer.head_dim
    return params


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


class KvLayout:
    """How one sequence of a model lies in blocks of `block_size` positions.

    A block holds what grows with the whole context. What is bounded, windows and recurrent state, lies in
    auxiliary blocks of the same size, which a sequence never shares.

    Raises:
        ValueError: a block has no size.
    """

    def __init__(self, model: ModelSpec, block_size: int) -> None:
        attention = AttentionTerms(model)
        self._classes = attention.classes
        self.state_bytes = attention.state_bytes
        self._block_size = block_size
        # False: all layers have windows, or a block of compressed history is under one byte.
        self._grows = self.content_bytes(block_size) > 0
        self._strided = any(terms.stride for terms in self._classes)
        self.block_bytes = self.content_bytes(block_size) or self.window_bytes(block_size)
        if self.block_bytes == 0:
            raise ValueError(
                f"scheduler.block_size is {block_size}, whose KV of {model.name} is under one byte"
            )
        # From this length on, what windows hold is constant.
        self._widest_window = max((terms.window for terms in self._classes), default=0)
        self._aux_at_most = self._aux(self._widest_window)
        self._same_aux: dict[int, tuple[int, int]] = {}  # at most one for each position of the widest window

    def content_bytes(self, positions: int) -> int:
        """Bytes stored for `positions` in what grows with the context."""
        return int(sum(terms.content_bytes(positions) for terms in self._classes))

    def window_bytes(self, positions: int) -> int:
        """Bytes stored for `positions` in sliding windows."""
        return int(sum(terms.window_bytes(positions) for terms in self._classes))

    def content_blocks(self, positions: int) -> int:
        """Blocks that hold the content of `positions`."""
        if self._grows:
            return -(-positions // self._block_size)
        return -(-(self.content_bytes(positions) + self.window_bytes(positions)) // self.block_bytes)

    def aux_blocks(self, positions: int) -> int:
        """Blocks that hold what is bounded: windows and recurrent state."""
        return self._aux_at_most if positions >= self._widest_window else self._aux_span(positions)[0]

    def _aux_span(self, positions: int) -> tuple[int, int]:
        """The auxiliary blocks of a length within the widest window, and the greatest length that has as many."""
        span = self._same_aux.get(positions)
        if span is None:
            last, blocks = positions, self._aux(positions)
            while last + 1 < self._widest_window and self._aux(last + 1) == blocks:
                last += 1
            span = blocks, last
            self._same_aux.update((length, span) for length in range(positions, last + 1))
        return span

    def _aux(self, positions: int) -> int:
        bounded = self.state_bytes + (self.window_bytes(positions) if self._grows else 0)
        return -(-bounded // self.block_bytes)

    def blocks(self, positions: int) -> int:
        """All blocks that a sequence of `positions` holds."""
        return self.content_blocks(positions) + self.aux_blocks(positions)

    def covered(self, positions: int, content_blocks: int) -> float:
        """A length that needs no more blocks than a sequence of `positions` that holds `content_blocks`."""
        if positions < self._widest_window:
            return (
                min(content_blocks * self._block_size, self._aux_span(positions)[1])
                if self._grows
                else positions
            )
        if self._grows:
            return content_blocks * self._block_size
        return positions if self._strided else inf


class KvCapacity(NamedTuple):
    """KV memory of a deployment.

    Bytes that a replica may use and that its weights take; bytes of KV per replica and per rank; blocks per
    rank.
    """

    usable_bytes: int
    weight_bytes: int
    replica_bytes: int
    rank_bytes: int
    rank_blocks: int
