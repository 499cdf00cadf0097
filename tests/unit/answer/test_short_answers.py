"""No answer is empty for want of tokens: what does not cover the markup in front has that markup's first ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.answer import healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.answer.writer import Calls, Plan
from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.oracle import verify
from inference_lab.core.prompts.messages import CallTarget, Message
from inference_lab.core.tokens import decode, encode
from tests.support.clients.resume_client import CHAT, COMPLETIONS, read
from tests.support.lab import MODEL, MemoryLab, files, write
from tests.support.resuming import TOOLS, Case, events, hear

ASKED = [Message("user", "hello")]
REASONING = 3
SHAPES = st.tuples(st.sampled_from(list(FORMATS.values())), st.booleans(), st.sampled_from([None, 1, 2]))
ENDPOINTS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
EVERY_MODEL = pytest.mark.parametrize("model", files())


def plan_of(
    template: ChatTemplate,
    prompt: str,
    calls: int | None,
    *,
    thinking: bool,
    chat: bool = False,
    max_tokens: int | None = None,
    context_left: int | None = None,
) -> Plan:
    required = () if calls is None else (CallTarget("find_it", "city"),)
    return healthy(
        template,
        locate(template, prompt, is_raw=not chat),
        reasoning_words=REASONING if thinking else 0,
        answer_words=9,
        max_tokens=max_tokens,
        context_left=context_left,
        calls=Calls(calls or 1, required),
    )


def raw(plan: Plan) -> str:
    return "".join(piece.raw for piece in plan.pieces)


@given(SHAPES, st.integers(1, 24), st.booleans(), st.floats(0, 1), st.booleans())
def test_so_many_tokens_are_so_many_ids_of_the_whole(
    shape: tuple[ChatTemplate, bool, int | None], limit: int, chat: bool, place: float, by_context: bool
) -> None:
    """From anywhere in an answer, by either limit; and the next leg goes on behind them."""
    template, thinking, calls = shape
    prompt = template.render(ASKED, thinking=thinking)
    whole = raw(plan_of(template, prompt, calls, thinking=thinking))
    said = whole[: int(place * len(whole))]
    if locate(template, prompt + said).trapped:
        return
    limits: dict[str, Any] = {"context_left" if by_context else "max_tokens": limit}
    plan = plan_of(template, prompt + said, calls, thinking=thinking, chat=chat, **limits)
    told = raw(plan) + plan.unseen
    rest = plan_of(template, prompt + said, calls, thinking=thinking, chat=chat)
    assert raw(rest).startswith(told)
    assert bool(told) == (said != whole)
    assert plan.completion_tokens == len(encode(told)) <= limit
    assert plan.unseen_tokens == len(encode(plan.unseen))
    assert not (plan.unseen and list(plan.pieces))
    if plan.finish == "length":
        first = next(iter(rest.pieces))
        assert plan.completion_tokens == limit or first.token_count <= limit
    after = prompt + said + told
    if not locate(template, after).trapped:
        leg = plan_of(template, after, calls, thinking=thinking)
        assert said + told + raw(leg) == whole


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("calls", [None, 1])
def test_a_chat_tells_nothing_of_markup_alone(template: ChatTemplate, calls: int | None) -> None:
    prompt = template.render(ASKED, thinking=True) + (
        "" if template.thinking_mark else template.reasoning_open
    )
    ended = f"{prompt}AB0000 AB0001 AB0002"
    whole = plan_of(template, ended, calls, thinking=True, chat=True)
    first = next(iter(whole.pieces))
    for limit in range(1, first.token_count):
        plan = plan_of(template, ended, calls, thinking=True, chat=True, max_tokens=limit)
        assert (list(plan.pieces), plan.finish) == ([], "length")
        assert plan.unseen == decode(encode(first.raw)[:limit])
        (only,) = plan_of(template, ended, calls, thinking=True, max_tokens=limit).pieces
        assert (only.raw, only.words, only.token_count) == (plan.unseen, 0, limit)


@pytest.mark.parametrize("chat", [False, True])
def test_a_word_is_told_though_what_closes_it_does_not_fit(chat: bool) -> None:
    for template in FORMATS.values():
        prompt = template.render(ASKED)
        whole = raw(plan_of(template, prompt, 1, thinking=False))
        said = whole[: whole.index("0014") + 4]
        (only,) = plan_of(template, prompt + said, 1, thinking=False, chat=chat, max_tokens=1).pieces
        assert (only.raw[-5:], only.delta, only.words) == ("0015é", only.raw, 1)


@EVERY_MODEL
@ENDPOINTS
@pytest.mark.parametrize("choice", ["none", "required"])
def test_no_limit_makes_an_answer_empty(lab: MemoryLab, model: str, path: str, choice: str) -> None:
    case = Case(lab, model, tools=TOOLS)
    prompt = {"prompt": case.rendered()["token_ids"]} if path == COMPLETIONS else case.chat()
    body = {"model": model, "tools": TOOLS, "tool_choice": choice, "return_token_ids": True, **prompt}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for limit in range(1, 25):
        stream = lab.exchange(path, {**body, **usage, "max_tokens": limit}).body
        heard = hear(stream)
        answer = lab.post(path, {**body, "max_tokens": limit})
        choice_ids = answer["choices"][0]["token_ids"]
        assert (heard.finish, answer["choices"][0]["finish_reason"]) == ("length", "length")
        assert heard.usage == answer["usage"]
        assert 1 <= heard.usage["completion_tokens"] == len(choice_ids) <= limit
        frames = [choice for frame in map(read, events(stream)) for choice in frame.get("choices", ())]
        streamed_ids = [number for choice in frames for number in choice.get("token_ids", ())]
        assert streamed_ids == (choice_ids if streamed_ids or path == COMPLETIONS else [])
        assert all(text or kind == "call" for kind, text in heard.pieces)
        told = {"ended": "clean", "max_tokens": limit, "status": 200, "usage": "asked"}
        assert verify(stream, stream=True, **told).outcome == "whole"  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", DIALECTS)
@ENDPOINTS
def test_in_every_dialect(tmp_path: Any, dialect: str, path: str) -> None:
    name = f"{dialect}-thinks"
    text = f'format = "hermes"\ndialect = "{dialect}"\n{MODEL.format(name=name)}[answer]\nreasoning = 3\n'
    lab = MemoryLab(write(tmp_path, {name: text}))
    prompt = (
        {"prompt": "hello"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hello"}]}
    )
    body = {"model": name, "stream": True, "stream_options": {"include_usage": True}, **prompt}
    for limit in (1, 2, 3, 4):
        stream = lab.exchange(path, {**body, "max_tokens": limit}).body
        verdict = verify(stream, ended="clean", max_tokens=limit)
        assert (verdict.outcome, verdict.completion_tokens) == ("whole", limit)
