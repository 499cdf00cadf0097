"""Sizes of the KV cache, against the reference and where the reference has no case."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.config.deployment_file import Catalog
from inference_lab.core.engine.model_costs import (
    AttentionTerms,
    KvLayout,
    projection_bytes,
    projection_dtype,
    projection_params,
    weight_bytes,
)
from inference_lab.core.engine.specs import (
    AttentionLayers,
    History,
    LinearLayers,
    MlaLayers,
    ModelSpec,
    WeightStream,
)
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.engine.deployment_spec import Deployment

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "support" / "golden/kv.json").read_text())
PAIRS: list[dict[str, Any]] = GOLDEN["pairs"] + GOLDEN["synthetic_pairs"]


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_a_sequence_stores_and_reads_as_many_bytes_as_in_the_reference(name: str) -> None:
    model = Catalog().model(name, file="", where="")
    layout = KvLayout(model, 16)
    terms = AttentionTerms(model)
    expected = GOLDEN["models"][name]
    for positions, size in expected["kv_bytes_content"]:
        assert layout.content_bytes(positions) == size
    for positions, size in expected["kv_bytes_window"]:
        assert layout.window_bytes(positions) == size
    for positions, size in expected["kv_bytes_stored"]:
        assert layout.content_bytes(positions) + layout.window_bytes(positions) == size
    for positions, size in expected["kv_bytes_read"]:
        assert terms.read_bytes(positions) == size
    assert layout.state_bytes == expected["state_bytes_per_sequence"]
    assert weight_bytes(model) == expected["weight_bytes"]


@pytest.mark.parametrize(
    "pair", PAIRS, ids=[f"{pair['config']}-{pair['hardware']}-tp{pair['tp']}" for pair in PAIRS]
)
def test_a_deployment_has_as_many_blocks_as_in_the_reference(
    pair: dict[str, Any], deployment_of: Callable[[dict[str, Any]], Deployment]
) -> None:
    options = {
        "gpu_memory_utilization": pair["gpu_memory_utilization"],
        "kv_cache_capacity": pair["kv_cache_capacity_option"],
    }
    deployment = deployment_of(pair | {"scheduler": options})
    model = deployment.model
    layout = KvLayout(model, pair["block_size"])
    assert layout.block_bytes == pair["block_bytes"]
    assert projection_bytes(model) == pair["attention_projection_bytes"]
    assert projection_params(model) == pair["attention_projection_params"]
    assert projection_dtype(model) == pair["projection_dtype"]
    assert deployment.rank_count == pair["workers_per_replica"]
    capacity = deployment.kv_capacity(layout.block_bytes)
    assert capacity.weight_bytes == pair["replica_weight_bytes"]
    assert capacity.replica_bytes == pair["replica_kv_bytes"]
    assert capacity.rank_bytes == pair["worker_kv_bytes"]
    assert capacity.rank_blocks == pair["kv_blocks"]
    for held in pair["blocks_for_context"]:
        positions = held["tokens"]
        assert layout.content_blocks(positions) == held["content_blocks"]
        assert layout.aux_blocks(positions) == held["aux_blocks"]
        assert layout.blocks(positions) == held["blocks"]


def small_model(**changes: Any) -> ModelSpec:
    weights = (WeightStream(precision="bf16", active_params=10, resident_params=10),)
    full = AttentionLayers(count=1, heads=1, head_dim=8, kv_heads=1, kv_precision="bf16")
    windowed = AttentionLayers(count=1, heads=1, head_dim=8, kv_heads=1, kv_precision="bf16", window=100)
    layers = {"full": full, "windowed": windowed, "linear": LinearLayers(count=1, state_bytes=300)}
    chosen = tuple(layers[name] for name in changes["layers"])
    return ModelSpec(name="Tiny", hidden_dim=8, max_seq_len=100, weights=weights, layers=chosen)


def test_a_model_with_windows_only_stops_holding_more_content_blocks_at_the_window() -> None:
    layout = KvLayout(small_model(layers=["windowed", "linear"]), 16)
    assert layout.block_bytes == 16 * 2 * 8 * 2
    assert [layout.content_blocks(positions) for positions in (1, 16, 17, 100, 5000)] == [1, 1, 2, 7, 7]
    assert {layout.aux_blocks(positions) for positions in (1, 16, 17, 100, 5000)} == {1}


def test_a_history_under_one_byte_per_block_is_counted_with_the_window() -> None:
    history = History(compress_ratio=128)
    layers = (MlaLayers(count=1, latent_dim=10, kv_precision="fp8", window=100, history=history),)
    weights = (WeightStream(precision="bf16", active_params=10, resident_params=10),)
    layout = KvLayout(
        ModelSpec(name="Tiny", hidden_dim=8, max_seq_len=100, weights=weights, layers=layers), 10
    )
    assert layout.block_bytes == 10 * 10
    # 10 bytes per position up to the window, and 10 more per 128 positions.
    assert [layout.content_blocks(positions) for positions in (1, 10, 99, 100, 2000)] == [1, 1, 10, 11, 12]
    assert layout.covered(2000, 12) < 10_000
    assert layout.content_blocks(10_000) == 18


def test_windows_beside_whole_context_lie_in_auxiliary_blocks() -> None:
    layout = KvLayout(small_model(layers=["full", "windowed"]), 16)
    assert [layout.content_blocks(positions) for positions in (1, 16, 17, 5000)] == [1, 1, 2, 313]
    assert [layout.aux_blocks(positions) for positions in (1, 16, 17, 100, 5000)] == [1, 1, 2, 7, 7]


def test_a_model_with_no_kv_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="layers are all linear"):
        small_model(layers=["linear"])
