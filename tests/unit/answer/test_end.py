"""How an answer ended, as a table, and as a sum that does not ask how its frames were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.end import NORMAL_FINISHES, SILENCE, End, Spoken, end_of

CALL = {"calls_begun": 1, "calls_closed": 1}
ENDS = (
    (Spoken("stop", text=True), End.WHOLE),
    (Spoken("length", text=True), End.WHOLE),
    (Spoken("length"), End.WHOLE),
    (Spoken("length", reasoning=True), End.WHOLE),
    (Spoken("length", calls_begun=1), End.WHOLE),
    (Spoken("tool_calls", **CALL), End.WHOLE),
    (Spoken("stop", **CALL), End.WHOLE),
    (Spoken("tool_calls", text=True, calls_begun=2, calls_closed=2), End.WHOLE),
    (Spoken("stop", reasoning=True, text=True), End.WHOLE),
    (Spoken("stop", error=True, text=True), End.ERROR),
    (Spoken(error=True), End.ERROR),
    (Spoken("abort", text=True), End.UNUSUAL_FINISH),
    (Spoken("abort"), End.UNUSUAL_FINISH),
    (Spoken(text=True), End.CUT),
    (SILENCE, End.CUT),
    (Spoken("stop"), End.EMPTY),
    (Spoken("tool_calls"), End.EMPTY),
    (Spoken("stop", reasoning=True), End.REASONING_ONLY),
    (Spoken("stop", calls_begun=1), End.OPEN_CALL),
    (Spoken("tool_calls", text=True, calls_begun=2, calls_closed=1), End.OPEN_CALL),
    (Spoken("tool_calls", text=True), End.PHANTOM_CALL),
    (Spoken("tool_calls", reasoning=True), End.PHANTOM_CALL),
    (Spoken("tool_calls", **CALL, calls_empty=1), End.PHANTOM_CALL),
    (Spoken("stop", text=True, **CALL, calls_empty=1), End.PHANTOM_CALL),
)


@pytest.mark.parametrize(("spoken", "end"), ENDS)
def test_an_answer_ends_as_its_frames_say(spoken: Spoken, end: End) -> None:
    assert end_of(spoken) is end


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_a_leg_with_words_before_it_may_be_empty(finish: str) -> None:
    assert end_of(Spoken(finish), may_be_empty=True) is End.WHOLE
    assert end_of(Spoken(finish, calls_begun=1), may_be_empty=True) is End.OPEN_CALL
    assert end_of(Spoken("stop", reasoning=True), may_be_empty=True) is End.REASONING_ONLY


spoken = st.builds(
    Spoken,
    finish=st.sampled_from([None, "abort", *sorted(NORMAL_FINISHES)]),
    error=st.booleans(),
    text=st.booleans(),
    reasoning=st.booleans(),
    calls_begun=st.integers(0, 2),
    calls_closed=st.integers(0, 2),
)


@given(st.lists(spoken, max_size=5), st.integers(0, 5))
def test_what_frames_said_adds_up_wherever_they_are_cut(frames: list[Spoken], cut: int) -> None:
    parts = sum(frames[:cut], SILENCE), sum(frames[cut:], SILENCE)
    assert parts[0] + parts[1] == sum(frames, SILENCE)
    first = next((one.finish for one in frames if one.finish is not None), None)
    assert sum(frames, SILENCE).finish == first
