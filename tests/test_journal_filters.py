"""What a query for rows may say."""

from __future__ import annotations

import pytest

from inference_lab.journal.filters import EVERYTHING, Filter, Wait, filter_of, wait_of


def test_nothing_asked_is_everything_at_once() -> None:
    assert filter_of({}) == EVERYTHING
    assert wait_of(None, None) is None


def test_each_filter_has_its_name() -> None:
    assert filter_of({"tag": "qu", "since": "1.5"}) == Filter(tag="qu", since=1.5)
    assert wait_of("0", None) == Wait(0, 1)
    assert wait_of("60", "3") == Wait(60, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("since", ""),
        ("since", "nan"),
        ("since", "inf"),
        ("since", "-1"),
        ("since", "٣"),
        ("since", "1_0"),
        ("x", "1"),
    ],
)
def test_a_filter_that_is_none_is_named(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        filter_of({key: value})


@pytest.mark.parametrize(
    ("seconds", "count", "named"),
    [
        ("61", None, "wait"),
        ("-1", None, "wait"),
        ("1e9", None, "wait"),
        ("1", "x", "count"),
        ("1", "-1", "count"),
        (None, "1", "count"),
    ],
)
def test_a_wait_that_is_none_is_named(seconds: str | None, count: str | None, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        wait_of(seconds, count)
