"""What a query for rows may say."""

from __future__ import annotations

import pytest

from inference_lab.core.faults.death import AXES
from inference_lab.core.journal.filters import (
    EVERYTHING,
    Cursor,
    Filter,
    Part,
    Wait,
    filter_of,
    part_of,
    wait_of,
)


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
        *(("since", value) for value in ("", "nan", "inf", "-1", "٣", "1_0")),
        *(("prompt", value) for value in ("", "f0b8", "F0B8B4529F00F26D")),
        *(("tag", value) for value in ("d", "DX", "dx0")),
        *(("test", value) for value in ("", "a/b", "a" * 65)),
        *(("trigger", value) for value in ("headers", "")),
        *(("ending", value) for value in ("reset", "rst ", "")),
        ("x", "1"),
    ],
)
def test_a_filter_that_is_none_is_named(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        filter_of({key: value})


@pytest.mark.parametrize("ending", [*AXES["close"].kind.expected.split(", "), "client_left", "server_lost"])
def test_what_a_row_may_end_as_can_be_asked_for(ending: str) -> None:
    assert filter_of({"ending": ending}) == Filter(ending=ending)


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


@pytest.mark.parametrize(
    "place", [Cursor(1764559802.123456, 17), Cursor(0.0, 1), Cursor(1e-05, 2), Cursor(2e22, 3)]
)
def test_a_place_is_read_as_it_is_told(place: Cursor) -> None:
    assert part_of("3", str(place)) == Part(3, place)
    assert part_of(None, None) == Part()


@pytest.mark.parametrize(
    ("limit", "after", "said"),
    [
        ("0", None, "limit: is '0', expected a whole number from 1 to 1000000"),
        ("1000001", None, "limit: is '1000001', expected a whole number from 1 to 1000000"),
        ("1.5", None, "limit: is '1.5', expected a whole number"),
        ("", None, "limit: is '', expected"),
        (None, "", "after: is '', expected what an answer has as its next"),
        (None, "17", "after: is '17', expected what"),
        (None, "nan-17", "after: is 'nan-17', expected what"),
        (None, "1.5-٣", "after: is '1.5-٣', expected what"),
        (None, "1" * 400 + "-1", "after: is '1111"),
    ],
)
def test_a_part_that_is_none_is_named(limit: str | None, after: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        part_of(limit, after)
