"""A model's weights: bytes in memory, bytes a step reads, and the projections that dp_attention repeats.

Rules: docs/engine.md, "Formulas".
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

from inference_lab.core.engine.model_spec import AttentionLayers, LinearLayers
from inference_lab.core.engine.units import BYTES_PER_VALUE

if TYPE_CHECKING:
    from inference_lab.core.engine.model_spec import LayerClass, MlaLayers, ModelSpec, WeightStream
    from inference_lab.core.engine.units import Dtype

# A model whose heads are not given has heads of this many values in queries and keys, and in values.
_USUAL_HEAD_DIM = 128


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
