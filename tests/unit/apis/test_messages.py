"""Anthropic's Messages, to the byte: what it reads as what chat reads, what it writes, how it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.faults.modes import MODES
from inference_lab.core.oracle import verify
from tests.support.lab import MODEL, WORDS, MemoryLab, files, write
from tests.support.rawclient import FIN, Received, request

if TYPE_CHECKING:
    from pathlib import Path

NAME = "DeepSeek-V4-Flash"
HELLO = '{"model":"DeepSeek-V4-Flash","max_tokens":16,"stream":true,"messages":[{"role":"user","content":"hello"}]}'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    folder: Path = tmp_path_factory.mktemp("models")
    return MemoryLab(write(folder, {**files(), NAME: MODEL.format(name=NAME)}))


def post(lab: MemoryLab, body: str | dict[str, Any], fault: str | None = None, path: str = "") -> Received:
    raw = body if isinstance(body, str) else json.dumps(body)
    headers = {} if fault is None else {"x-inference-lab-fault": fault}
    return lab.send(request("POST", f"/v1/messages{path}", raw.encode(), headers=headers))


def body_of(got: Received) -> bytes:
    return got.chunked.body if got.headers.get("transfer-encoding") == "chunked" else got.after_head


def event(name: str, members: str = "") -> str:
    return f'event: {name}\ndata: {{"type":"{name}"{members}}}\n\n'


def start(digits: str, usage: str = '{"input_tokens":10,"output_tokens":1}') -> str:
    return event(
        "message_start",
        f',"message":{{"id":"msg_{digits}","type":"message","role":"assistant","content":[],'
        f'"model":"{NAME}","stop_reason":null,"stop_sequence":null,"usage":{usage}}}',
    )


def block(index: int, content: str) -> str:
    return event("content_block_start", f',"index":{index},"content_block":{content}')


def delta(index: int, content: str) -> str:
    return event("content_block_delta", f',"index":{index},"delta":{content}')


def stop(index: int) -> str:
    return event("content_block_stop", f',"index":{index}')


def end(reason: str, usage: str) -> str:
    return event(
        "message_delta", f',"delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{usage}'
    )


TEXT = '{"type":"text","text":""}'
THINKING = '{"type":"thinking","thinking":"","signature":""}'
TWO_WORDS = "".join(
    (
        block(0, TEXT),
        event("ping"),
        delta(0, '{"type":"text_delta","text":"dx0000"}'),
        delta(0, '{"type":"text_delta","text":" dx0001"}'),
    )
)
TRANSCRIPTS = {
    "ok;after_chunks=2": start("077233a7cd506b92c08c0702")
    + TWO_WORDS
    + stop(0)
    + end("end_turn", '{"input_tokens":10,"output_tokens":2}')
    + event("message_stop"),
    "cut_mid_frame;after_chunks=1": start("7fa1048c1bd62da1e1d8c79c")
    + block(0, TEXT)
    + event("ping")
    + delta(0, '{"type":"text_delta","text":"dx0000"}')
    + 'event: content_block_delta\ndata: {"type":"content_block_delta',
    "mid_reasoning;after_chunks=1": start("572920e7049d05162a5a45b2")
    + block(0, THINKING)
    + event("ping")
    + delta(0, '{"type":"thinking_delta","thinking":"DX0000"}'),
    "mid_tool_call;after_chunks=2": start("617b44e822639c0be89672ae")
    + block(
        0,
        '{"type":"tool_use","id":"toolu_617b44e822639c0be89672ae","name":"get_current_weather","input":{}}',
    )
    + event("ping")
    + delta(0, '{"type":"input_json_delta","partial_json":"{\\"location\\": \\"dx0000"}'),
    "error_envelope_200;after_chunks=0": start("%ID")
    + event("error", ',"error":{"type":"api_error","message":"Provider returned error"}'),
    "error_400_in_sse;after_chunks=0": start("%ID")
    + event(
        "error",
        ',"error":{"type":"invalid_request_error","message":"prompt is too long: 200001 tokens > 200000 maximum"}',
    ),
    "cancelled_499;after_chunks=0": start("%ID")
    + event(
        "error", ',"error":{"type":"api_error","message":"An internal error occurred during generation."}'
    )
    + "data: [DONE]\n\n",
    "first_frame_error": event("error", ',"error":{"type":"overloaded_error","message":"Overloaded"}'),
    "no_done;after_chunks=2": start("%ID")
    + TWO_WORDS
    + stop(0)
    + end("end_turn", '{"input_tokens":10,"output_tokens":2}'),
    "no_usage;after_chunks=2": start("%ID")
    + TWO_WORDS
    + stop(0)
    + event("message_delta", ',"delta":{"stop_reason":"end_turn","stop_sequence":null}')
    + event("message_stop"),
    "done_without_finish;after_chunks=2": start("%ID") + TWO_WORDS + event("message_stop"),
    "ok;after_chunks=0": start("%ID")
    + end("end_turn", '{"input_tokens":10,"output_tokens":0}')
    + event("message_stop"),
    "ok;after_chunks=1;sequence=after_finish": start("%ID")
    + block(0, TEXT)
    + event("ping")
    + delta(0, '{"type":"text_delta","text":"dx0000"}')
    + stop(0)
    + end("end_turn", '{"input_tokens":10,"output_tokens":1}')
    + delta(0, '{"type":"text_delta","text":" dx0001"}')
    + event("message_stop"),
}


@pytest.mark.parametrize("fault", TRANSCRIPTS)
def test_a_stream_is_these_bytes(lab: MemoryLab, fault: str) -> None:
    got = post(lab, HELLO, fault)
    body = body_of(got).decode()
    ident = got.headers["request-id"].removeprefix("req_")
    assert body == TRANSCRIPTS[fault].replace("%ID", ident)


def test_a_death_ends_without_the_terminator(lab: MemoryLab) -> None:
    for fault in ("cut_between_frames", "cut_mid_frame"):
        got = post(lab, HELLO, f"{fault};after_chunks=1")
        assert got.end == FIN
        assert not got.chunked.terminated


def test_a_thinking_block_is_signed_and_closed_before_the_text(lab: MemoryLab) -> None:
    body = {"model": "lab-thinks", "max_tokens": 40, "stream": True}
    got = post(lab, body | {"messages": [{"role": "user", "content": "hello"}]})
    text = body_of(got).decode()
    thought = "".join(
        json.loads(line[6:])["delta"]["thinking"] for line in text.splitlines() if "thinking_delta" in line
    )
    assert len(thought.split()) == 8
    assert text.index("signature_delta") < text.index('"content_block_stop"') < text.index("text_delta")
    assert verify(body_of(got)).outcome == "whole"
    asked_not_to = post(
        lab, body | {"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "h"}]}
    )
    assert b"thinking" not in body_of(asked_not_to)


@pytest.mark.parametrize("model", ["lab", "lab-thinks", "hermes", "dsv4-thinks"])
@pytest.mark.parametrize(
    ("messages", "chats"),
    [
        ([{"role": "user", "content": "hello"}], [{"role": "user", "content": "hello"}]),
        (
            [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t",
                            "content": [{"type": "text", "text": "r"}],
                        },
                        {"type": "text", "text": "go on"},
                    ],
                },
            ],
            [
                {"role": "user", "content": "a[image_url]"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
                },
                {"role": "tool", "content": "r"},
                {"role": "user", "content": "go on"},
            ],
        ),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": [{"type": "text", "text": "xx0000 xx00"}]},
            ],
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "xx0000 xx00"}],
        ),
    ],
)
def test_a_conversation_has_the_prompt_and_the_words_that_it_has_on_chat(
    lab: MemoryLab, model: str, messages: list[dict[str, Any]], chats: list[dict[str, Any]]
) -> None:
    asked = {"model": model, "max_tokens": 30}
    here = json.loads(body_of(post(lab, asked | {"messages": messages, "system": "s"})))
    body = json.dumps(asked | {"messages": [{"role": "system", "content": "s"}, *chats]}).encode()
    there = json.loads(lab.send(request("POST", "/v1/chat/completions", body)).after_head)
    said = there["choices"][0]["message"]
    texts = {block["type"]: block for block in here["content"]}
    assert texts.get("text", {}).get("text", "") == (said["content"] or "")
    assert texts.get("thinking", {}).get("thinking", "") == said.get("reasoning_content", "")
    assert here["usage"]["input_tokens"] == there["usage"]["prompt_tokens"]
    assert here["usage"]["output_tokens"] == there["usage"]["completion_tokens"]
    counted = json.loads(
        body_of(post(lab, {"model": model, "messages": messages, "system": "s"}, path="/count_tokens"))
    )
    assert counted == {"input_tokens": there["usage"]["prompt_tokens"]}


def test_a_tool_that_must_be_called_is_called(lab: MemoryLab) -> None:
    tool = {"name": "find", "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}}}
    asked = {
        "model": "lab",
        "max_tokens": 90,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [tool],
    }
    for choice in ({"type": "any"}, {"type": "tool", "name": "find"}):
        got = json.loads(body_of(post(lab, asked | {"tool_choice": choice})))
        assert got["stop_reason"] == "tool_use"
        assert got["content"][-1]["name"] == "find"
        assert list(got["content"][-1]["input"]) == ["what"]
        streamed = post(lab, asked | {"tool_choice": choice, "stream": True})
        assert verify(body_of(streamed)).outcome == "whole"
    assert (
        json.loads(body_of(post(lab, asked | {"tool_choice": {"type": "auto"}})))["stop_reason"] == "end_turn"
    )


ASKED: dict[str, Any] = {"model": "lab", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("change", "status", "kind", "message"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: Field required"),
        (
            {"max_tokens": 0},
            400,
            "invalid_request_error",
            "max_tokens: Input should be greater than or equal to 1",
        ),
        ({"messages": []}, 400, "invalid_request_error", "messages: at least one message is required"),
        ({"messages": None}, 400, "invalid_request_error", "messages: Field required"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            400,
            "invalid_request_error",
            "messages.0.role: Input should be 'user', 'assistant' or 'system'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            400,
            "invalid_request_error",
            "messages.0.content.0.text: Input should be a string",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            400,
            "invalid_request_error",
            "messages.0.content.0.type: Input should be a block that a message of role 'user' can have",
        ),
        (
            {"tools": [{"name": "f"}]},
            400,
            "invalid_request_error",
            "tools.0.input_schema: Input should be an object",
        ),
        (
            {"tool_choice": {"type": "some"}},
            400,
            "invalid_request_error",
            "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'",
        ),
        ({"model": "nobody"}, 404, "not_found_error", None),
        (
            {"max_tokens": 2**31 - 1},
            400,
            "invalid_request_error",
            (
                "input length and `max_tokens` exceed context limit: 10 + 2147483647 > 131072, "
                "decrease input length or `max_tokens` and try again"
            ),
        ),
    ],
)
def test_a_refusal_has_the_shape_of_this_api(
    lab: MemoryLab, change: dict[str, Any], status: int, kind: str, message: str | None
) -> None:
    got = post(lab, {key: value for key, value in (ASKED | change).items() if value is not None})
    error = json.loads(body_of(got))
    assert (got.status, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["request_id"] == got.headers["request-id"]
    if message is None:
        assert error["error"]["message"].startswith("model: no model 'nobody'")
    else:
        assert error["error"]["message"] == message


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "/v1/messagesx", 404, None),
    ],
)
def test_what_lies_below_the_path_is_refused_in_its_shape(
    lab: MemoryLab, method: str, path: str, status: int, kind: str | None
) -> None:
    got = lab.send(request(method, path, b"{}"))
    assert got.status == status
    assert (json.loads(body_of(got)).get("type") == "error") == (kind is not None)
    if kind is not None:
        assert json.loads(body_of(got))["error"]["type"] == kind


@pytest.mark.parametrize(
    "setting",
    [
        "text_in_finish=true",
        "sequence=choices_null",
        "sequence=choices_empty",
        "usage=every_chunk",
        "usage=with_choices",
        "error=openrouter",
        "error=openrouter_choice",
        "dialect=vllm",
        "heartbeat=empty_delta;close=hang",
        "strict_params=true",
    ],
)
def test_what_this_api_has_no_place_for_is_refused(lab: MemoryLab, setting: str) -> None:
    got = post(lab, HELLO, f"ok;after_chunks=1;{setting}")
    assert got.status == 400
    assert setting.partition(";")[0] in json.loads(body_of(got))["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "rate_limit_error"), (529, "overloaded_error"), (503, "overloaded_error"), (500, "api_error")],
)
def test_a_status_that_was_asked_for_has_the_shape_of_this_api(
    lab: MemoryLab, status: int, kind: str
) -> None:
    got = post(lab, HELLO, f"ok;status={status};message=no")
    ident = got.headers["request-id"]
    assert got.status == status
    assert body_of(got).decode() == (
        f'{{"type":"error","error":{{"type":"{kind}","message":"no"}},"request_id":"{ident}"}}'
    )


def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words(lab: MemoryLab) -> None:
    got = post(lab, ASKED | {"messages": [{"role": "user", "content": "é " * 100_000}]})
    message = json.loads(body_of(got))["error"]["message"]
    assert got.status == 400
    assert message.startswith("prompt is too long: ")
    assert message.endswith(" tokens > 131072 maximum")


def test_an_echo_is_one_block_of_text_and_one_of_each_call(lab: MemoryLab) -> None:
    echo = '<<respond:{"text":"hi there","tool_calls":[{"name":"f","arguments":{"a":1}}]}>>'
    asked = ASKED | {"messages": [{"role": "user", "content": echo}]}
    whole = json.loads(body_of(post(lab, asked)))
    assert whole["content"][0] == {"type": "text", "text": "hi there"}
    assert (whole["content"][1]["name"], whole["content"][1]["input"]) == ("f", {"a": 1})
    streamed = body_of(post(lab, asked | {"stream": True})).decode()
    assert streamed.count("content_block_delta\n") == 2
    assert '"text":"hi there"' in streamed


def test_a_death_is_asked_for_in_any_text_of_the_prompt(lab: MemoryLab) -> None:
    for place in ("system", "user"):
        asked = {
            "model": "lab",
            "max_tokens": 9,
            "stream": True,
            "messages": [{"role": "user", "content": "hello"}],
        }
        mark = "<<fault:cut_between_frames;after_chunks=2>>"
        asked |= {"system": mark} if place == "system" else {"messages": [{"role": "user", "content": mark}]}
        got = post(lab, asked)
        assert not got.chunked.terminated
        assert body_of(got).count(b"text_delta") == 2


def test_the_legs_of_one_answer_may_come_to_different_apis(lab: MemoryLab) -> None:
    legs = "<<fault:cut_between_frames;after_chunks=5, cut_mid_frame;after_chunks=3, reset;after_chunks=2>>"
    question = {"role": "user", "content": f"hello {legs}"}
    asked = {"model": "lab", "max_tokens": 99, "stream": True}
    said = ""
    for number, path in enumerate(("messages", "chat/completions", "messages", "messages")):
        messages = [question, *([{"role": "assistant", "content": said}] if said else [])]
        got = lab.send(request("POST", f"/v1/{path}", json.dumps(asked | {"messages": messages}).encode()))
        words = re.findall(r'"(?:text|content)":"([^"]+)"', got.chunked.body.decode())
        said += "".join(words)
        assert len(said.split()) == (5, 8, 10, WORDS)[number]
        assert got.chunked.terminated == (number == 3)
    assert [int(word[2:6]) for word in said.split()] == list(range(WORDS))
    assert len({word[:2] for word in said.split()}) == 1


HEALTHY = TRANSCRIPTS["ok;after_chunks=2"]
SIGNATURE = "q0JkPWFZlrJNTFJvyKfYohd07HH/KOjHAme0vfiwpBQt+CsM6KJRcQ/eKQjLkEG6"
"""Of a block that says DX0000."""
THOUGHT = (
    start("0")
    + block(0, THINKING)
    + delta(0, '{"type":"thinking_delta","thinking":"DX0000"}')
    + delta(
        0,
        '{"type":"signature_delta","signature":"q0JkPWFZlrJNTFJvyKfYohd07HH/KOjHAme0vfiwpBQt+CsM6KJRcQ/eKQjLkEG6"}',
    )
    + stop(0)
    + block(1, TEXT)
    + delta(1, '{"type":"text_delta","text":"dx0000"}')
    + stop(1)
    + end("end_turn", '{"input_tokens":10,"output_tokens":4}')
    + event("message_stop")
)
TOOL = (
    start("0")
    + block(0, '{"type":"tool_use","id":"toolu_0","name":"f","input":{}}')
    + delta(0, '{"type":"input_json_delta","partial_json":"{\\"a\\": \\"dx0000\\"}"}')
    + stop(0)
    + end("tool_use", '{"input_tokens":10,"output_tokens":17}')
    + event("message_stop")
)


@pytest.mark.parametrize("stream", [HEALTHY, THOUGHT, TOOL])
def test_no_prefix_of_an_honest_stream_is_wrong(stream: str) -> None:
    data = stream.encode()
    assert verify(data).outcome == "whole", verify(data).findings
    for size in range(len(data)):
        verdict = verify(data[:size], ended="broken")
        assert verdict.outcome != "wrong", (data[:size], verdict.findings)


SECOND = block(1, TEXT) + delta(1, '{"type":"text_delta","text":" dx0002"}')
WRONG = {
    "no event line": ("event_name", HEALTHY.replace("event: content_block_start\n", "", 1)),
    "another name": ("event_name", HEALTHY.replace("event: content_block_stop", "event: ping", 1)),
    "no start": ("event_order", HEALTHY.partition("\n\n")[2]),
    "a second start": ("event_order", HEALTHY.replace(stop(0), start("0") + stop(0))),
    "after the stop": ("event_order", HEALTHY + stop(0)),
    "another index": ("block_index", HEALTHY.replace('"index":0,"delta"', '"index":1,"delta"', 1)),
    "a gap of indexes": (
        "block_index",
        HEALTHY.replace(stop(0), stop(0) + SECOND.replace('"index":1', '"index":2') + stop(2)),
    ),
    "two open at once": ("block_index", HEALTHY.replace(stop(0), SECOND + stop(1))),
    "never started": ("block_index", HEALTHY.replace(block(0, TEXT), "")),
    "a delta of another type": (
        "block_type",
        HEALTHY.replace('{"type":"text_delta","text"', '{"type":"thinking_delta","thinking"', 1),
    ),
    "never closed": ("unclosed_block", HEALTHY.replace(stop(0), "")),
    "another signature": ("signature", THOUGHT.replace("q0Jk", "q0Jl")),
    "a call that is none": ("phantom_call", HEALTHY.replace('"end_turn"', '"tool_use"')),
    "a call that is told as an end": (
        "phantom_call",
        TOOL.replace('"tool_use","stop_sequence"', '"end_turn","stop_sequence"'),
    ),
    "an error without its line": (
        "event_name",
        HEALTHY.replace(stop(0), 'data: {"type":"error","error":{}}\n\n'),
    ),
    "a word lost": ("gap", HEALTHY.replace("dx0001", "dx0002")),
    "another answer's id": ("id_changed", HEALTHY.replace(stop(0), start("1") + stop(0))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_lie_about_a_message_is_found(name: str) -> None:
    finding, stream = WRONG[name]
    assert stream not in {HEALTHY, THOUGHT, TOOL}
    verdict = verify(stream.encode())
    assert verdict.outcome == "wrong"
    assert finding in {found.kind.value for found in verdict.findings}


FASTER = {"crawl": "crawl;rest_delay_ms=20"}
JUDGED = [mode for mode in MODES if not mode.startswith("echo_")]
"""Echoes are for legs, which have words to repeat."""


@pytest.mark.parametrize("mode", JUDGED)
def test_a_mode_is_judged_as_it_is_on_chat(lab: MemoryLab, mode: str) -> None:
    chat = json.dumps({**json.loads(HELLO), "stream_options": {"include_usage": True}}).encode()
    fault = {"ok": "ok;after_chunks=2"}.get(mode, FASTER.get(mode, mode))
    headers = {"x-inference-lab-fault": fault}
    received = (
        lab.send(request("POST", path, body, headers=headers))
        for path, body in (("/v1/messages", HELLO.encode()), ("/v1/chat/completions", chat))
    )
    here, there = (
        verify(
            body_of(got),
            status=got.status,
            stream=True,
            ended="broken" if "transfer-encoding" in got.headers and not got.chunked.terminated else "clean",
        )
        for got in received
    )
    assert here.outcome == there.outcome
    assert [found.kind for found in here.findings] == [found.kind for found in there.findings]
