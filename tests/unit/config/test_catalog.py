"""The shipped catalog and deployments hold the reference's facts, and a user's broken entry is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inference_lab.config.deployment_file import Catalog, parse_deployment_file
from inference_lab.config.models import load
from inference_lab.config.toml_reading import read_toml
from inference_lab.console import UserError
from inference_lab.core.engine.specs import AttentionLayers, LayerClass, LinearLayers, ModelSpec
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from inference_lab.core.engine.specs import HardwareSpec, Link

HERE = ROOT / "tests" / "support"
CONFIGS = ROOT / "configs"
REFERENCE: dict[str, Any] = json.loads((HERE / "golden/catalog.json").read_text())
DEPLOYMENTS: dict[str, Any] = json.loads((HERE / "golden/deployments.json").read_text())["deployments"]


def reference_link(link: Link | None) -> dict[str, Any] | None:
    if link is None:
        return None
    return {
        "bandwidth": link.bandwidth,
        "latency": link.latency,
        "reduces_in_switch": link.in_network_reduction,
    }


def reference_hardware(spec: HardwareSpec) -> dict[str, Any]:
    """The spec in the reference's words."""
    rates = {dtype: getattr(spec, f"flops_{dtype}") for dtype in ("fp4", "fp8", "bf16", "fp16")}
    fabric = spec.fabric
    return {
        "label": spec.name,
        "peak_flops": {dtype: rate for dtype, rate in rates.items() if rate is not None},
        "hbm_bandwidth": spec.memory_bandwidth,
        "hbm_bytes": spec.memory_capacity,
        "fabric": fabric
        and {
            "node_gpus": fabric.gpus_per_node,
            "intra": reference_link(fabric.scale_up),
            "inter": reference_link(fabric.scale_out),
        },
    }


def reference_layers(layers: LayerClass) -> dict[str, Any]:
    if isinstance(layers, LinearLayers):
        return {"kind": "recurrent", "layers": layers.count, "state_bytes": layers.state_bytes}
    shared = {"layers": layers.count, "window": layers.window, "kv_dtype": layers.kv_precision}
    if isinstance(layers, AttentionLayers):
        return shared | {
            "kind": "gqa",
            "query_heads": layers.heads,
            "head_dim": layers.head_dim,
            "kv_heads": layers.kv_heads,
            "joint_kv": layers.kv_shared,
        }
    history = layers.history
    indexer = history and history.indexer
    return shared | {
        "kind": "mla",
        "latent": layers.latent_dim,
        "rope": layers.rope_dim,
        "heads": layers.heads,
        "qk_dim": layers.qk_head_dim,
        "v_dim": layers.v_head_dim,
        "q_rank": layers.q_latent_dim,
        "o_rank": layers.o_latent_dim,
        "history": history
        and {
            "stride": history.compress_ratio,
            "top_k": history.index_topk,
            "indexer": indexer
            and {
                "heads": indexer.heads,
                "head_dim": indexer.head_dim,
                "kv_dtype": indexer.kv_precision,
                "score_dtype": indexer.precision,
            },
        },
    }


def reference_model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "label": spec.name,
        "width": spec.hidden_dim,
        "context_limit": spec.max_seq_len,
        "attention_dtype": spec.attention_precision,
        "activation_bytes": spec.activation_bytes,
        "weights": [
            {
                "dtype": stream.precision,
                "active": stream.active_params,
                "resident": stream.resident_params,
                "moe": stream.routing
                and {
                    "experts": stream.routing.routed_experts,
                    "top_k": stream.routing.experts_per_tok,
                    "layers": stream.routing.moe_layers,
                },
            }
            for stream in spec.weights
        ],
        "mixers": [reference_layers(layers) for layers in spec.layers],
    }


@pytest.mark.parametrize("name", REFERENCE["hardware"])
def test_the_catalog_holds_the_facts_of_each_hardware(name: str) -> None:
    assert reference_hardware(Catalog().hardware(name, file="", where="")) == REFERENCE["hardware"][name]


@pytest.mark.parametrize("name", REFERENCE["models"])
def test_the_catalog_holds_the_facts_of_each_model(name: str) -> None:
    assert reference_model(Catalog().model(name, file="", where="")) == REFERENCE["models"][name]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_each_shipped_file_is_the_reference_deployment_on_every_hardware(name: str) -> None:
    path = CONFIGS / f"{name}.toml"
    file = parse_deployment_file(read_toml(path, name), name)
    assert list(file.entries) == list(DEPLOYMENTS[name]["hardware"])
    catalog = Catalog()
    for entry, expected in DEPLOYMENTS[name]["hardware"].items():
        deployment = file.deployment(entry, catalog)
        assert deployment.model == catalog.model(DEPLOYMENTS[name]["model"], file="", where="")
        assert deployment.hardware == catalog.hardware(entry, file="", where="")
        assert {
            "tp": deployment.tp,
            "ep": deployment.ep,
            "dp_attention": deployment.dp_attention,
            "replicas": deployment.replicas,
            "router": msgspec.to_builtins(deployment.router),
            "scheduler": msgspec.structs.asdict(deployment.scheduler),
            "time_correction": deployment.time_correction,
        } == {key: value for key, value in expected.items() if key != "has_speculative_block"}


def test_the_configs_are_the_reference_deployments_and_two_without_physics() -> None:
    without_physics = {"deepseek-v4-flash-dsv4", "qwen3-14b-hermes"}
    assert {path.stem for path in CONFIGS.glob("*.toml")} == set(DEPLOYMENTS) | without_physics


def test_only_the_entries_that_are_named_are_read(tmp_path: Path) -> None:
    for folder in ("models", "hardware"):
        (tmp_path / folder).mkdir()
    (tmp_path / "hardware/broken.toml").write_text("x = ")
    (tmp_path / "hardware/mine.toml").write_text(
        'name = "Mine"\nmemory_bandwidth = 1e12\nmemory_capacity = 1000'
    )
    catalog = Catalog(tmp_path)
    assert catalog.hardware("mine", file="", where="").name == "Mine"
    with pytest.raises(UserError, match=r"hardware/broken.toml: not valid TOML"):
        catalog.hardware("broken", file="", where="")


def test_the_model_of_a_left_out_file_need_not_be_in_the_catalog(tmp_path: Path) -> None:
    text = (CONFIGS / "llama-3-70b.toml").read_text()
    (tmp_path / "a.toml").write_text(text)
    (tmp_path / "b.toml").write_text(text.replace('"llama-3-70b"', '"unknown"').replace("h100", "elsewhere"))
    assert [model.name for model in load(str(tmp_path), "h100").models] == ["Llama-3-70B"]
