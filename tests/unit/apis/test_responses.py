"""OpenAI's Responses, to the byte: what it reads as what chat reads, what it writes, how it is judged."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.faults.modes import MODES
from inference_lab.core.oracle import verify
from tests.support.lab import MODEL, WORDS, MemoryLab, files, write
from tests.support.rawclient import Received, request
from tests.support.response_streams import (
    DIGITS,
    HEALTHY,
    NAME,
    closings,
    completed,
    event,
    made,
    message,
    opening,
    two_words,
)

if TYPE_CHECKING:
    from pathlib import Path

HELLO = '{"model":"DeepSeek-V4-Flash","max_output_tokens":16,"stream":true,"input":"hello"}'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    folder: Path = tmp_path_factory.mktemp("models")
    return MemoryLab(write(folder, {**files(), NAME: MODEL.format(name=NAME)}))


def post(lab: MemoryLab, body: str | dict[str, Any], fault: str | None = None, path: str = "") -> Received:
    raw = body if isinstance(body, str) else json.dumps(body)
    headers = {} if fault is None else {"x-inference-lab-fault": fault}
    return lab.send(request("POST", f"/v1/responses{path}", raw.encode(), headers=headers))


def body_of(got: Received) -> bytes:
    return got.chunked.body if got.headers.get("transfer-encoding") == "chunked" else got.after_head


def test_a_healthy_stream_is_these_bytes(lab: MemoryLab) -> None:
    assert body_of(post(lab, HELLO, "ok;after_chunks=2")).decode() == HEALTHY


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("clean_eof;after_chunks=2", lambda digits: opening(digits) + two_words(digits)),
        ("no_done;after_chunks=2", lambda digits: opening(digits) + two_words(digits) + closings(digits)),
        (
            "error_envelope_200;after_chunks=0",
            lambda digits: (
                opening(digits)
                + event(
                    "error",
                    '"sequence_number":2,"error":{"type":"server_error","code":"server_error",'
                    '"message":"Provider returned error","param":null}',
                )
            ),
        ),
        (
            "error_400_in_sse;after_chunks=0",
            lambda digits: (
                opening(digits)
                + event(
                    "response.failed",
                    '"response":'
                    + made(
                        digits,
                        "failed",
                        error='{"code":"context_length_exceeded",'
                        '"message":"Your input exceeds the context window of this model."}',
                    )
                    + ',"sequence_number":2',
                )
            ),
        ),
        (
            "cancelled_499;after_chunks=0",
            lambda digits: (
                opening(digits)
                + event("response.failed", f'"response":{made(digits, "failed")},"sequence_number":2')
                + "data: [DONE]\n\n"
            ),
        ),
        (
            "ok;after_chunks=2;done=twice",
            lambda digits: opening(digits) + two_words(digits) + closings(digits) + 2 * completed(digits),
        ),
    ],
)
def test_a_death_is_these_bytes(lab: MemoryLab, fault: str, expected: Any) -> None:
    body = body_of(post(lab, HELLO, fault)).decode()
    found = re.search(r"resp_(\w+)", body)
    assert found is not None
    assert body == expected(found[1])


def test_both_first_events_are_the_role_frame(lab: MemoryLab) -> None:
    body = body_of(post(lab, HELLO, "ok;at=role;done=false;close=fin")).decode()
    assert re.findall("event: (.*)", body) == ["response.created", "response.in_progress"]


def test_reasoning_is_an_item_of_its_own_or_a_summary(lab: MemoryLab) -> None:
    asked = {"model": "lab-thinks", "max_output_tokens": 30, "stream": True, "input": "hello"}
    for more, kind in (
        ({}, "reasoning_text"),
        ({"reasoning": {"summary": "auto"}}, "reasoning_summary_text"),
    ):
        body = body_of(post(lab, asked | more))
        assert body.count(f"event: response.{kind}.delta".encode()) == 8
        verdict = verify(body)
        assert (verdict.outcome, verdict.findings) == ("whole", ())
        assert verdict.words["reasoning"] == 8
    quiet = body_of(post(lab, asked | {"reasoning": {"effort": "none"}}))
    assert b"reasoning_text" not in quiet


def test_encrypted_content_gives_the_same_prompt(lab: MemoryLab) -> None:
    asked = {"model": "lab-thinks", "max_output_tokens": 30, "input": "hello"}
    output = json.loads(body_of(post(lab, asked | {"include": ["reasoning.encrypted_content"]})))["output"]
    secret = {"type": "reasoning", "summary": [], "encrypted_content": output[0]["encrypted_content"]}
    user, more = {"role": "user", "content": "hello"}, {"role": "user", "content": "more"}
    counts = [
        json.loads(
            body_of(post(lab, asked | {"input": [user, first, output[1], more]}, path="/input_tokens"))
        )
        for first in (secret, output[0])
    ]
    assert counts[0] == counts[1]
    assert counts[0]["object"] == "response.input_tokens"


@pytest.mark.parametrize("model", ["lab", "lab-thinks", "hermes", "dsv4-thinks"])
@pytest.mark.parametrize(
    ("items", "chats"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        (
            [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c", "output": "r"},
                {"role": "user", "content": "go on"},
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
                {"role": "assistant", "content": "xx0000 xx00", "status": "in_progress"},
            ],
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "xx0000 xx00"}],
        ),
    ],
)
def test_a_conversation_has_the_prompt_and_the_words_that_it_has_on_chat(
    lab: MemoryLab, model: str, items: Any, chats: list[dict[str, Any]]
) -> None:
    here = json.loads(
        body_of(post(lab, {"model": model, "max_output_tokens": 30, "input": items, "instructions": "s"}))
    )
    asked = {"model": model, "max_tokens": 30, "messages": [{"role": "system", "content": "s"}, *chats]}
    there = json.loads(
        lab.send(request("POST", "/v1/chat/completions", json.dumps(asked).encode())).after_head
    )
    said = there["choices"][0]["message"]
    texts = {
        item["type"]: "".join(part["text"] for part in item["content"])
        for item in here["output"]
        if item["type"] != "function_call"
    }
    assert texts.get("message", "") == (said["content"] or "")
    assert texts.get("reasoning", "") == said.get("reasoning_content", "")
    assert here["usage"]["input_tokens"] == there["usage"]["prompt_tokens"]
    assert here["usage"]["output_tokens"] == there["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"input": None}, 400, "invalid_request"),
        ({"input": []}, 400, "invalid_request"),
        ({"input": [{"role": "tool", "content": "x"}]}, 400, "invalid_request"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, 400, "invalid_request"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, 404, "not_found"),
        ({"max_output_tokens": 0}, 400, "invalid_request"),
        ({"background": True}, 400, "unsupported_parameter"),
        ({"previous_response_id": "resp_0"}, 400, "previous_response_not_found"),
        ({"conversation": {"id": "conv_0"}}, 404, "not_found"),
        ({"tools": [{"type": "function"}]}, 400, "invalid_request"),
        ({"model": "nobody"}, 404, "model_not_found"),
    ],
)
def test_what_cannot_be_done_is_refused(
    lab: MemoryLab, change: dict[str, Any], status: int, code: str
) -> None:
    asked = {"model": "lab", "max_output_tokens": 5, "input": "hello"} | change
    got = post(lab, {key: value for key, value in asked.items() if value is not None})
    assert (got.status, json.loads(got.after_head)["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "setting",
    [
        "text_in_finish=true",
        "sequence=choices_null",
        "sequence=double_finish",
        "sequence=after_finish",
        "usage=every_chunk",
        "error=openrouter",
        "dialect=vllm",
        "strict_params=true",
    ],
)
def test_what_this_api_has_no_place_for_is_refused(lab: MemoryLab, setting: str) -> None:
    got = post(lab, HELLO, f"ok;after_chunks=1;{setting}")
    assert got.status == 400
    assert setting in json.loads(got.after_head)["error"]["message"]


def test_an_echo_is_a_message_and_an_item_of_each_call(lab: MemoryLab) -> None:
    echo = '<<respond:{"text":"hi there","tool_calls":[{"name":"f","arguments":{"a":1}}]}>>'
    whole = json.loads(body_of(post(lab, {"model": "lab", "input": echo})))
    assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
    assert json.loads(whole["output"][1]["arguments"]) == {"a": 1}
    streamed = body_of(post(lab, {"model": "lab", "input": echo, "stream": True})).decode()
    assert re.findall('"sequence_number":([0-9]+)', streamed) == [
        str(n) for n in range(streamed.count("event:"))
    ]


def test_the_legs_of_one_answer_come_to_responses_and_to_chat(lab: MemoryLab) -> None:
    legs = "<<fault:cut_between_frames;after_chunks=5, cut_mid_frame;after_chunks=3, reset;after_chunks=2>>"
    question = {"role": "user", "content": f"hello {legs}"}
    said = ""
    for number, path in enumerate(("responses", "chat/completions", "responses", "messages")):
        answer = {"role": "assistant", "content": said}
        asked: dict[str, Any] = {"model": "lab", "stream": True}
        if path == "responses":
            asked["input"] = [question, *([answer | {"status": "incomplete"}] if said else [])]
        else:
            asked |= {"max_tokens": 99, "messages": [question, answer]}
        got = lab.send(request("POST", f"/v1/{path}", json.dumps(asked).encode()))
        body = re.sub(
            "(?s)event: response.[a-z_.]*(?:done|completed|added|created|progress)\n.*?\n\n",
            "",
            got.chunked.body.decode(),
        )
        said += "".join(re.findall(r'"(?:text|content|delta)":"([^"]+)"', body))
        assert len(said.split()) == (5, 8, 10, WORDS)[number]
    assert [int(word[2:6]) for word in said.split()] == list(range(WORDS))
    assert len({word[:2] for word in said.split()}) == 1


DIFFERENT = {
    "no_done": ("wrong", "silent_truncation"),
    "done_without_finish": ("wrong", "unfinished_item"),
    "abort_finish": ("wrong", "silent_truncation"),
    "cut_after_finish": ("honest prefix", None),
}
"""Modes that are another death here, since one event is finish, usage and end."""


@pytest.mark.parametrize("mode", [mode for mode in MODES if not mode.startswith("echo_")])
def test_a_mode_is_judged_as_it_is_on_chat(lab: MemoryLab, mode: str) -> None:
    chat = {
        "model": NAME,
        "max_tokens": 16,
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    fault = {"ok": "ok;after_chunks=2", "crawl": "crawl;rest_delay_ms=20"}.get(mode, mode)
    headers = {"x-inference-lab-fault": fault}
    here, there = (
        verify(
            body_of(got),
            status=got.status,
            stream=True,
            ended="broken" if "transfer-encoding" in got.headers and not got.chunked.terminated else "clean",
        )
        for got in (
            lab.send(request("POST", path, body, headers=headers))
            for path, body in (
                ("/v1/responses", HELLO.encode()),
                (
                    "/v1/chat/completions",
                    json.dumps(chat | {"stream_options": {"include_usage": True}}).encode(),
                ),
            )
        )
    )
    outcome, finding = DIFFERENT.get(mode, (there.outcome, None))
    assert here.outcome == outcome
    if mode not in DIFFERENT:
        assert [found.kind for found in here.findings] == [found.kind for found in there.findings]
    elif finding is not None:
        assert finding in {found.kind.value for found in here.findings}


def test_no_prefix_of_an_honest_stream_is_wrong(lab: MemoryLab) -> None:
    asked = {"model": "lab-thinks", "max_output_tokens": 14, "stream": True, "input": "hello"}
    for data in (HEALTHY.encode(), body_of(post(lab, asked))):
        assert verify(data).outcome == "whole"
        for size in range(len(data)):
            verdict = verify(data[:size], ended="broken")
            assert verdict.outcome != "wrong", (data[:size][-200:], verdict.findings)


WRONG = {
    "another name": ("event_name", HEALTHY.replace("event: response.in_progress", "event: response.created")),
    "not created first": ("event_order", HEALTHY.partition("\n\n")[2]),
    "created twice": ("event_order", opening(DIGITS) + HEALTHY),
    "after the end": ("event_order", HEALTHY + closings(DIGITS)),
    "a number lost": ("sequence_number", HEALTHY.replace('"sequence_number":5', '"sequence_number":6', 1)),
    "no number": ("sequence_number", HEALTHY.replace(',"sequence_number":5', "", 1)),
    "another index": ("item_index", HEALTHY.replace('"output_index":0', '"output_index":1')),
    "never closed": ("unfinished_item", HEALTHY.replace(closings(DIGITS), "")),
    "a shorter text": (
        "done_text",
        HEALTHY.replace('"text":"dx0000 dx0001"}\n\n', '"text":"dx0000"}\n\n', 1),
    ),
    "an empty output": (
        "output_items",
        HEALTHY.replace(f'"output":[{message(DIGITS, "completed", "dx0000 dx0001")}]', '"output":[]'),
    ),
    "a word lost": ("gap", HEALTHY.replace('"delta":" dx0001"', '"delta":" dx0002"')),
    "another answer": ("id_changed", HEALTHY.replace(completed(DIGITS), completed("0" * 24))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_lie_about_a_response_is_found(name: str) -> None:
    finding, stream = WRONG[name]
    assert stream != HEALTHY
    verdict = verify(stream.encode())
    assert verdict.outcome == "wrong"
    assert finding in {found.kind.value for found in verdict.findings}
