"""What a client sends is read in time linear in its bytes, and lists have a bound."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from inference_lab.faults import grammar
from inference_lab.faults.directive import DirectiveError, parse_directive
from inference_lab.faults.grammar import MOST_ELEMENTS
from inference_lab.faults.plan import FaultPlan, plan_from_header, plan_from_prompt, plan_from_table
from tests.growth import assert_linear, calls_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

LISTS = {
    "shares": "ok;times=1,",
    "legs": "stall,",
    "skips": "ok;times=1;skip=2,",
    "tests": 'stall;test="t",',
    "quotes": 'reset;error=openai;message="a,b;c",',
}


@pytest.mark.parametrize("element", LISTS.values(), ids=LISTS)
def test_a_fault_list_is_read_in_linear_time(element: str) -> None:
    def work(count: int) -> Callable[[], object]:
        return lambda: plan_from_prompt("reset," + element * count + "ok")

    assert_linear(work, MOST_ELEMENTS // 5)


def test_a_plan_of_elements_is_built_and_asked_in_linear_time() -> None:
    shared, last = parse_directive("ok;times=1"), parse_directive("reset;after_chunks=2")

    def work(count: int) -> Callable[[], object]:
        return lambda: FaultPlan((*[shared] * count, last)).fault_for(1)

    assert_linear(work, 500)


@pytest.mark.parametrize("read", [plan_from_header, plan_from_prompt])
@pytest.mark.parametrize("element", LISTS.values(), ids=LISTS)
def test_a_longer_list_is_refused_before_its_rest_is_read(
    read: Callable[[str], FaultPlan], element: str
) -> None:
    assert len(read("reset," + element * (MOST_ELEMENTS - 2) + "ok").elements) == MOST_ELEMENTS

    def refuse(count: int) -> None:
        with pytest.raises(DirectiveError, match=f"a list of more than {MOST_ELEMENTS} elements"):
            read("reset," + element * count + "ok")

    at_the_bound, far_beyond = (calls_of(partial(refuse, count)) for count in (MOST_ELEMENTS, 100_000))
    assert far_beyond < at_the_bound + 100


def test_legs_of_a_table_have_the_same_bound() -> None:
    legs = [{"mode": "stall"}] * MOST_ELEMENTS
    assert len(plan_from_table({"legs": legs}).elements) == MOST_ELEMENTS
    with pytest.raises(DirectiveError, match="legs has 1001 tables, expected at most 1000"):
        plan_from_table({"legs": [*legs, {"mode": "stall"}]})


def test_behind_a_quote_that_does_not_close_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, taken = grammar._PIECE, []  # noqa: SLF001 - each further quote would be searched for its end in there

    class Noted:
        """The pieces, noted as they are taken."""

        def finditer(self, text: str) -> Iterator[re.Match[str]]:
            for found in pieces.finditer(text):
                taken.append(found[0])
                yield found

    monkeypatch.setattr(grammar, "_PIECE", Noted())
    with pytest.raises(grammar.GrammarError, match="does not close"):
        grammar.parse('ok;message="' + '\\"' * 1000 + "\\x")
    assert taken == ["ok", ";", "message=", '"']
