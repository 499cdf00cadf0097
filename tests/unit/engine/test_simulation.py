"""Whole runs against the reference's scenarios, and what we do otherwise on purpose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.engine.deployment_spec import Deployment

    Build = Callable[[dict[str, Any]], Deployment]

GOLDEN = ROOT / "tests" / "support" / "golden"
SCENARIOS: dict[str, dict[str, Any]] = {
    scenario["name"]: scenario for scenario in json.loads((GOLDEN / "schedule.json").read_text())["scenarios"]
}
# These two show that the reference never orders its queue by priority; ours does.
OTHER_ON_PURPOSE = {"kv_preemption_priority", "priority_queue_is_fifo"}
LLAMA = {"config": "llama-3.1-8b-instruct", "hardware": "gh200", "tp": 1, "ep": 1, "dp_attention": False}
BLOCK_BYTES = 2_097_152


def as_request(entry: dict[str, Any]) -> Request:
    return Request(
        entry["id"],
        entry["prompt_tokens"],
        entry["output_tokens"],
        max_output_tokens=entry.get("max_output_tokens"),
        priority=entry.get("priority", 0),
        block_ids=entry.get("prompt_block_ids", ()),
    )


def run(deployment: Deployment, entries: list[dict[str, Any]]) -> dict[str, Request]:
    requests = [as_request(entry) for entry in entries]
    arrivals = [
        (entry.get("arrival", 0.0), request) for entry, request in zip(entries, requests, strict=True)
    ]
    for _ in simulate(Cluster(deployment), arrivals):
        pass
    return {str(request.id): request for request in requests}


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - OTHER_ON_PURPOSE))
def test_a_scenario_runs_as_in_the_reference(name: str, deployment_of: Build) -> None:
    scenario = SCENARIOS[name]
    cluster = Cluster(deployment_of(scenario))
    assert cluster.rank_blocks == scenario["kv_blocks_per_worker"]
    requests = [as_request(entry) for entry in scenario["requests"]]
    arrivals = [
        (entry["arrival"], request) for entry, request in zip(scenario["requests"], requests, strict=True)
    ]
    steps = []
    for replica, step in simulate(cluster, arrivals):
        if not step.is_idle:
            batch = {str(request.id): (1, "decode", 1) for request in step.decodes}
            for request, new_tokens, output_tokens in step.chunks:
                batch[str(request.id)] = (new_tokens, "prefill", output_tokens)
            steps.append((replica * cluster.rank_count, step.start_s, step.seconds, batch))
    assert len(steps) == scenario["num_steps"]
    for (worker, start_s, seconds, batch), expected in zip(steps, scenario.get("steps", ()), strict=False):
        assert (worker, batch) == (
            expected["worker"],
            {entry[0]: tuple(entry[1:]) for entry in expected["batch"]},
        )
        assert (start_s, seconds) == (near(expected["start"]), near(expected["seconds"]))
    for request, entry in zip(requests, scenario["requests"], strict=True):
        assert {
            "cached_tokens": request.cached_tokens,
            "finish": request.finish_s,
            "first_token": request.first_token_s,
            "output_tokens": request.produced,
            "preemptions": request.preemptions,
            "rejected": request.rejected,
            "worker": request.worker,
        } == entry["result"] | {
            "finish": near(entry["result"]["finish"]),
            "first_token": near(entry["result"]["first_token"]),
        }
    assert max(request.finish_s or 0 for request in requests) == near(scenario["end_time"])


def order_of_first_tokens(requests: dict[str, Request]) -> list[str]:
    return sorted(requests, key=lambda name: requests[name].first_token_s or 0)


def test_the_priority_policy_serves_the_most_urgent_first_then_the_earliest(deployment_of: Build) -> None:
    deployment = deployment_of(LLAMA | {"scheduler": {"policy": "priority", "max_num_seqs": 1}})
    entries = [
        {"id": "running", "prompt_tokens": 50, "output_tokens": 3, "priority": 9},
        {"id": "late", "arrival": 0.003, "prompt_tokens": 50, "output_tokens": 2, "priority": 1},
        {"id": "early", "arrival": 0.001, "prompt_tokens": 50, "output_tokens": 2, "priority": 1},
        {"id": "urgent", "arrival": 0.004, "prompt_tokens": 50, "output_tokens": 2, "priority": -5},
        {"id": "twin", "arrival": 0.001, "prompt_tokens": 50, "output_tokens": 2, "priority": 1},
    ]
    order = order_of_first_tokens(run(deployment, entries))
    assert order == ["running", "urgent", "early", "twin", "late"]


def test_priority_has_no_effect_under_another_policy(deployment_of: Build) -> None:
    deployment = deployment_of(LLAMA | {"scheduler": {"policy": "fcfs", "max_num_seqs": 1}})
    entries = [
        {"id": "a", "prompt_tokens": 50, "output_tokens": 2, "priority": 9},
        {"id": "b", "prompt_tokens": 50, "output_tokens": 2, "priority": -9},
    ]
    assert order_of_first_tokens(run(deployment, entries)) == ["a", "b"]


def test_a_preempted_request_returns_to_its_place_by_priority(deployment_of: Build) -> None:
    # Room for two sequences at first; "low" loses its blocks, and "urgent", which arrives then, goes before it.
    options = {"policy": "priority", "kv_cache_capacity": 10 * BLOCK_BYTES}
    entries = [
        {"id": "high", "prompt_tokens": 64, "output_tokens": 60, "priority": 0},
        {"id": "low", "prompt_tokens": 64, "output_tokens": 60, "priority": 5},
        {"id": "urgent", "arrival": 0.1, "prompt_tokens": 96, "output_tokens": 2, "priority": 1},
    ]
    requests = run(deployment_of(LLAMA | {"scheduler": options}), entries)
    assert requests["low"].preemptions > 0
    assert requests["high"].preemptions == 0
    finishes = {name: request.finish_s for name, request in requests.items()}
    assert finishes["urgent"] is not None
    assert finishes["low"] is not None
    assert finishes["urgent"] < finishes["low"]
    assert requests["low"].produced == 60


def test_admission_without_preemption_never_starves_a_request_that_fits_alone(deployment_of: Build) -> None:
    # Its plan is one block more than there is, what it really takes fits exactly.
    options = {"enable_preemption_free": True, "kv_cache_capacity": 4 * BLOCK_BYTES}
    entries = [{"id": "exact", "prompt_tokens": 60, "output_tokens": 5}]
    request = run(deployment_of(LLAMA | {"scheduler": options}), entries)["exact"]
    assert (request.rejected, request.produced) == (False, 5)


def test_an_empty_prompt_counts_as_one_token(deployment_of: Build) -> None:
    entries = [
        {"id": "empty", "prompt_tokens": 0, "output_tokens": 1},
        {"id": "next", "prompt_tokens": 5, "output_tokens": 2},
    ]
    requests = run(deployment_of(LLAMA), entries)
    assert [request.produced for request in requests.values()] == [1, 2]


def test_several_partial_prefills_limit_a_chunk_to_four_percent_of_the_context(deployment_of: Build) -> None:
    options = {"max_num_partial_prefills": 2, "max_model_len": 5000}
    cluster = Cluster(deployment_of(LLAMA | {"scheduler": options}))
    steps = list(simulate(cluster, [(0.0, Request("a", 450, 1))]))
    assert [step.chunks[0].new_tokens for _, step in steps if step.chunks] == [200, 200, 50]


def test_cascade_attention_makes_steps_with_a_common_prefix_shorter(deployment_of: Build) -> None:
    ids = list(range(64))
    entries = [
        {"id": name, "prompt_tokens": 1030, "output_tokens": 20, "prompt_block_ids": ids}
        for name in ("a", "b")
    ]
    times = [
        run(deployment_of(LLAMA | {"scheduler": {"enable_cascade_attention": cascade}}), entries)[
            "a"
        ].finish_s
        for cascade in (False, True)
    ]
    assert times[0] is not None
    assert times[1] is not None
    # 19 decode steps, each without one reading of 1024 positions of 32 * 4096 bytes at 4 TB/s.
    assert times[0] - times[1] == pytest.approx(19 * 1024 * 32 * 4096 / 4e12, rel=1e-6)


def test_cascade_attention_changes_nothing_without_content_ids(deployment_of: Build) -> None:
    entries = [{"id": name, "prompt_tokens": 1030, "output_tokens": 20} for name in ("a", "b")]
    times = [
        run(deployment_of(LLAMA | {"scheduler": {"enable_cascade_attention": cascade}}), entries)[
            "a"
        ].finish_s
        for cascade in (False, True)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def workers(deployment: Deployment, entries: list[dict[str, Any]]) -> dict[str, int]:
    return {name: request.worker for name, request in run(deployment, entries).items()}


def test_kv_aware_routing_weighs_missing_prompt_against_queued_tokens(deployment_of: Build) -> None:
    ids = list(range(10))
    entries = [
        {"id": "first", "prompt_tokens": 161, "output_tokens": 2, "prompt_block_ids": ids},
        {"id": "hit", "arrival": 1.0, "prompt_tokens": 161, "output_tokens": 2, "prompt_block_ids": ids},
        {"id": "miss", "arrival": 1.0, "prompt_tokens": 161, "output_tokens": 2},
        {"id": "next", "arrival": 1.0, "prompt_tokens": 161, "output_tokens": 2},
    ]
    near_sighted = deployment_of(LLAMA | {"replicas": 3, "router": {"policy": "kv_aware", "load_weight": 0}})
    assert workers(near_sighted, entries) == {"first": 0, "hit": 0, "miss": 0, "next": 0}
    balanced = deployment_of(LLAMA | {"replicas": 3, "router": {"policy": "kv_aware"}})
    assert workers(balanced, entries) == {"first": 0, "hit": 0, "miss": 1, "next": 2}


def test_kv_aware_decode_routing_avoids_workers_without_room(deployment_of: Build) -> None:
    options = {"kv_cache_capacity": 20 * BLOCK_BYTES}
    router = {"policy": "kv_aware_decode", "load_weight": 0}
    deployment = deployment_of(LLAMA | {"replicas": 2, "router": router, "scheduler": options})
    entries = [
        {"id": "large", "prompt_tokens": 250, "output_tokens": 30},
        {"id": "second", "arrival": 0.01, "prompt_tokens": 250, "output_tokens": 2},
        {"id": "small", "arrival": 0.011, "prompt_tokens": 40, "output_tokens": 2},
    ]
    assert workers(deployment, entries) == {"large": 0, "second": 1, "small": 0}


def test_kv_aware_decode_routing_counts_running_requests(deployment_of: Build) -> None:
    deployment = deployment_of(LLAMA | {"replicas": 2, "router": {"policy": "kv_aware_decode"}})
    entries = [
        {"id": "a", "prompt_tokens": 20, "output_tokens": 30},
        {"id": "b", "arrival": 0.01, "prompt_tokens": 20, "output_tokens": 30},
        {"id": "c", "arrival": 0.02, "prompt_tokens": 20, "output_tokens": 30},
    ]
    assert workers(deployment, entries) == {"a": 0, "b": 1, "c": 0}
