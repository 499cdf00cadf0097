"""Plans: which fault meets which leg, from a header, a prompt and a model's TOML."""

from __future__ import annotations

import pytest

from inference_lab.core.faults.directive import DirectiveError, parse_directive
from inference_lab.core.faults.plan import FaultPlan, plan_from_header, plan_from_prompt, plan_from_table

CUT = parse_directive("cut_between_frames;after_chunks=5")
STALL = parse_directive("stall")
OK = parse_directive("ok")
STALL_3 = parse_directive("stall;after_chunks=3")
STALL_1 = parse_directive("stall;after_chunks=1")


def test_one_element_in_a_header_meets_the_request_that_carries_it_whatever_has_been_passed_on() -> None:
    plan = plan_from_header("stall")
    assert [plan.fault_for(progress) for progress in (0, 1, 3, 1000)] == [STALL] * 4


def test_one_element_in_a_prompt_is_the_fate_of_the_first_leg_only() -> None:
    plan = plan_from_prompt("stall")
    assert [plan.fault_for(progress) for progress in (0, 1, 3, 1000)] == [STALL, None, None, None]


@pytest.mark.parametrize("read", [plan_from_header, plan_from_prompt])
@pytest.mark.parametrize("tail", ["", ", ok"])
def test_each_element_of_a_list_is_the_fate_of_its_leg_and_behind_the_last_all_are_healthy(
    read: type[FaultPlan], tail: str
) -> None:
    plan = read(f"cut_between_frames;after_chunks=5 ,\tstall;after_chunks=3{tail}")
    legs = {0: CUT, 1: STALL_3, 5: STALL_3, 7: STALL_3, 8: None, 300: None}
    assert {progress: plan.fault_for(progress) for progress in legs} == legs


def test_the_announcement_of_a_call_is_no_word() -> None:
    plan = plan_from_header("mid_tool_call;after_chunks=4, stall;after_chunks=1")
    assert plan.fault_for(2) == STALL_1
    assert plan.fault_for(3) == STALL_1
    assert plan.fault_for(4) is None


def test_ok_alone_is_the_engine() -> None:
    assert plan_from_header("ok").fault_for(0) is None
    assert plan_from_header("ok") == FaultPlan((OK,), every_leg=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("reset,", "the fault has no mode"),
        ("reset,,stall", "the fault has no mode"),
        ("reset, explode", "unknown mode 'explode'"),
        ("ok, reset", "element 0 of the list never ends"),
        ("reset;after_chunks=0, stall", "element 0 of the list adds no word"),
        ("mid_tool_call;after_chunks=1, stall", "element 0 of the list adds no word"),
        ("ok;after_chunks=all, stall", "element 0 of the list never ends"),
        ("reset;sequence=dup:1, stall", "element 0 of the list has a sequence"),
        ("overloaded_429, stall", "element 0 of the list adds no word"),
    ],
)
def test_a_list_whose_legs_cannot_be_told_apart_or_read_is_refused(text: str, reason: str) -> None:
    for read in (plan_from_header, plan_from_prompt):
        with pytest.raises(DirectiveError) as refused:
            read(text)
        assert str(refused.value).startswith(reason)


def test_a_table_with_a_mode_meets_every_request_and_legs_each_leg() -> None:
    assert plan_from_table({"mode": "stall"}) == FaultPlan((STALL,), every_leg=True)
    legs = [{"mode": "cut_between_frames", "after_chunks": 5}, {"mode": "stall"}, {"mode": "ok"}]
    assert plan_from_table({"legs": legs}) == FaultPlan((CUT, STALL, OK))
    assert plan_from_table({"legs": legs[:1]}).fault_for(1) is None


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"legs": []}, "legs is not a list of at least one table"),
        ({"legs": "stall"}, "legs is not a list of at least one table"),
        ({"legs": ["stall"]}, "legs[0] is not a table"),
        ({"legs": [{"mode": "stall"}], "mode": "reset"}, "legs goes without other keys"),
        ({"legs": [{"mode": "stall"}], "delay_ms": 1}, "legs goes without other keys"),
        ({"legs": [{"after_chunks": 1}]}, "mode is missing"),
        ({"legs": [{"mode": "ok"}, {"mode": "stall"}]}, "element 0 of the list never ends"),
    ],
)
def test_a_table_that_cannot_be_honoured_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        plan_from_table(table)
    assert str(refused.value).startswith(reason)
