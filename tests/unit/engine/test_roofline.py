"""Step times, against the reference, and the parts of a step that must not matter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.config.deployment_file import Catalog
from inference_lab.core.engine.deployment_spec import TimeCorrection
from inference_lab.core.engine.model_costs import AttentionTerms
from inference_lab.core.engine.roofline import (
    BatchWork,
    Roofline,
    StepCost,
    all_reduce,
    all_to_all,
    gather_scatter,
    seconds,
)
from inference_lab.core.engine.specs import Fabric, Link
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.engine.deployment_spec import Deployment

    Build = Callable[[dict[str, Any]], Deployment]

GOLDEN = ROOT / "tests" / "support" / "golden"
RECORDS: list[dict[str, Any]] = json.loads((GOLDEN / "step_times.json").read_text())["records"]
MODELS = sorted(json.loads((GOLDEN / "catalog.json").read_text())["models"])
LLAMA = {"config": "llama-3.1-8b-instruct", "hardware": "gh200", "tp": 1, "ep": 1, "dp_attention": False}
PRO = {"config": "deepseek-v4-pro", "hardware": "b200", "tp": 8, "ep": 1, "dp_attention": True}


def price(deployment: Deployment, batch: list[dict[str, Any]]) -> StepCost:
    roofline = Roofline(deployment)
    ranks = [roofline.batch() for _ in range(deployment.tp if deployment.dp_attention else 1)]
    for entry in batch:
        ranks[entry.get("rank", 0)].add(
            entry["context_tokens"],
            entry["new_tokens"],
            decode=entry["phase"] == "decode",
            count=entry.get("count", 1),
        )
    return roofline.price(ranks)


@pytest.mark.parametrize(
    "record",
    RECORDS,
    ids=[
        f"{number}-{record['config']}-{record['hardware']}-{record['kind']}"
        for number, record in enumerate(RECORDS)
    ],
)
def test_a_step_costs_what_it_costs_in_the_reference(record: dict[str, Any], deployment_of: Build) -> None:
    cost: dict[str, Any] = msgspec.to_builtins(price(deployment_of(record), record["batch"]))
    assert set(cost["streams"]) == set(record["streams"])
    for dtype, stream in record["streams"].items():
        assert cost["streams"][dtype] == pytest.approx(stream, rel=1e-9)
    if "rank_attention_seconds" in record:
        assert cost["rank_attention_seconds"] == pytest.approx(record["rank_attention_seconds"], rel=1e-9)
    for part in set(cost) - {"streams", "rank_attention_seconds"}:
        assert cost[part] == pytest.approx(record[part], rel=1e-9, abs=1e-18), part


def test_the_worked_example_of_a_dense_model_can_be_redone_by_hand(deployment_of: Build) -> None:
    batch = [
        {"context_tokens": 1024, "new_tokens": 1, "phase": "decode", "count": 2},
        {"context_tokens": 4096, "new_tokens": 2048, "phase": "prefill"},
    ]
    cost = price(deployment_of(LLAMA), batch)
    assert cost.flops == 38_421_632_929_280
    assert cost.bytes == 16_999_786_240
    assert cost.step_seconds == pytest.approx(0.03884897161706775, rel=1e-12)


def test_the_worked_example_of_dp_attention_can_be_redone_by_hand(deployment_of: Build) -> None:
    batch = [
        {"context_tokens": 9000, "new_tokens": 1, "phase": "decode", "rank": 0},
        {"context_tokens": 0, "new_tokens": 1001, "phase": "prefill", "rank": 0},
        {"context_tokens": 3000, "new_tokens": 1, "phase": "decode", "rank": 1},
    ]
    cost = price(deployment_of(PRO), batch)
    assert cost.skew_seconds == pytest.approx(0.001279348553045333, rel=1e-9)
    assert cost.step_seconds == pytest.approx(0.018215646763764984, rel=1e-9)


def test_time_correction_scales_roofline_and_collectives_but_not_the_skew(deployment_of: Build) -> None:
    deployment = deployment_of(PRO)
    batch = [{"context_tokens": 9000, "new_tokens": 1, "phase": "decode"}]
    plain = price(deployment, batch)
    corrected = price(
        msgspec.structs.replace(deployment, time_correction=TimeCorrection(alpha=2.0, beta=0.5)), batch
    )
    assert corrected.roofline_seconds == pytest.approx(2 * plain.roofline_seconds + 0.5)
    assert corrected.skew_seconds == plain.skew_seconds > 0
    assert corrected.step_seconds == corrected.roofline_seconds + corrected.skew_seconds


def test_a_prefix_read_together_is_read_once(deployment_of: Build) -> None:
    roofline = Roofline(deployment_of(LLAMA))
    alone, together = roofline.batch(), BatchWork(roofline.terms, cascades=True)
    for work in (alone, together):
        work.add(1023, 1, decode=True, count=3)
    together.read_together(512)
    per_position = 32 * 4096
    assert alone.kv_bytes == 3 * 1024 * per_position
    assert together.kv_bytes == (512 + 3 * 512) * per_position
    assert together.flops == alone.flops


@given(
    st.sampled_from(MODELS),
    st.lists(st.integers(0, 3000), min_size=1, max_size=5),
)
def test_decodes_added_as_a_sum_cost_what_they_cost_one_by_one(name: str, contexts: list[int]) -> None:
    terms = AttentionTerms(Catalog().model(name, file="", where=""))
    linear = [context for context in contexts if context + 1 >= terms.linear_from]
    one_by_one, summed = BatchWork(terms), BatchWork(terms)
    for context in linear:
        one_by_one.add(context, 1, decode=True)
    summed.add_linear_decodes(len(linear), sum(linear) + len(linear))
    assert summed.kv_bytes == one_by_one.kv_bytes
    assert summed.flops == one_by_one.flops
    assert (summed.new_tokens, summed.entries) == (one_by_one.new_tokens, one_by_one.entries)


def test_a_group_inside_one_node_never_touches_the_link_between_nodes() -> None:
    slow = Link(bandwidth=1.0, latency=1000.0)
    fabric = Fabric(gpus_per_node=8, scale_up=Link(bandwidth=1e9), scale_out=slow)
    for collective in (all_reduce, gather_scatter, all_to_all):
        assert seconds(collective(fabric, 8), 1e6) < 1
        assert seconds(collective(fabric, 16), 1e6) > 1000


def test_a_switch_that_sums_makes_an_all_reduce_cheaper_and_nothing_else() -> None:
    plain = Fabric(gpus_per_node=8, scale_up=Link(bandwidth=1e9))
    summing = Fabric(gpus_per_node=8, scale_up=Link(bandwidth=1e9, in_network_reduction=True))
    assert seconds(all_reduce(plain, 8), 1e9) == pytest.approx(2 * 7 / 8)
    assert seconds(all_reduce(summing, 8), 1e9) == pytest.approx(1)
    for collective in (gather_scatter, all_to_all):
        assert collective(plain, 8) == collective(summing, 8)
