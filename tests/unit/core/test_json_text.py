"""The JSON scanner: where a value ends, and inside what it breaks off."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.json_text import Ends, Scan, compact, is_whole, quoted, scan, spaced

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": "b"}>>', Scan(Ends.WHOLE, 10)),
        ("  [1, [2]] ]", Scan(Ends.WHOLE, 10)),
        ('"a\\"b" x', Scan(Ends.WHOLE, 6)),
        ("-1.5e3}", Scan(Ends.WHOLE, 6)),
        ("", Scan(Ends.OPEN, 0)),
        ('{"a": ', Scan(Ends.OPEN, 5)),
        ('{"a": "b", ', Scan(Ends.OPEN, 10)),
        ('{"a', Scan(Ends.IN_KEY, 3, 2)),
        ('{"a": "b", "c', Scan(Ends.IN_KEY, 13, 12)),
        ('{"a": "b', Scan(Ends.IN_VALUE, 8, 7)),
        ('{"a": ["x", "b', Scan(Ends.IN_VALUE, 14, 13)),
        ('["', Scan(Ends.IN_VALUE, 2, 2)),
        ('"\\', Scan(Ends.IN_VALUE, 2, 1)),
        ("<", Scan(Ends.BROKEN, 0)),
        ("[<", Scan(Ends.BROKEN, 1)),
        ("[}", Scan(Ends.BROKEN, 2)),
        ("]", Scan(Ends.BROKEN, 1)),
        (",", Scan(Ends.BROKEN, 1)),
        ("[" * 501, Scan(Ends.BROKEN, 501)),
    ],
)
def test_a_scan_tells_where_and_how_it_ended(text: str, found: Scan) -> None:
    assert scan(text) == found


@given(JSON, st.text(alphabet="}]>, "))
def test_a_container_ends_where_its_text_ends(value: object, behind: str) -> None:
    for written in (compact([value]), spaced({"a": value})):
        assert scan(written + behind) == Scan(Ends.WHOLE, len(written))
        assert is_whole(f" {written}\n")
        assert not is_whole(written[:-1])


@given(st.text())
def test_a_quoted_text_is_the_inside_of_a_json_string(text: str) -> None:
    assert json.loads(f'"{quoted(text)}"') == text


def test_json_nested_past_the_interpreter_is_a_value_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deeply"):
        compact(deep)
    while deep:
        deep = deep.pop()  # type: ignore[assignment]  # unwound by hand: the destructor would recurse
