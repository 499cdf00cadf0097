"""`tool_choice` over HTTP: a healthy answer that must call a tool, on both endpoints, whole and leg by leg."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.answer.writer import CALL_WORDS
from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.oracle import verify
from tests.support.clients.resume_client import CHAT, COMPLETIONS, read
from tests.support.lab import MODEL, REASONING, MemoryLab, files, write
from tests.support.resuming import TOOLS, Case, events

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = (1, 2, 16)
MODELS = tuple(files())
NAMED = {"type": "function", "function": {"name": "say_it"}}
BOTH = [*TOOLS, {"type": "function", "function": {"name": "say_it"}}]
ENDPOINTS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, MemoryLab]:
    """Servers of answers with so many calls."""
    return {
        count: MemoryLab(write(tmp_path_factory.mktemp(f"calls{count}"), files(f"calls = {count}\n")))
        for count in COUNTS
    }


def asked(case: Case, path: str, raw: str = "", **more: Any) -> dict[str, Any]:
    """A body that must call a tool, unless `more` says otherwise; on completions after so much of the answer."""
    prompt = {"prompt": case.rendered(raw)["token_ids"]} if path == COMPLETIONS else case.chat()
    usage = {"stream_options": {"include_usage": True}}
    body = {"model": case.model, "stream": True, "tools": case.tools, "tool_choice": "required", **usage}
    return body | prompt | more


def words_of(case: Case, count: int) -> int:
    return count * CALL_WORDS + REASONING * case.thinking


class Told:
    """What a chat's deltas say."""

    def __init__(self, body: bytes) -> None:
        self.reasoning = self.content = ""
        self.calls: dict[int, dict[str, str]] = {}
        self.finish = ""
        self.usage: dict[str, int] = {}
        for frame in map(read, events(body)):
            self.usage = frame.get("usage") or self.usage
            for choice in frame.get("choices", ()):
                self.finish = choice["finish_reason"] or self.finish
                self._delta(choice["delta"])

    def _delta(self, delta: dict[str, Any]) -> None:
        self.reasoning += delta.get("reasoning_content", "")
        self.content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            known = self.calls.setdefault(call["index"], {"arguments": ""})
            function = call["function"]
            known["arguments"] += function["arguments"]
            if "id" in call:
                assert "id" not in known
                known |= {"id": call["id"], "name": function["name"]}

    def message(self) -> dict[str, Any]:
        """A prefill of it."""
        calls = [
            {"id": call["id"], "type": "function", "function": {k: call[k] for k in ("name", "arguments")}}
            for call in self.calls.values()
        ]
        told = {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}
        return told | ({"tool_calls": calls} if calls else {})


def raw_of(body: bytes) -> list[str]:
    """The texts of a completions stream."""
    texts = [choice["text"] for frame in map(read, events(body)) for choice in frame.get("choices", ())]
    return [text for text in texts if text]


@EVERY_MODEL
@ENDPOINTS
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("choice", "name"), [("required", "find_it"), (NAMED, "say_it")])
def test_the_answer_is_the_calls_and_whole(
    labs: dict[int, MemoryLab], model: str, path: str, count: int, choice: object, name: str
) -> None:
    case = Case(labs[count], model, tools=BOTH)
    body = asked(case, path, tool_choice=choice)
    streamed = labs[count].exchange(path, body).body
    whole = labs[count].exchange(path, body | {"stream": False})
    known = {"tokens": words_of(case, count), "finish": "tool_calls", "usage": "asked", "ended": "clean"}
    for got, is_stream in ((streamed, True), (whole.body, False)):
        verdict = verify(got, status=200, stream=is_stream, **known)  # type: ignore[arg-type]
        assert (verdict.outcome, verdict.findings) == ("whole", ())
    answer = whole.json["choices"][0]
    if path == COMPLETIONS:
        text = answer["text"]
        assert text == "".join(raw_of(streamed))
        assert (text.count(name), answer["finish_reason"]) == (count, "stop")
        return
    told = Told(streamed)
    assert list(told.calls) == list(range(count))
    assert {call["name"] for call in told.calls.values()} == {name}
    assert len({call["id"] for call in told.calls.values()}) == count
    assert (told.finish, told.content, told.usage) == ("tool_calls", "", whole.json["usage"])
    message = answer["message"]
    assert (message["content"], answer["finish_reason"]) == (None, "tool_calls")
    assert message.get("reasoning_content", "") == told.reasoning
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": call["name"], "arguments": call["arguments"]} for call in told.calls.values()
    ]
    assert [call["id"].partition("_")[2][24:] for call in message["tool_calls"]] == [
        f"_{number}" if number else "" for number in range(count)
    ]


@EVERY_MODEL
@ENDPOINTS
def test_an_answer_cut_by_max_tokens_anywhere_is_whole_for_its_length(
    labs: dict[int, MemoryLab], model: str, path: str
) -> None:
    case = Case(labs[2], model, tools=TOOLS)
    total = labs[2].post(path, asked(case, path, stream=False))["usage"]["completion_tokens"]
    for limit in range(1, total + 2):
        body = asked(case, path, max_tokens=limit)
        verdict = verify(labs[2].exchange(path, body).body, ended="clean", max_tokens=limit)
        assert (verdict.outcome, verdict.findings) == ("whole", ())
        assert 0 < (verdict.completion_tokens or 0) <= limit
        if limit >= total:
            assert verdict.finish == ("stop" if path == COMPLETIONS else "tool_calls")
        else:
            assert verdict.finish == "length"


@pytest.mark.parametrize("dialect", DIALECTS)
@ENDPOINTS
def test_in_every_dialect(tmp_path: Path, dialect: str, path: str) -> None:
    text = f'format = "dsv4"\ndialect = "{dialect}"\n{MODEL.format(name="dsv4")}[answer]\ncalls = 3\n'
    lab = MemoryLab(write(tmp_path, {"dsv4": text}))
    body = lab.exchange(path, asked(Case(lab, "dsv4", tools=TOOLS), path)).body
    verdict = verify(body, tokens=3 * CALL_WORDS, ended="clean", finish="tool_calls", usage="asked")
    assert (verdict.outcome, verdict.findings) == ("whole", ())


@EVERY_MODEL
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("repeats", [True, False], ids=["tool_choice", "none on legs"])
def test_a_raw_leg_after_any_frame_is_the_rest(
    labs: dict[int, MemoryLab], model: str, count: int, repeats: bool
) -> None:
    """A gateway's leg need not say `tool_choice` once a call has its name."""
    case = Case(labs[count], model, tools=TOOLS)
    pieces = raw_of(labs[count].exchange(COMPLETIONS, asked(case, COMPLETIONS)).body)
    whole = "".join(pieces)
    total = labs[count].post(COMPLETIONS, asked(case, COMPLETIONS, stream=False))["usage"]
    first_call = next(place for place, piece in enumerate(pieces) if "find_it" in piece)
    for k in range(0 if repeats else first_call + 1, len(pieces) + 1):
        said = "".join(pieces[:k])
        told = case.rendered(said)
        for prompt in (told["token_ids"], told["rendered"]):
            body = asked(case, COMPLETIONS, said, prompt=prompt, stream=False)
            if not repeats:
                body = {key: value for key, value in body.items() if key not in {"tools", "tool_choice"}}
            answer = labs[count].post(COMPLETIONS, body)
            assert said + answer["choices"][0]["text"] == whole
            assert answer["choices"][0]["finish_reason"] == "stop"
            usage = answer["usage"]
            left = usage["completion_tokens"] + told["continuation_tokens"]
            assert (left, usage["total_tokens"]) == (total["completion_tokens"], total["total_tokens"])


@EVERY_MODEL
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("repeats", [True, False], ids=["tool_choice", "none on legs"])
def test_a_chat_leg_after_any_frame_is_the_rest(
    labs: dict[int, MemoryLab], model: str, count: int, repeats: bool
) -> None:
    case = Case(labs[count], model, tools=TOOLS)
    body = asked(case, CHAT)
    stream = labs[count].exchange(CHAT, body).body
    whole, frames = Told(stream), events(stream)
    for k in range(1, len(frames) - 2):
        said = Told(b"".join(frames[:k]))
        if not repeats and not said.calls:
            continue
        for own in ({"add_generation_prompt": False, "continue_final_message": True}, {}):
            message = said.message()
            messages = [*case.messages, message] if k > 1 else list(case.messages)
            leg_body = body | {"messages": messages} | (own if k > 1 else {})
            if not repeats:
                del leg_body["tool_choice"]
            leg = Told(labs[count].exchange(CHAT, leg_body).body)
            assert said.reasoning + leg.reasoning == whole.reasoning
            assert leg.finish == "tool_calls"
            for number, call in whole.calls.items():
                begun, rest = said.calls.get(number, {}), leg.calls.get(number, {})
                assert begun.get("arguments", "") + rest.get("arguments", "") == call["arguments"]
                assert ("id" in begun) != ("id" in rest)


@EVERY_MODEL
@pytest.mark.parametrize("choice", ["auto", "none", None, "any"])
def test_without_the_need_of_a_call_the_answer_is_text(
    labs: dict[int, MemoryLab], model: str, choice: str | None
) -> None:
    case = Case(labs[2], model, tools=TOOLS)
    for path in (CHAT, COMPLETIONS):
        body = asked(case, path, tool_choice=choice)
        plain = {key: value for key, value in body.items() if key != "tool_choice"}
        assert labs[2].exchange(path, body).body == labs[2].exchange(path, plain).body
        assert verify(labs[2].exchange(path, body).body, tokens=48, finish="stop").outcome == "whole"


@EVERY_MODEL
@ENDPOINTS
def test_parallel_tool_calls_false_is_one_call(labs: dict[int, MemoryLab], model: str, path: str) -> None:
    one, many = (Case(labs[count], model, tools=TOOLS) for count in (1, 16))
    for said in (True, False, None):
        more = {"parallel_tool_calls": said}
        got = labs[16].exchange(path, asked(many, path, **more)).body
        as_many = labs[1 if said is False else 16].exchange(path, asked(one, path)).body
        assert got == as_many


@pytest.mark.parametrize(
    "tools",
    [None, [], [{"type": "custom", "custom": {"name": "f"}}]],
    ids=["absent", "empty", "of another type"],
)
@ENDPOINTS
def test_a_call_of_nothing_is_refused(labs: dict[int, MemoryLab], path: str, tools: object) -> None:
    case = Case(labs[1], "lab")
    got = labs[1].exchange(path, asked(case, path, tools=tools))
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", "tool_choice")
    assert "a function tool" in got.error["message"]
    named = labs[1].exchange(path, asked(case, path, tools=tools, tool_choice=NAMED))
    assert (named.status, named.error["code"]) == (400, "invalid_request")
    assert "say_it" in named.error["message"]


@pytest.mark.parametrize("family", ["lab", "hermes", "dsv4"])
def test_a_raw_prompt_may_hold_the_tools(labs: dict[int, MemoryLab], family: str) -> None:
    """A gateway renders a chat's tools into the prompt, and may pass on `tool_choice` without them."""
    case = Case(labs[2], family, tools=TOOLS)
    with_tools = labs[2].exchange(COMPLETIONS, asked(case, COMPLETIONS)).body
    without = labs[2].exchange(COMPLETIONS, asked(case, COMPLETIONS, tools=None)).body
    assert raw_of(without) == raw_of(with_tools)


@EVERY_MODEL
@ENDPOINTS
@pytest.mark.parametrize(
    "fault",
    ["ok;after_chunks=3", "reset", "ok;after_chunks=4;then=rest", "mid_tool_call", "ok;answer_as=json"],
)
def test_a_fault_is_what_it_is_asked_for(
    labs: dict[int, MemoryLab], model: str, path: str, fault: str
) -> None:
    """The need of a call changes nothing but the id of the response, which is the request's own."""
    case = Case(labs[2], model, tools=TOOLS)
    header = {"x-inference-lab-fault": f"{fault};delay_ms=0", "x-request-id": "1"}
    required, absent = asked(case, path), asked(case, path)
    absent["tool_choice"] = None
    texts = []
    for body in (required, absent):
        got = labs[2].exchange(path, body, header)
        assert got.status == 200
        texts.append(re.sub(rb"(cmpl-|call_)[0-9a-f]{24}", rb"\1", got.after_head))
    assert texts[0] == texts[1]
