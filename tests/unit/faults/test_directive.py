"""The directive grammar, from a header value and from a TOML table."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.core.faults.death import AXES
from inference_lab.core.faults.directive import (
    DirectiveError,
    fault_from_table,
    parse_directive,
)
from inference_lab.core.faults.modes import MODES
from inference_lab.core.faults.values import U32_MAX, U64_MAX, Code, Flag, Keyword, NumberedWord, Text
from tests.reference_model.contract import MODES as ELEVEN
from tests.support.nonsense import NONSENSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.faults.directive import Fault

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
    "cut_mid_frame;utf8=true": ("cut_mid_frame", {"tear": NumberedWord("utf8")}),
    "cut_mid_frame;utf8=false": ("cut_mid_frame", {"tear": NumberedWord("half")}),
    "cut_mid_frame;tear=byte:7": ("cut_mid_frame", {"tear": NumberedWord("byte", 7)}),
    'ok;error=openai;message="a \\"b\\" \\\\ ,;= >>";code="429"': (
        "ok",
        {"error": "openai", "message": 'a "b" \\ ,;= >>', "code": "429", "done": "false"},
    ),
    "ok;error=openai;code=null": ("ok", {"error": "openai", "code": Keyword("null"), "done": "false"}),
    "ok;error=vllm;code=absent;done=false": (
        "ok",
        {"error": "vllm", "code": Keyword("absent"), "done": "false"},
    ),
    "ok;error=vllm": ("ok", {"error": "vllm", "done": "true"}),
    "ok;finish=none": ("ok", {"finish": Keyword("none")}),
    'ok;finish="none"': ("ok", {"finish": "none"}),
    "ok;length=-7;close=fin": ("ok", {"length": -7, "close": "fin"}),
    "reset;close=rst;usage=asked;tear=none;then=end": ("reset", {}),
}

LISTED = "inference-lab faults and GET /lab/faults list all modes, keys and values"

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
    "ok;tear=byte:0": "tear is 'byte:0'",
    "ok;sequence=swap:1": "sequence is 'swap:1'",
    "ok\nx": "a line feed, carriage return or NUL",
    "ok;tokens_per_frame=1001": "tokens_per_frame is 1001",
    "ok;sequence=dup:1001": "sequence is 'dup:1001'",
    "ok;error=openai;code=18446744073709551616": "code is 18446744073709551616",
    "ok;error=openai;code=" + "9" * 30: "code is '999",
    "ok;finish=empty_each": "finish is 'empty_each', which is empty_finish=true now",
    'ok;content_type="text/é"': "content_type is 'text/é'",
    'ok;content_type=""': "content_type is ''",
    'ok;status=503;retry_after="soon "': "retry_after is 'soon '",
    "ok;status=503;retry_after=soon": "retry_after is 'soon'",
}

# Words of axes that take nothing but their own, beside numbers: quotes change nothing about them.
QUOTED = [
    "reset;close=fin",
    "ok;after_chunks=all",
    "ok;tokens_per_frame=varied",
    "ok;length=both",
    "ok;retry=alone",
    "reset;tear=half",
    "cut_mid_frame;tear=byte:7",
    "reset;sequence=dup:2",
    "ok;done=twice",
    "cut_mid_frame;utf8=true",
    "ok;id=true",
    "ok;heartbeat=ping;ttft_ms=5000;beats=unlimited",
    "ok;dialect=vllm",
]
# Words that as text mean something else.
TEXTS = {
    'ok;finish="none"': {"finish": "none"},
    'ok;finish="stop"': {"finish": "stop"},
    'ok;error=openai;code="null"': {"error": "openai", "code": "null", "done": "false"},
    'ok;error=openai;code="429"': {"error": "openai", "code": "429", "done": "false"},
    'ok;status=503;retry_after="7"': {"status": 503, "retry_after": "7"},
}


# A key whose value is what it is without does not count, and a row's own break says nothing where it is not reached.
NEVER_REFUSED = [
    "cut_mid_frame;done=false;finish=none;close=fin",
    "overloaded_429;after_chunks=all;tear=none;delay_ms=5;done=true",
    "stall;at=request",
    "stall;at=request;after_chunks=3",
    "stall;at=head",
    "reset;at=role",
    "no_done;at=head",
    "reset;status=503",
    "cut_between_frames;answer_as=html",
    "mid_reasoning;after_chunks=0",
    "cut_mid_frame;usage=null_every_chunk",
    "ok;sequence=dup:2",
    "ok;at=request;close=tls_raw",
    "ok;frame_bytes=16777216",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_well_formed_directive_is_read(text: str) -> None:
    mode, changes = ACCEPTED[text]
    fault = parse_directive(text)
    assert fault.mode == mode
    assert fault.death == msgspec.structs.replace(MODES[mode].death, **changes)


@pytest.mark.parametrize("text", REFUSED)
def test_a_malformed_directive_is_refused_with_what_is_wrong_and_the_modes_that_help(text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        parse_directive(text)
    message = str(refused.value)
    assert REFUSED[text] in message
    if "unknown mode" in message:
        assert message.endswith("; valid modes: " + ", ".join(MODES))
    else:
        assert message.endswith(f"; basic modes: {', '.join(ELEVEN)}; {LISTED}")
    assert message.count("modes: ") == 1
    assert len(message) < 1500


@pytest.mark.parametrize("text", QUOTED)
def test_quotes_change_nothing_about_a_word_of_an_axis_that_takes_no_text(text: str) -> None:
    quoted = re.sub(r"=([a-z]\w*(?::\d+)?)", r'="\1"', text)
    assert quoted != text
    assert parse_directive(quoted) == parse_directive(text)


@pytest.mark.parametrize("text", TEXTS)
def test_quotes_mean_the_text_where_an_axis_takes_text_too(text: str) -> None:
    assert parse_directive(text).death == msgspec.structs.replace(MODES["ok"].death, **TEXTS[text])


def outcome(text: str) -> object:
    """What becomes of a directive: its fault, or the reason why there is none."""
    try:
        return parse_directive(text)
    except DirectiveError as error:
        return error.reason


@pytest.mark.parametrize(
    "key", [key for key, axis in AXES.items() if not isinstance(axis.kind, (Text, Code))]
)
def test_every_word_of_an_axis_means_the_same_in_quotes(key: str) -> None:
    kind = AXES[key].kind
    for word in getattr(kind, "words", ("true", "false") if isinstance(kind, Flag) else ()):
        assert outcome(f'ok;after_chunks=3;{key}="{word}"') == outcome(f"ok;after_chunks=3;{key}={word}")


@pytest.mark.parametrize("text", NONSENSE)
def test_settings_that_make_no_sense_together_are_refused_with_the_reason_alone(text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        parse_directive(text)
    mode = text.partition(";")[0]
    message = str(refused.value)
    assert message.startswith(f"{mode}: {NONSENSE[text]}")
    assert "modes: " not in message


@pytest.mark.parametrize("text", NEVER_REFUSED)
def test_what_changes_nothing_about_the_mode_is_never_refused(text: str) -> None:
    assert parse_directive(text)


def test_equal_faults_have_one_canonical_text_and_different_ones_two() -> None:
    spellings = [
        ("reset;close=rst;after_chunks=03", "reset;after_chunks=3;delay_ms=10;utf8=false"),
        ("ok;error=vllm", "ok;after_chunks=all;delay_ms=10;utf8=false;error=vllm"),
        ("ok;error=string", "ok;after_chunks=all;delay_ms=10;utf8=false;done=false;error=string"),
        ("ok;done=false;error=string", "ok;after_chunks=all;delay_ms=10;utf8=false;done=false;error=string"),
        ("ok;at=role", "ok;after_chunks=all;delay_ms=10;utf8=false;at=role;done=false"),
        ("ok;at=role;done=true", "ok;after_chunks=all;delay_ms=10;utf8=false;at=role"),
        ("first_frame_error", "first_frame_error;after_chunks=all;delay_ms=10;utf8=false"),
        ("ok;finish=none", "ok;after_chunks=all;delay_ms=10;utf8=false;finish=none"),
        (
            'ok;finish="empty_each";empty_finish=true',
            'ok;after_chunks=all;delay_ms=10;utf8=false;empty_finish=true;finish="empty_each"',
        ),
        ('ok;finish="none"', 'ok;after_chunks=all;delay_ms=10;utf8=false;finish="none"'),
        ('ok;name="a;b é"', 'ok;after_chunks=all;delay_ms=10;utf8=false;name="a;b \\u00e9"'),
        ("ok;tear=half", "ok;after_chunks=all;delay_ms=10;utf8=false;tear=half"),
        ("cut_mid_frame;tear=utf8", "cut_mid_frame;after_chunks=3;delay_ms=10;utf8=true"),
        ("ok;length=+7", "ok;after_chunks=all;delay_ms=10;utf8=false;length=+7"),
        ("stall;at=request;after_chunks=3", "stall;after_chunks=all;delay_ms=10;utf8=false;at=request"),
    ]
    for text, canonical in spellings:
        assert parse_directive(text).canonical() == canonical


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


def test_a_table_says_true_as_toml_does() -> None:
    for value in (True, "true"):
        assert fault_from_table({"mode": "no_done", "done": value}).death.done == "true"
    assert fault_from_table({"mode": "ok", "done": False}) == parse_directive("ok;done=false")


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
    ({"mode": "ok", "error": "plain", "message": "a\nb"}, "message is 'a\\nb'"),
    ({"mode": "ok", "content_type": "text/x\r\nx-evil: 1"}, "content_type is 'text/x"),
    ({"mode": "ok", "status": 503, "retry_after": "1\r\n\r\nHTTP/1.1 200"}, "retry_after is '1"),
    ({"mode": "ok", "error": "openai", "code": 2**64}, "code is 18446744073709551616"),
    ({"mode": "ok", "error": "openai", "code": -1}, "code is -1"),
    ({"mode": "ok", "error": "openai", "code": [1]}, "code is [1]"),
    ({"mode": "ok", "length": "+20"}, "length is '+20', expected a number +n or -n"),
]


@pytest.mark.parametrize(("table", "reason"), TABLES_REFUSED)
def test_a_malformed_fault_table_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DirectiveError, match="modes: ") as refused:
        fault_from_table(table)
    assert reason in str(refused.value)
    assert refused.value.in_table("fault").startswith(f"fault: {reason}")


@pytest.mark.parametrize("key", sorted(AXES))
def test_whatever_a_table_holds_at_a_key_is_read_or_refused(key: str) -> None:
    for value in (True, False, -1, 2**70, 1.5, "", "nonsense", [], ["x"], {}, {"x": 1}, date(2026, 1, 1)):
        with suppress(DirectiveError):
            fault_from_table({"mode": "ok", key: value})


@pytest.mark.parametrize("key", [key for key, axis in AXES.items() if "true" in axis.kind.expected])
@pytest.mark.parametrize("value", [False, True])
def test_true_and_false_have_a_table_s_own_type(key: str, *, value: bool) -> None:
    def settled(read: Callable[[], Fault]) -> str:
        try:
            return read().canonical()
        except DirectiveError as error:
            return str(error)

    written = settled(lambda: parse_directive(f"ok;after_chunks=3;{key}={str(value).lower()}"))
    assert settled(lambda: fault_from_table({"mode": "ok", "after_chunks": 3, key: value})) == written
