"""Each value of each axis, and each preset, on real sockets: the exact bytes behind the head, and the ending."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.faults.death import AXES, LEG_KEYS
from inference_lab.core.faults.modes import MODES
from inference_lab.core.faults.values import Choice, Flag, NumberedChoice
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.reference_model.contract import MODES as ELEVEN
from tests.reference_model.frames import settings_of
from tests.reference_model.tables import ERRORS, PRESETS
from tests.support.axes_meeting import meet
from tests.support.axes_scripts import served
from tests.support.axes_values import PAIRED, changes_of, directive_of, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import Server

HIT = "ok;after_chunks=3;delay_ms=0"
"""A healthy stream of three words, to change something about."""

BEGIN_AS_STREAMS = (
    "ok;answer_as=json;content_type=text/event-stream;ttft_ms=35;heartbeat=ping;heartbeat_ms=10",
    "ok;answer_as=json_error;heartbeat=empty_delta;ttft_ms=25;heartbeat_ms=10;close=rst",
    "stall;answer_as=json;heartbeat=event;heartbeat_ms=5",
    "empty_200;content_type=text/event-stream",
)
# One directive or more for each value; a key with a number is met with a few.
DIRECTIVES: dict[str, tuple[str, ...]] = {
    "after_chunks": ("ok;after_chunks=0", "ok;after_chunks=9", "ok;after_chunks=all", "ok;after_chunks=20"),
    "delay_ms": (f"{HIT};name=slower".replace("delay_ms=0", "delay_ms=2"),),
    "content": (
        *tuple(f"{HIT};content={word}" for word in ("text", "reasoning", "tool_call")),
        *tuple(f"ok;after_chunks=6;content={word}" for word in ("tool_call_parallel", "tool_call_complete")),
        "cut_mid_frame;after_chunks=5;content=tool_call_parallel",
    ),
    "reasoning_key": (f"{HIT};content=reasoning;reasoning_key=reasoning",),
    "tokens_per_frame": (
        "ok;tokens_per_frame=4",
        "ok;tokens_per_frame=varied",
        f"{HIT};tokens_per_frame=1000",
    ),
    "frame_bytes": (
        "ok;frame_bytes=400",
        "ok;frame_bytes=1000000;after_chunks=2",
        "ok;frame_bytes=900;close=eof",
    ),
    "tear": (
        "ok;tear=half;close=fin",
        "ok;tear=utf8;after_chunks=7;eol=crlf",
        "ok;tear=byte:11;close=rst;after_chunks=2",
        "cut_mid_frame;id=true;multiline=3",
        "mid_tool_call;tear=utf8",
    ),
    "malformed": (f"{HIT};malformed=true",),
    "sequence": tuple(
        f"ok;after_chunks=4;then=rest;sequence={word}"
        for word in (
            "dup:3",
            "drop:2",
            "swap:3",
            "double_finish",
            "after_finish",
            "after_done",
            "choices_null",
            "choices_empty",
        )
    ),
    "then": (
        "ok;after_chunks=2;then=rest",
        "ok;after_chunks=2;then=rest;content=reasoning;pause_ms=20",
        "ok;after_chunks=1;then=rest;content=reasoning;tokens_per_frame=varied;usage=every_chunk",
    ),
    "pause_ms": ("ok;after_chunks=2;then=rest;pause_ms=40",),
    "rest_delay_ms": ("ok;after_chunks=2;then=rest;delay_ms=0;rest_delay_ms=15", "crawl;rest_delay_ms=0"),
    "error": tuple(f"{HIT};finish=none;error={name}" for name in ERRORS),
    "code": tuple(
        f"{HIT};finish=none;error={name};code={code}"
        for name in ("openai", "vllm", "field", "raw_json")
        for code in ("429", '"429"', "null", "absent", "rate_limit")
    ),
    "message": tuple(
        f'{HIT};finish=none;error={name};message="100 % \U0001f600 é, no"'
        for name in ("openai", "plain", "dynamo_comment")
    ),
    "type": tuple(
        f"{HIT};finish=none;error={name};type=sad" for name, (text, _) in ERRORS.items() if '"type":' in text
    ),
    "finish": tuple(
        f"{HIT};finish={word}"
        for word in (
            "none",
            '"none"',
            '"empty_each"',
            "stop",
            "length",
            "tool_calls",
            "content_filter",
            "abort",
            "error",
            "insufficient_system_resource",
            "cancelled",
        )
    ),
    "empty_finish": (
        f"{HIT};empty_finish=true",
        f"{HIT};empty_finish=true;usage=every_chunk;finish=abort",
        "cut_between_frames;empty_finish=true",
        "cut_mid_frame;empty_finish=true;after_chunks=0",
    ),
    "text_in_finish": (f"{HIT};text_in_finish=true",),
    "usage": (
        *tuple(
            f"{HIT};usage={word}"
            for word in (
                "asked",
                "never",
                "always",
                "every_chunk",
                "null_every_chunk",
                "zero_every_chunk",
                "on_finish",
                "with_choices",
            )
        ),
        "reset;usage=always",
    ),
    "usage_off_by": (f"{HIT};usage_off_by=+2", "ok;usage_off_by=-30;usage=every_chunk"),
    "done": tuple(f"{HIT};done={word}" for word in ("true", "false", "twice")),
    "at": (
        "ok;at=request;close=fin",
        "stall;at=request",
        "reset;at=request",
        "stall;at=head",
        "ok;at=head",
        "ok;at=head;done=true",
        "ok;at=role;done=twice",
        "ok;at=role;error=vllm",
        "cut_between_frames;at=role",
        "ok;at=frames",
    ),
    "ttft_ms": ("ok;ttft_ms=30", "ok;status=503;ttft_ms=30", "reset;at=request;ttft_ms=30"),
    "status": (
        *tuple(
            f"ok;status={status};body={body}"
            for status, body in ((204, "empty"), (304, "empty"), (418, "json"), (599, "html"), (201, "flat"))
        ),
        "stall;status=503",
        "reset;status=503",
        "cut_between_frames;status=503",
    ),
    "retry_after": (
        "ok;status=429;retry_after=7",
        'ok;status=503;retry_after="Wed, 21 Oct 2026 07:28:00 GMT"',
    ),
    "body": tuple(f"ok;status=500;body={word}" for word in ("json", "flat", "html", "empty")),
    "answer_as": (
        *tuple(f"ok;answer_as={word}" for word in ("asked", "sse", "json", "json_error", "html", "empty")),
        "ok;answer_as=json_error;code=7;message=no;type=sad",
        "reset;answer_as=json",
        *BEGIN_AS_STREAMS,
    ),
    "content_type": ("ok;content_type=text/event-stream", 'ok;content_type="text/plain, or so"'),
    "heartbeat": (
        *tuple(
            f"stall;heartbeat={word};heartbeat_ms=10;beats=3"
            for word in ("ping", "bare", "keep_alive", "openrouter", "event", "empty_data", "empty_delta")
        ),
        "ok;heartbeat=none",
    ),
    "heartbeat_ms": ("ok;ttft_ms=35;heartbeat=ping;heartbeat_ms=10",),
    "beats": (
        "ok;after_chunks=2;then=rest;heartbeat=event;heartbeat_ms=5;beats=3;id=true",
        "ok;ttft_ms=60;heartbeat=ping;heartbeat_ms=10;beats=2",
        "stall;heartbeat=ping;heartbeat_ms=5;beats=unlimited",
    ),
    "eol": tuple(f"{HIT};eol={word}" for word in ("lf", "crlf", "cr")),
    "space": (f"{HIT};space=false", f"{HIT};space=true"),
    "multiline": (f"{HIT};multiline=3", f"{HIT};multiline=40"),
    "comments": (f"{HIT};comments=1", f"{HIT};comments=3;eol=crlf"),
    "id": (f"{HIT};id=true",),
    "retry": (f"{HIT};retry=250", f"{HIT};retry=alone", f"{HIT};retry=none"),
    "bom": (f"{HIT};bom=true",),
    "final_blank": (f"{HIT};final_blank=false", f"{HIT};final_blank=true"),
    "spacing": (f"{HIT};spacing=python", f"{HIT};spacing=compact"),
    "segment": (
        "ok;segment=byte;after_chunks=1",
        "ok;segment=utf8",
        "ok;eol=crlf;segment=crlf",
        "ok;segment=whole",
        "ok;segment=3",
        "ok;segment=frame",
    ),
    "gap_ms": ("ok;segment=3;gap_ms=4",),
    "length": (
        "ok;length=+20",
        "ok;length=-20;close=fin",
        "ok;length=both",
        "ok;length=none",
        "reset;length=+5",
    ),
    "chunk_error": tuple(
        f"ok;after_chunks=2;close={close};chunk_error={word}"
        for close, word in (
            ("fin", "bad_size"),
            ("rst", "no_crlf"),
            ("hang", "response_inside"),
            ("terminator", "trailer"),
            ("stale", "trailer"),
            ("fin", "none"),
        )
    ),
    "encoding": (
        *tuple(f"ok;encoding={word}" for word in ("none", "gzip", "gzip_truncated", "gzip_unlabelled")),
        "ok;encoding=gzip;segment=byte;after_chunks=1",
    ),
    "close": tuple(
        f"{HIT};close={word}"
        for word in (
            "terminator",
            "fin",
            "rst",
            "hang",
            "terminator_rst",
            "fin_close",
            "eof",
            "partial_terminator",
            "torn_chunk",
            "idle_close",
            "stale",
        )
    ),
    "idle_ms": (f"{HIT};close=idle_close;idle_ms=40",),
    "strict_params": (f"{HIT};strict_params=true",),
    "name": (f'{HIT};name="a, b >> c"',),
    "test": (f"{HIT};test=T-1.2_x",),
    "times": (f"{HIT};times=4294967295",),
}
DEFAULT_WORDS = {"none", "asked", "text", "end", "frames", "reasoning_content"}
OVER_TLS = (
    *DIRECTIVES["close"],
    f"{HIT};close=tls_raw",
    "ok;at=request;close=fin",
    "ok;at=request;close=rst",
    "ok;at=request;close=tls_raw",
    "ok;status=503;close=fin",
    "ok;status=503;close=rst",
    "cut_mid_frame;close=tls_raw",
    "ok;chunk_error=trailer",
    "ok;segment=byte;after_chunks=1",
)
# The presets whose silences are too long for a test; the same with shorter ones.
QUICKER = {
    "heartbeat_stall": "heartbeat_stall;heartbeat_ms=10",
    "slow_but_alive": "slow_but_alive;heartbeat_ms=5",
    "crawl": "crawl;rest_delay_ms=20",
}


def acts_on(endpoint: str, directive: str) -> bool:
    settings = settings_of(directive)
    return endpoint == CHAT or not ("reasoning_key" in settings or settings.get("at") == "role")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", DIRECTIVES)
def test_each_value_puts_its_bytes_on_the_wire_and_ends_as_it_says(
    server: Server, key: str, endpoint: str
) -> None:
    meet(server, endpoint, *(directive for directive in DIRECTIVES[key] if acts_on(endpoint, directive)))


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_each_preset_is_its_line_of_axes(server: Server, endpoint: str) -> None:
    meet(server, endpoint, *(QUICKER.get(name, name) for name in PRESETS if acts_on(endpoint, name)))


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_stream_may_come_where_none_was_asked_for(server: Server, endpoint: str) -> None:
    streams = (
        *DIRECTIVES["close"],
        *DIRECTIVES["chunk_error"],
        *DIRECTIVES["heartbeat"],
        *DIRECTIVES["at"][3:],
    )
    said = (f"{directive};answer_as=sse" for directive in streams if acts_on(endpoint, directive))
    meet(server, endpoint, *said, *BEGIN_AS_STREAMS, stream=False)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_each_ending_over_tls_with_and_without_close_notify(tls_server: Server, endpoint: str) -> None:
    meet(tls_server, endpoint, *OVER_TLS, tls=True)


PAIRS_A_KEY = 4
FIRST_LEG = [key for key in PAIRED if key not in LEG_KEYS]


def in_little_time(settings: dict[str, str]) -> dict[str, str]:
    """The same with silences that a test can wait for."""
    quick = dict(settings)
    if quick.get("heartbeat", "none") != "none":
        quick.setdefault("heartbeat_ms", "1000")
    for key in ("ttft_ms", "pause_ms", "heartbeat_ms"):
        if key in quick:
            quick[key] = str(int(quick[key]) // 50)
    if "gap_ms" in quick:
        quick |= {"gap_ms": "2", "segment": "3"}
    return quick


def sampled_pairs(endpoint: str) -> Iterator[str]:
    """For each key a few pairs with another that are served, always the same ones."""
    chance = random.Random(endpoint)
    for key in FIRST_LEG:
        found = 0
        pairs = [
            (value, other, second)
            for value in changes_of(key)
            for other in FIRST_LEG
            if other != key
            for second in changes_of(other)
        ]
        for value, other, second in chance.sample(pairs, len(pairs)):
            settings = {**settings_for(other, second), **settings_for(key, value), other: second, key: value}
            if "tls_raw" in {value, second} or {key, other} <= {"name", "test", "times"}:
                continue  # TLS has a test of its own, and what does nothing to the answer leaves it to the engine
            quick = tuple(in_little_time(settings).items())
            if served(quick, endpoint) is None:
                continue
            yield directive_of(quick)
            found += 1
            if found == PAIRS_A_KEY:
                break


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_pairs_of_values_are_on_the_wire_what_the_script_says(server: Server, endpoint: str) -> None:
    pairs = list(sampled_pairs(endpoint))
    assert len(pairs) >= PAIRS_A_KEY * (len(FIRST_LEG) - 1)
    for start in range(0, len(pairs), 40):
        meet(server, endpoint, *pairs[start : start + 40])


def test_there_is_a_directive_for_every_value() -> None:
    elsewhere = {*LEG_KEYS, "dialect"}  # test_leg_keys.py, test_dialects.py and their like
    assert DIRECTIVES.keys() == AXES.keys() - elsewhere
    for key, directives in DIRECTIVES.items():
        met = {
            settings_of(directive).get(key, "").partition(":")[0] for directive in (*directives, *OVER_TLS)
        }
        kind = AXES[key].kind
        words = set(kind.words) if isinstance(kind, (Choice, NumberedChoice)) else set()
        if isinstance(kind, NumberedChoice):
            words |= set(kind.numbered)
        elif isinstance(kind, Flag):
            assert met & {"true", "false"}, key
        missing = words - met - DEFAULT_WORDS
        assert not missing, f"{key}: {missing}"


def test_there_is_a_line_for_every_preset() -> None:
    legs_only = {"echo_restart", "echo_overlap"}
    assert {*PRESETS, *ELEVEN, "ok"} == MODES.keys() - legs_only
