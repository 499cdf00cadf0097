"""The directive grammar, from a header value and from a TOML table."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.faults.directive import (
    U32_MAX,
    U64_MAX,
    DirectiveError,
    Fault,
    fault_from_table,
    parse_directive,
)
from inference_lab.faults.modes import MODES, Tear

ACCEPTED = {
    "reset": Fault("reset"),
    " \tstall\t ": Fault("stall"),
    "reset;after_chunks=0": Fault("reset", after_chunks=0),
    "reset ; after_chunks = 007 ;\tdelay_ms\t=0": Fault("reset", after_chunks=7, delay_ms=0),
    "reset;after_chunks=4294967295;delay_ms=18446744073709551615": Fault("reset", U32_MAX, U64_MAX),
    "reset;delay_ms=" + "0" * 5000 + "1": Fault("reset", delay_ms=1),
    "cut_mid_frame;utf8=true": Fault("cut_mid_frame", utf8=True),
    "cut_mid_frame;utf8=false": Fault("cut_mid_frame", utf8=False),
}

REFUSED = {
    "": "no mode",
    ";": "no mode",
    ";after_chunks=1": "no mode",
    "reset;": "empty part",
    "reset;;delay_ms=1": "empty part",
    "Reset": "unknown mode 'Reset'",
    "re set": "unknown mode 're set'",
    "reset;after=1": "unknown key 'after'",
    "reset;AFTER_CHUNKS=1": "unknown key 'AFTER_CHUNKS'",
    "reset;after_chunks": "after_chunks has no value",
    "reset;after_chunks=": "after_chunks is ''",
    "reset;after_chunks=+1": "after_chunks is '+1'",
    "reset;after_chunks=-1": "after_chunks is '-1'",
    "reset;after_chunks=1_0": "after_chunks is '1_0'",
    "reset;after_chunks=1 0": "after_chunks is '1 0'",
    "reset;after_chunks=１": "after_chunks is '１'",  # noqa: RUF001 - the full-width digit is the point
    "reset;after_chunks=1.0": "after_chunks is '1.0'",
    "reset;after_chunks=4294967296": "after_chunks is 4294967296",
    "reset;delay_ms=18446744073709551616": "delay_ms is 18446744073709551616",
    "reset;delay_ms=" + "9" * 5000: "delay_ms is",
    "reset;delay_ms=1;delay_ms=1": "delay_ms is given twice",
    "reset;utf8=true": "utf8 goes with cut_mid_frame only",
    "reset;utf8=false": "utf8 goes with cut_mid_frame only",
    "cut_mid_frame;utf8=True": "utf8 is 'True'",
    "cut_mid_frame;utf8=1": "utf8 is '1'",
    "reset\u00a0": "unknown mode",
    "reset, stall": "unknown mode 'reset, stall'",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_well_formed_directive_is_read(text: str) -> None:
    assert parse_directive(text) == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_a_malformed_directive_is_refused_with_what_is_wrong_and_the_valid_modes(text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        parse_directive(text)
    message = str(refused.value)
    assert REFUSED[text] in message
    assert message.endswith("valid modes: " + ", ".join(MODES))
    assert message.count("valid modes") == 1
    assert len(message) < 400


@given(st.text() | st.from_regex(r"[a-z_]{0,14}(;[a-z_0-9= ]{0,20}){0,4}"))
@example("cut_mid_frame;utf8=\x00")
@example("cut_mid_frame")
def test_no_text_raises_anything_but_a_one_line_refusal(text: str) -> None:
    try:
        fault = parse_directive(text)
    except DirectiveError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert parse_directive(fault_text(fault)).canonical() == fault.canonical()
    assert "\n" not in refusal


def fault_text(fault: Fault) -> str:
    return (
        fault.canonical() if MODES[fault.mode].tear is not Tear.NONE else fault.canonical().rpartition(";")[0]
    )


@given(st.sampled_from(sorted(MODES)), st.integers(0, U32_MAX), st.integers(0, U64_MAX))
def test_every_value_in_range_is_read_back(mode: str, after_chunks: int, delay_ms: int) -> None:
    text = f"{mode};after_chunks={after_chunks};delay_ms={delay_ms}"
    assert parse_directive(text) == Fault(mode, after_chunks, delay_ms)
    table = {"mode": mode, "after_chunks": after_chunks, "delay_ms": delay_ms}
    assert fault_from_table(table) == Fault(mode, after_chunks, delay_ms)


TABLES_REFUSED = [
    ({}, "mode is missing"),
    ({"mode": 1}, "Expected `str`, got `int` - at `$.mode`"),
    ({"mode": "reset", "after_chunks": True}, "got `bool` - at `$.after_chunks`"),
    ({"mode": "reset", "after_chunks": 1.0}, "got `float` - at `$.after_chunks`"),
    ({"mode": "reset", "after_chunks": "1"}, "got `str` - at `$.after_chunks`"),
    ({"mode": "reset", "delay_ms": -1}, "delay_ms is -1"),
    ({"mode": "reset", "utf8": False}, "utf8 goes with cut_mid_frame only"),
    ({"mode": "cut_mid_frame", "utf8": "true"}, "got `str` - at `$.utf8`"),
    ({"mode": "reset", "pause": 1}, "unknown key 'pause'"),
    ({"mode": "nothing"}, "unknown mode 'nothing'"),
]


@pytest.mark.parametrize(("table", "reason"), TABLES_REFUSED)
def test_a_malformed_fault_table_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DirectiveError, match="valid modes") as refused:
        fault_from_table(table)
    assert reason in str(refused.value)
