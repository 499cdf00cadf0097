"""Each value of each axis, and each preset, on real sockets: the exact bytes behind the head, and the ending.

The bytes are those of the model in tests/axes_model.py; endings are told by FIN, errno or a second request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from inference_lab.faults.axes import AXES
from inference_lab.faults.leg_keys import LEG_KEYS
from inference_lab.faults.modes import MODES
from inference_lab.faults.values import Choice, Flag, SubChoice
from tests.axes_frames import Answer, settings_of
from tests.axes_model import Response, respond
from tests.axes_tables import ERRORS, PRESETS

from .contract import HELLO, Stream, tag_of
from .contract import MODES as ELEVEN
from .rawclient import CHAT, COMPLETIONS, FIN, OPEN, RST, Connection, dechunk, fault_request, payload, request

if TYPE_CHECKING:
    from .server import Server

CREATED = 1_700_000_000
WORDS = 10
HEALTH = request("GET", "/health")
SILENCE_S = 0.15
HIT = "ok;after_chunks=3;delay_ms=0"
"""A healthy stream of three words, to change something about."""

# One directive or more for each value; a key with a number is met with a few.
DIRECTIVES: dict[str, tuple[str, ...]] = {
    "after_chunks": ("ok;after_chunks=0", "ok;after_chunks=9", "ok;after_chunks=all", "ok;after_chunks=20"),
    "delay_ms": (f"{HIT};name=slower".replace("delay_ms=0", "delay_ms=2"),),
    "content": tuple(f"{HIT};content={word}" for word in ("text", "reasoning", "tool_call")),
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
    "then": ("ok;after_chunks=2;then=rest",),
    "pause_ms": ("ok;after_chunks=2;then=rest;pause_ms=40",),
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
            "empty_each",
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
    "done": tuple(f"{HIT};done={word}" for word in ("true", "false", "twice")),
    "at": (
        "ok;at=request;close=fin",
        "stall;at=request",
        "reset;at=request",
        "stall;at=head",
        "ok;at=head",
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
        *tuple(f"ok;answer_as={word}" for word in ("sse", "json", "json_error", "html", "empty")),
        "ok;answer_as=json_error;code=7;message=no;type=sad",
        "reset;answer_as=json",
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
    "name": (f'{HIT};name="a, b >> c"',),
    "test": (f"{HIT};test=T-1.2_x",),
    "times": (f"{HIT};times=4294967295",),
}
DEFAULT_WORDS = {"none", "asked", "text", "end", "frames", "reasoning_content"}
CALLS = {"tool_call_parallel", "tool_call_complete"}  # test_call_contents.py
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
}


def answer_to(endpoint: str, wire: bytes, *, usage: bool = True) -> Answer:
    """The healthy answer, with the id that the response gave itself."""
    prefix = "chatcmpl-" if endpoint == CHAT else "cmpl-"
    pattern = re.compile(rb'"id": ?"(%b[0-9a-f]{24})"' % prefix.encode())
    found = pattern.search(wire) or pattern.search(dechunk(wire).body if wire.endswith(b"\r\n") else b"")
    ident = found[1].decode() if found else "none"
    stream = Stream(endpoint, ident, CREATED, "lab", tag_of(HELLO[endpoint]))
    return Answer(stream, WORDS, "length", len(HELLO[endpoint]), usage)


def asked(endpoint: str, directive: str, **more: object) -> bytes:
    body = payload(endpoint, max_tokens=WORDS, stream_options={"include_usage": True}, **more)
    return fault_request(endpoint, directive.encode().decode("latin-1"), body)


def receive(connection: Connection, endpoint: str, directive: str) -> tuple[Response, bytes]:
    """What comes until the model's bytes are there, and what the model says of it."""
    wanted = respond(directive, answer_to(endpoint, b""))
    while True:
        if (wanted.status or connection.received) and b"\r\n\r\n" in connection.received:
            wire = connection.result(OPEN).after_head
            wanted = respond(directive, answer_to(endpoint, wire))
            if len(wire) >= len(wanted.wire):
                return wanted, wire
        elif not wanted.status:
            return wanted, b""
        end = connection.read()
        assert end is None, f"{end} after {bytes(connection.received)!r}, wanted {wanted.wire!r}"


def check_head(connection: Connection, wanted: Response) -> None:
    got = connection.result(OPEN)
    assert got.status == wanted.status
    assert {name: got.headers.get(name) for name, _ in wanted.headers} == dict(wanted.headers)


def check_end(connection: Connection, wanted: Response, directive: str) -> None:
    """The ending, by what only this one shows."""
    tls = connection.tls
    size = len(connection.received)
    if wanted.endless:
        connection.until(wanted.wire[-7:], after=size)
    elif wanted.end in {"fin", "rst"}:
        got = connection.until_end()
        assert got.end == {"fin": FIN, "rst": RST}[wanted.end]
        assert len(got.raw) == size, "bytes behind the last"
        assert got.close_notify == (tls and wanted.end == "fin" and "close=tls_raw" not in directive)
    elif wanted.end == "open":
        got = connection.until_end(timeout=SILENCE_S)
        assert (got.end, len(got.raw)) == (OPEN, size)
    elif wanted.end == "idle":
        assert connection.until_end().end == FIN
        assert len(connection.received) == size
    elif wanted.end == "stale":
        connection.send(HEALTH)
        got = connection.until_end()
        assert (got.end, len(got.raw)) == (RST, size)
    elif "length=" in directive:  # the connection is in no state to say
        return
    else:
        connection.send(HEALTH)
        assert connection.response().json == {"status": "ok"}


def meet(server: Server, endpoint: str, directive: str, *, tls: bool = False) -> None:
    with Connection(server.address, tls=tls) as connection:
        connection.send(asked(endpoint, directive))
        wanted, wire = receive(connection, endpoint, directive)
        assert wire[: len(wanted.wire)] == wanted.wire, directive
        if not wanted.endless:
            assert len(wire) == len(wanted.wire), directive
        if wanted.status:
            check_head(connection, wanted)
        check_end(connection, wanted, directive)


def acts_on(endpoint: str, directive: str) -> bool:
    settings = settings_of(directive)
    return endpoint == CHAT or not ("reasoning_key" in settings or settings.get("at") == "role")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", DIRECTIVES)
def test_each_value_puts_its_bytes_on_the_wire_and_ends_as_it_says(
    server: Server, key: str, endpoint: str
) -> None:
    for directive in DIRECTIVES[key]:
        if acts_on(endpoint, directive):
            meet(server, endpoint, directive)


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_its_line_of_axes(server: Server, name: str) -> None:
    meet(server, CHAT, QUICKER.get(name, name))
    if acts_on(COMPLETIONS, name):
        meet(server, COMPLETIONS, QUICKER.get(name, name))


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("directive", OVER_TLS)
def test_each_ending_over_tls_with_and_without_close_notify(
    tls_server: Server, directive: str, endpoint: str
) -> None:
    meet(tls_server, endpoint, directive, tls=True)


def test_there_is_a_directive_for_every_value() -> None:
    elsewhere = {*LEG_KEYS, "strict_params", "dialect"}  # test_leg_keys.py, test_dialects.py and their like
    assert DIRECTIVES.keys() == AXES.keys() - elsewhere
    for key, directives in DIRECTIVES.items():
        met = {
            settings_of(directive).get(key, "").partition(":")[0] for directive in (*directives, *OVER_TLS)
        }
        kind = AXES[key].kind
        words = set(kind.words) if isinstance(kind, (Choice, SubChoice)) else set()
        if isinstance(kind, SubChoice):
            words |= set(kind.numbered)
        elif isinstance(kind, Flag):
            assert met & {"true", "false"}, key
        missing = words - met - DEFAULT_WORDS - CALLS
        assert not missing, f"{key}: {missing}"


def test_there_is_a_line_for_every_preset() -> None:
    legs_only = {"echo_restart", "echo_overlap"}
    assert {*PRESETS, *ELEVEN, "ok"} == MODES.keys() - legs_only
