"""Durations counted by their number of bits, and shown as Prometheus shows them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from inference_lab.metrics import BUCKETS_S, show
from inference_lab.wire.counters import Log2Histogram


@given(st.lists(st.one_of(st.integers(0, 10**6), st.integers(0, 10**12)), max_size=60), st.integers(0, 60))
def test_a_spread_shows_as_the_histogram_that_each_duration_would_have_been_given_to(
    durations_us: list[int], first: int
) -> None:
    registry = CollectorRegistry()
    shown = Histogram("shown", "", buckets=BUCKETS_S, registry=registry)
    spread, seen = Log2Histogram(), {}
    for part in (durations_us[:first], durations_us[first:]):
        for us in part:
            spread.add(us)
        show(shown, spread, seen, "key")
    # A duration of exactly a bucket's bound is counted in the next one: the wire counts what is below it.
    for bound_s in BUCKETS_S:
        under = sum(us < bound_s * 1e6 for us in durations_us)
        assert registry.get_sample_value("shown_bucket", {"le": repr(bound_s)}) == under
    assert registry.get_sample_value("shown_count") == len(durations_us)
    total = registry.get_sample_value("shown_sum")
    assert total is not None
    assert abs(total - sum(durations_us) / 1e6) < 1e-6 * max(1, len(durations_us))
