"""The figures of a run: percentiles, throughput, utilisation, and how it went over time."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request
from inference_lab.core.engine.statistics import Slice, Statistics, Summary, Timeline, distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.engine.deployment_spec import Deployment

    Build = Callable[[dict[str, Any]], Deployment]

LLAMA = {"config": "llama-3.1-8b-instruct", "hardware": "gh200", "tp": 1, "ep": 1, "dp_attention": False}


@given(st.lists(st.sampled_from((0.0, 0.5, 1.0)) | st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_interpolate_between_the_nearest_values(values: list[float]) -> None:
    spread = distribution(Counter(values))
    assert spread is not None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert [spread.p50, spread.p90, spread.p95, spread.p99] == pytest.approx(
        [cuts[49], cuts[89], cuts[94], cuts[98]], rel=1e-9, abs=1e-9
    )
    assert spread.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-9)
    assert spread.max == max(values)


def test_one_value_is_every_percentile_of_itself() -> None:
    spread = distribution({3.0: 1})
    assert spread is not None
    assert {spread.mean, spread.p50, spread.p99, spread.max} == {3.0}


def test_nothing_measured_has_no_distribution() -> None:
    assert distribution({}) is None


def run(deployment: Deployment, arrivals: list[tuple[float, Request]]) -> tuple[Summary, list[Slice]]:
    cluster = Cluster(deployment)
    watching, timeline = Statistics(cluster), Timeline(cluster)
    for replica, step in simulate(cluster, arrivals):
        watching.watch(replica, step)
        timeline.watch(step)
    return watching.summary([request for _, request in arrivals]), timeline.slices(20)


def test_the_summary_of_one_request_follows_from_its_steps(deployment_of: Build) -> None:
    # The first token after 16.5 ms, 23 more within 109.61 ms: the reference's scenario `single`.
    summary, _ = run(deployment_of(LLAMA), [(1.0, Request("a", 1000, 24))])
    assert summary.ttft is not None
    assert summary.itl is not None
    assert summary.latency is not None
    assert summary.ttft.mean == pytest.approx(0.01650368452982811)
    assert summary.latency.max == pytest.approx(0.10961139249782811)
    assert summary.itl.mean == pytest.approx((0.10961139249782811 - 0.01650368452982811) / 23)
    assert (summary.steps, summary.request_steps, summary.batch_mean) == (24, 24, 1.0)
    assert (summary.prompt_tokens, summary.output_tokens) == (1000, 24)
    assert summary.output_tokens_per_s == pytest.approx(24 / summary.end_time)
    assert summary.busy == pytest.approx(0.10961139249782811 / summary.end_time)
    assert summary.kv_max == pytest.approx(64 / 33540)


def test_a_rejected_request_counts_as_nothing_else(deployment_of: Build) -> None:
    deployment = deployment_of(LLAMA | {"scheduler": {"kv_cache_capacity": 2_097_152}})
    summary, slices = run(deployment, [(0.5, Request("a", 1000, 24))])
    assert (summary.requests, summary.completed, summary.rejected) == (1, 0, 1)
    assert summary.ttft is None
    assert summary.output_tokens_per_s == summary.busy == 0
    assert slices == []


def test_no_requests_have_a_summary_of_zeros(deployment_of: Build) -> None:
    summary, slices = run(deployment_of(LLAMA), [])
    assert (summary.requests, summary.steps, summary.end_time) == (0, 0, 0.0)
    assert slices == []


@given(
    st.lists(
        st.tuples(st.sampled_from((0.0, 0.02, 0.7)), st.integers(1, 900), st.integers(1, 30)), min_size=1
    )
)
def test_the_slices_add_up_to_the_run(deployment_of: Build, shapes: list[tuple[float, int, int]]) -> None:
    arrivals = [(at, Request(number, prompt, output)) for number, (at, prompt, output) in enumerate(shapes)]
    summary, slices = run(deployment_of(LLAMA | {"replicas": 2, "scheduler": {"max_num_seqs": 3}}), arrivals)
    width = summary.end_time / len(slices)
    assert sum(part.tokens_per_s for part in slices) * width == pytest.approx(summary.output_tokens)
    assert max(part.running for part in slices) <= 2 * 3 + 1e-9
    assert all(0 <= part.kv_used <= 1 for part in slices)
