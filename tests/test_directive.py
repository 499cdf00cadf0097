"""The directive grammar, from a header value and from a TOML table."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.faults.directive import (
    DirectiveError,
    fault_from_table,
    parse_directive,
)
from inference_lab.faults.modes import MODES
from inference_lab.faults.values import U32_MAX, U64_MAX, Bare, Sub

ELEVEN = [
    "cut_between_frames",
    "cut_mid_frame",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
]

ACCEPTED = {
    "reset": ("reset", {}),
    " \tstall\t ": ("stall", {}),
    "reset;after_chunks=0": ("reset", {"after_chunks": 0}),
    "reset ; after_chunks = 007 ;\tdelay_ms\t=0": ("reset", {"after_chunks": 7, "delay_ms": 0}),
    "reset;after_chunks=4294967295;delay_ms=18446744073709551615": (
        "reset",
        {"after_chunks": U32_MAX, "delay_ms": U64_MAX},
    ),
    "reset;delay_ms=" + "0" * 5000 + "1": ("reset", {"delay_ms": 1}),
    "cut_mid_frame;utf8=true": ("cut_mid_frame", {"tear": Sub("utf8")}),
    "cut_mid_frame;utf8=false": ("cut_mid_frame", {"tear": Sub("half")}),
    "cut_mid_frame;tear=byte:7": ("cut_mid_frame", {"tear": Sub("byte", 7)}),
    'ok;error=openai;message="a \\"b\\" \\\\ ,;= >>";code="429"': (
        "ok",
        {"error": "openai", "message": 'a "b" \\ ,;= >>', "code": "429", "done": "false"},
    ),
    "ok;error=openai;code=null": ("ok", {"error": "openai", "code": Bare("null"), "done": "false"}),
    "ok;error=vllm;code=absent;done=false": (
        "ok",
        {"error": "vllm", "code": Bare("absent"), "done": "false"},
    ),
    "ok;error=vllm": ("ok", {"error": "vllm", "done": "true"}),
    "ok;finish=none": ("ok", {"finish": Bare("none")}),
    'ok;finish="none"': ("ok", {"finish": "none"}),
    "ok;length=-7;close=fin": ("ok", {"length": -7, "close": "fin"}),
    "reset;close=rst;usage=asked;tear=none;then=end": ("reset", {}),
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
    "reset;after_chunks": "'after_chunks' has no value",
    "reset;after_chunks=": "after_chunks is ''",
    "reset;after_chunks=+1": "after_chunks is '+1'",
    "reset;after_chunks=-1": "after_chunks is '-1'",
    "reset;after_chunks=1_0": "after_chunks is '1_0'",
    "reset;after_chunks=1 0": "after_chunks is '1 0'",
    "reset;after_chunks=１": "after_chunks is '１'",  # noqa: RUF001 - the full-width digit is the point
    "reset;after_chunks=1.0": "after_chunks is '1.0'",
    'reset;after_chunks="1"': "after_chunks is '1'",
    "reset;after_chunks=4294967296": "after_chunks is 4294967296",
    "reset;delay_ms=18446744073709551616": "delay_ms is 18446744073709551616",
    "reset;delay_ms=" + "9" * 5000: "delay_ms is",
    "reset;delay_ms=1;delay_ms=1": "delay_ms is given twice",
    "reset;utf8=true": "utf8 goes with cut_mid_frame only",
    "reset;utf8=false": "utf8 goes with cut_mid_frame only",
    "cut_mid_frame;utf8=true;tear=half": "utf8 and tear are two names of one thing",
    "cut_mid_frame;utf8=True": "utf8 is 'True'",
    "cut_mid_frame;utf8=1": "utf8 is '1'",
    "reset\u00a0": "unknown mode",
    "reset, stall": "a list",
    'ok;message="open': "a quoted string that does not close",
    'ok;message="a" b': "expected one bare word or one quoted string",
    "ok;message=a b": "a value with blanks goes in quotes",
    "ok;message=x": "message goes with an error whose message can be set",
    "ok;error=string;code=5": "code goes with an error whose code can be set",
    "reset;pause_ms=5": "pause_ms needs then=rest",
    "ok;tear=byte:0": "tear is 'byte:0'",
    "ok;sequence=swap:1": "sequence is 'swap:1'",
    "ok;status=429;finish=stop": "finish goes with a stream",
    "ok\nx": "a line feed, carriage return or NUL",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_well_formed_directive_is_read(text: str) -> None:
    mode, changes = ACCEPTED[text]
    fault = parse_directive(text)
    assert fault.mode == mode
    assert fault.death == msgspec.structs.replace(MODES[mode].death, **changes)


@pytest.mark.parametrize("text", REFUSED)
def test_a_malformed_directive_is_refused_with_what_is_wrong_and_the_valid_modes(text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        parse_directive(text)
    message = str(refused.value)
    assert REFUSED[text] in message
    assert message.endswith("valid modes: " + ", ".join(MODES))
    assert message.count("valid modes") == 1
    assert len(message) < 1500


@given(st.text() | st.from_regex(r"[a-z_]{0,14}(;[a-z_0-9= ]{0,20}){0,4}"))
@example("cut_mid_frame;utf8=\x00")
def test_no_text_raises_anything_but_a_one_line_refusal(text: str) -> None:
    try:
        fault = parse_directive(text)
    except DirectiveError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert fault.canonical()
    assert "\n" not in refusal


@given(st.sampled_from(ELEVEN), st.integers(0, U32_MAX), st.integers(0, U64_MAX))
def test_every_value_in_range_is_read_back(mode: str, after_chunks: int, delay_ms: int) -> None:
    fault = parse_directive(f"{mode};after_chunks={after_chunks};delay_ms={delay_ms}")
    assert (fault.death.after_chunks, fault.death.delay_ms) == (after_chunks, delay_ms)
    assert fault == fault_from_table({"mode": mode, "after_chunks": after_chunks, "delay_ms": delay_ms})
    assert fault.canonical() == f"{mode};after_chunks={after_chunks};delay_ms={delay_ms};utf8=false"


TABLES_REFUSED = [
    ({}, "mode is missing"),
    ({"mode": 1}, "mode is 1, expected a string"),
    ({"mode": "reset", "after_chunks": True}, "after_chunks is true"),
    ({"mode": "reset", "after_chunks": 1.0}, "after_chunks is 1.0"),
    ({"mode": "reset", "after_chunks": "1"}, "after_chunks is '1'"),
    ({"mode": "reset", "delay_ms": -1}, "delay_ms is -1"),
    ({"mode": "reset", "utf8": False}, "utf8 goes with cut_mid_frame only"),
    ({"mode": "cut_mid_frame", "utf8": "true"}, "utf8 is 'true'"),
    ({"mode": "reset", "pause": 1}, "unknown key 'pause'"),
    ({"mode": "nothing"}, "unknown mode 'nothing'"),
]


@pytest.mark.parametrize(("table", "reason"), TABLES_REFUSED)
def test_a_malformed_fault_table_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DirectiveError, match="valid modes") as refused:
        fault_from_table(table)
    assert reason in str(refused.value)
