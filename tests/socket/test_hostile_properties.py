"""Whatever comes in header or body: no 5xx, every refusal as documented, no traceback in the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_lab.core.faults.modes import MODES as EVERY_MODE
from tests.reference_model.contract import CHAT, COMPLETIONS, MODES
from tests.support.deaths import first_answer
from tests.support.rawclient import Connection, Received, request

if TYPE_CHECKING:
    from tests.support.server import Server

CODES = {
    "invalid_fault_directive",
    "model_not_found",
    "invalid_prompt",
    "invalid_request",
    "context_length_exceeded",
    "body_too_large",
    "not_found",
    "method_not_allowed",
}
PROPERTY = settings(
    deadline=None,
    max_examples=150,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=False,
)
U32, U64 = 2**32 - 1, 2**64 - 1


def documented(got: Received) -> str:
    """The code of a refusal, or nothing for an answer."""
    if got.status == 200:
        return ""
    code = got.error["code"]
    assert got.status in {400, 404, 405, 413}, got.raw
    assert code in CODES
    return code


def valid(text: str) -> bool:
    """The contract's grammar, written a second time."""
    mode, *parts = (part.strip(" \t") for part in text.split(";"))
    seen = set()
    if mode not in MODES:
        return False
    for part in parts:
        key, equals, value = (piece.strip(" \t") for piece in part.partition("="))
        if not equals or key in seen:
            return False
        seen.add(key)
        if key == "utf8":
            if value not in {"true", "false"} or mode != "cut_mid_frame":
                return False
        elif key in {"after_chunks", "delay_ms"}:
            digits = value.isascii() and value.isdigit()
            if (
                not digits
                or len(bare := value.lstrip("0")) > 20
                or int(bare or "0") > (U32 if key == "after_chunks" else U64)
            ):
                return False
        else:
            return False
    return True


blanks = st.text(" \t", max_size=2)
numbers = st.one_of(
    st.integers(0, 20).map(str),
    st.sampled_from(
        ["007", "4294967295", "4294967296", "18446744073709551615", "18446744073709551616", "9" * 4400]
    ),
    st.sampled_from(
        ["", "+1", "-1", "1_0", "1 0", "1.0", "0x1", "1e3", "\xb2", "\xbd", "true", "1,2", '"1"']
    ),
)
values = st.one_of(numbers, st.sampled_from(["true", "false", "True", "FALSE", "1", "yes", ""]))
keys = st.sampled_from(
    ["after_chunks", "delay_ms", "utf8", "After_chunks", "after-chunks", "mode", "", "then"]
)
pairs = st.tuples(
    blanks, keys, blanks, st.sampled_from(["=", "=", "=", "==", ":", ""]), blanks, values, blanks
)
modes = st.one_of(
    st.sampled_from(MODES),
    st.sampled_from(["Reset", "okay", "", "reset,", ",reset", "reset,ok,stall", "mid_reasoning2", '"reset"']),
)
near_misses = st.tuples(blanks, modes, blanks, st.lists(pairs.map("".join), max_size=3)).map(
    lambda made: "".join(made[:3]) + "".join(";" + pair for pair in made[3])
)
latin = st.characters(codec="latin-1", exclude_characters="\r\n\0")
# hypothesis also draws strings that it finds in our sources, the names of further modes among them.
FURTHER = set(EVERY_MODE) - set(MODES)
anything = st.text(latin, max_size=40).filter(
    lambda text: FURTHER.isdisjoint(element.partition(";")[0].strip() for element in text.split(","))
)


@PROPERTY
@given(header=st.one_of(near_misses, near_misses, anything), endpoint=st.sampled_from([CHAT, COMPLETIONS]))
def test_a_fault_header_is_accepted_exactly_when_the_grammar_says_so(
    server: Server, header: str, endpoint: str
) -> None:
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "x"}]} if endpoint == CHAT else {"prompt": "x"}
    )
    body = json.dumps({"model": "lab", "stream": True, **asked}).encode()
    got = first_answer(server, request("POST", endpoint, body, headers={"x-inference-lab-fault": header}))
    if valid(header):
        assert got.status == 200, got.raw
    else:
        assert (got.status, documented(got)) == (400, "invalid_fault_directive")
        message = got.error["message"]
        # A list that can be read but whose legs cannot be told apart is refused with that alone.
        assert "of the list" in message or not [mode for mode in MODES if mode not in message]


junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(st.characters(), max_size=5),
        st.sampled_from(
            ["", "\ud800", "\udfff\ud800", "qu0000", "<think>", "<<respond:", "<<fault:reset>>", "\0", "é"]
        ),
        st.sampled_from([2**31 - 1, 2**31, U32, U32 + 1, 2**63, U64, 16.0, -1, 0, 1, float("nan")]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
parts = st.fixed_dictionaries({"type": junk, "text": junk})
messages = st.lists(
    st.one_of(
        junk,
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"]), "content": junk},
            optional={
                "name": junk,
                "tool_calls": junk,
                "prefix": junk,
                "tool_call_id": junk,
                "reasoning_content": junk,
            },
        ),
        st.fixed_dictionaries(
            {
                "role": st.just("user"),
                "content": st.lists(st.fixed_dictionaries({"type": junk, "text": junk}), max_size=2),
            }
        ),
    ),
    max_size=3,
)
prompts = st.one_of(
    junk, st.lists(st.integers(-1, U32 + 1), max_size=4), st.lists(st.lists(st.integers(0, U32)), max_size=2)
)
KNOWN = (
    "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "echo", "suffix", "logprobs",
    "tools", "tool_choice", "priority", "nvext", "temperature", "top_p", "seed", "stop", "user",
    "response_format", "continue_final_message", "add_generation_prompt", "chat_template_kwargs",
)  # fmt: skip
bodies = st.fixed_dictionaries(
    {
        "model": st.one_of(st.just("lab"), st.just("lab"), st.just("static"), junk),
        "stream": st.one_of(st.booleans(), junk),
    },
    optional={"messages": messages, "prompt": prompts, **dict.fromkeys(KNOWN, junk)},
)


@PROPERTY
@given(
    body=bodies,
    endpoint=st.sampled_from([CHAT, COMPLETIONS]),
    fault=st.sampled_from([None, "no_done", "reset"]),
)
def test_a_body_of_any_json_is_answered_or_refused_as_documented(
    server: Server, body: dict[str, Any], endpoint: str, fault: str | None
) -> None:
    headers: dict[str, str | bytes] = {} if fault is None else {"x-inference-lab-fault": fault}
    documented(first_answer(server, request("POST", endpoint, json.dumps(body).encode(), headers=headers)))


@PROPERTY
@given(body=st.binary(max_size=60), endpoint=st.sampled_from([CHAT, COMPLETIONS]))
def test_a_body_of_any_bytes_is_refused_as_documented(server: Server, body: bytes, endpoint: str) -> None:
    assert documented(first_answer(server, request("POST", endpoint, body))) in {
        "invalid_request",
        "invalid_prompt",
    }


@PROPERTY
@given(
    good=st.sampled_from(
        [
            {
                "model": "lab",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}],
                "stream": True,
            },
            {"model": "lab", "prompt": [1, 2, 3], "stream": True, "max_tokens": 3, "stop": ["x"]},
        ]
    ),
    at=st.integers(0, 200),
    byte=st.binary(min_size=0, max_size=2),
)
def test_a_good_body_with_a_byte_changed_brings_no_500(
    server: Server, good: dict[str, Any], at: int, byte: bytes
) -> None:
    raw = json.dumps(good, ensure_ascii=False).encode()
    at %= len(raw)
    endpoint = CHAT if "messages" in good else COMPLETIONS
    documented(first_answer(server, request("POST", endpoint, raw[:at] + byte + raw[at + 1 :])))


@PROPERTY
@given(
    method=st.sampled_from(["GET", "POST"]),
    path=st.binary(max_size=20).filter(lambda raw: not set(raw) & set(b"\r\n\0 \t\x0b\x0c")),
    host=st.text(latin, max_size=8),
)
def test_any_path_and_host_are_answered_as_documented_or_refused_bare(
    server: Server, method: str, path: bytes, host: str
) -> None:
    headers: dict[str, str | bytes] = {"Host": host, "Connection": "close"}
    with Connection(server.address) as connection:
        connection.send(request(method, b"/" + path, b"{}" if method == "POST" else None, headers=headers))
        got = connection.until_end(timeout=5)
    if not got.raw or got.raw == b"HTTP/1.1 400 Bad Request\r\n\r\n":
        return
    documented(got)


NAME_LETTERS = "!#$%&'*+-.^_`|~abcXYZ019"


@PROPERTY
@given(
    headers=st.dictionaries(
        st.text(NAME_LETTERS, min_size=1, max_size=6), st.text(latin, max_size=10), max_size=4
    )
)
def test_any_other_header_changes_nothing(server: Server, headers: dict[str, str]) -> None:
    with Connection(server.address) as connection:
        connection.send(
            request("GET", "/health", headers={f"x-{name}": value for name, value in headers.items()})
        )
        assert connection.response().after_head == b'{"status":"ok"}'
