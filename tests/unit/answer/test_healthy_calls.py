"""The calls of a healthy answer: where it must call a tool, how many it makes, and its legs from any character."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.answer import healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.answer.writer import CALL_WORDS, Calls, Plan
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.completions.writer import CompletionsWriter
from inference_lab.core.apis.contract import Completion, Counts, StreamWriter
from inference_lab.core.prompts.messages import Message, targets_of
from inference_lab.core.stream.events import Await, Frame, single
from inference_lab.core.stream.healthy import healthy_script
from inference_lab.core.tokens import encode

REASONING = 9
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {key: {"type": "string"}}}}}
    for name, key in (("find_it", "q"), ("find_more", "what"), ("söt", "k"))
]
TARGETS = tuple(targets_of(TOOLS))
REQUIRED = {"required": TARGETS, "named": TARGETS[1:2], "not ASCII": TARGETS[2:]}
ASKED = [Message("user", "hello")]
STYLES = pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
THINKING = pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
COUNTS = pytest.mark.parametrize("count", [1, 3])


def prompt_of(template: ChatTemplate, *, thinking: bool = False) -> str:
    return template.render(ASKED, TOOLS, thinking=thinking)


def rest(
    template: ChatTemplate,
    prompt: str,
    calls: Calls,
    *,
    thinking: bool = False,
    chat: bool = False,
    max_tokens: int | None = None,
) -> Plan:
    reasoning = REASONING if thinking else 0
    return healthy(
        template,
        locate(template, prompt, is_raw=not chat),
        reasoning_words=reasoning,
        max_tokens=max_tokens,
        calls=calls,
    )


def raw(plan: Plan) -> str:
    return "".join(piece.raw for piece in plan.pieces)


def spoken(plan: Plan) -> tuple[str, dict[int, str], dict[int, str]]:
    """A chat's reasoning, and the name and arguments of each call."""
    reasoning, names, arguments = "", {}, dict[int, str]()
    for piece in plan.pieces:
        if piece.channel == "reasoning":
            reasoning += piece.delta
        elif piece.name is not None:
            names[piece.call] = piece.name
        else:
            arguments[piece.call] = arguments.get(piece.call, "") + piece.delta
    return reasoning, names, arguments


@STYLES
@THINKING
@COUNTS
@pytest.mark.parametrize("required", REQUIRED.values(), ids=REQUIRED)
def test_an_answer_that_must_call_a_tool_is_its_calls(
    template: ChatTemplate, thinking: bool, count: int, required: tuple[object, ...]
) -> None:
    prompt = prompt_of(template, thinking=thinking)
    calls = Calls(count, tuple(target for target in TARGETS if target in required))
    plan = rest(template, prompt, calls, thinking=thinking, chat=True)
    reasoning, names, arguments = spoken(plan)
    tag = locate(template, prompt).tag
    called = calls.required[0]
    said = "".join(f"{' ' * bool(i)}{tag}{i:04d}{'é' * (i % 8 == 7)}" for i in range(CALL_WORDS))
    assert names == dict.fromkeys(range(count), called.name)
    assert arguments == dict.fromkeys(range(count), f'{{"{called.key}": "{said}"}}')
    assert reasoning.count(" ") == (REASONING - 1 if thinking else 0)
    assert plan.finish == "tool_calls"
    on_completions = rest(template, prompt, calls, thinking=thinking)
    assert (raw(on_completions), on_completions.finish) == (raw(plan), "stop")
    assert plan.completion_tokens == len(encode(raw(plan))) == on_completions.completion_tokens
    assert plan.pieces.words == count * CALL_WORDS + REASONING * thinking


@STYLES
@THINKING
@COUNTS
@pytest.mark.parametrize("required", REQUIRED.values(), ids=REQUIRED)
def test_calls_go_on_at_the_exact_character(
    template: ChatTemplate, thinking: bool, count: int, required: tuple[object, ...]
) -> None:
    """Once a call has its name, a leg that does not say `tool_choice` goes on in the same way."""
    prompt = prompt_of(template, thinking=thinking)
    calls = Calls(count, tuple(target for target in TARGETS if target in required))
    whole = raw(rest(template, prompt, calls, thinking=thinking))
    named = whole.index(calls.required[0].name) + len(calls.required[0].name)
    for cut in range(len(whole) + 1):
        position = locate(template, prompt + whole[:cut])
        if position.trapped:
            continue
        for asked in (calls, Calls(count))[: 1 + (cut >= named)]:
            plan = rest(template, prompt + whole[:cut], asked, thinking=thinking)
            assert whole[:cut] + raw(plan) == whole
            assert (plan.finish, plan.completion_tokens) == (
                "stop",
                sum(len(encode(piece.raw)) for piece in plan.pieces),
            )


@STYLES
@THINKING
@COUNTS
def test_a_leg_after_any_piece_adds_up_to_the_whole(
    template: ChatTemplate, thinking: bool, count: int
) -> None:
    prompt = prompt_of(template, thinking=thinking)
    calls = Calls(count, TARGETS)
    whole = rest(template, prompt, calls, thinking=thinking)
    for said in accumulate(piece.raw for piece in whole.pieces):
        leg = rest(template, prompt + said, calls, thinking=thinking)
        assert len(encode(said)) + leg.completion_tokens == whole.completion_tokens


@STYLES
def test_words_that_were_said_come_first_then_the_call(template: ChatTemplate) -> None:
    """A leg behind content, a torn word included, that must call a tool."""
    prompt = prompt_of(template)
    for said in ("ab0000 ab0001", "ab0000 ab00"):
        plan = rest(template, prompt + said, Calls(1, TARGETS), chat=True)
        assert spoken(plan)[1] == {0: "find_it"}
        channels = [piece.channel for piece in plan.pieces]
        assert channels == ["text"] * (said != "ab0000 ab0001") + ["call"] * (CALL_WORDS + 1)


@STYLES
@COUNTS
def test_a_prompt_without_a_marker_goes_on_from_the_first_whole_word(
    template: ChatTemplate, count: int
) -> None:
    prompt = "Once upon a time"
    calls = Calls(count, TARGETS)
    whole = raw(rest(template, prompt, calls))
    first = whole.index("0000") + 4
    for cut in range(first, len(whole) + 1):
        if not locate(template, prompt + whole[:cut]).trapped:
            assert whole[:cut] + raw(rest(template, prompt + whole[:cut], calls)) == whole


def message(calls: list[tuple[str, str]], reasoning: str = "") -> Message:
    told = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return Message("assistant", None, reasoning_content=reasoning or None, tool_calls=told)


@STYLES
@THINKING
@COUNTS
def test_a_chat_s_calls_go_on_at_the_exact_character_of_their_arguments(
    template: ChatTemplate, thinking: bool, count: int
) -> None:
    """From a prefill with the calls so far. In `dsv4` arguments can be left open only inside a string."""
    calls = Calls(count, TARGETS[1:2])
    whole = rest(template, prompt_of(template, thinking=thinking), calls, thinking=thinking, chat=True)
    reasoning, names, arguments = spoken(whole)
    start = arguments[0].index(': "') + 3
    for number in range(count):
        due = arguments[number]
        before = [(names[place], arguments[place]) for place in range(number)]
        for cut in (*((0,) if template.json_key_close else range(start)), *range(start, len(due) + 1)):
            last = message([*before, (names[number], due[:cut])], reasoning)
            prompt = template.render([*ASKED, last], TOOLS, thinking=thinking)
            for asked in (calls, Calls(count)):
                plan = rest(template, prompt, asked, thinking=thinking, chat=True)
                _, later_names, later = spoken(plan)
                assert due[:cut] + later.pop(number, "") == due
                assert later_names == {place: names[place] for place in range(number + 1, count)}
                assert later == {place: arguments[place] for place in range(number + 1, count)}
                assert plan.finish == "tool_calls"


@STYLES
def test_fewer_calls_than_there_are_already_are_only_brought_to_their_end(template: ChatTemplate) -> None:
    prompt = prompt_of(template)
    whole = raw(rest(template, prompt, Calls(3, TARGETS)))
    second = whole.index("find_it", whole.index("find_it") + 1)
    cut = whole.index("0009", second)
    plan = rest(template, prompt + whole[:cut], Calls(1))
    told = raw(plan)
    assert whole[:cut] + told == raw(rest(template, prompt, Calls(2, TARGETS)))
    assert raw(rest(template, prompt + whole[:cut] + told, Calls(2, TARGETS))) == ""


@STYLES
@THINKING
@COUNTS
@pytest.mark.parametrize("chat", [False, True])
def test_a_limit_cuts_calls_anywhere_with_length(
    template: ChatTemplate, thinking: bool, count: int, chat: bool
) -> None:
    prompt = prompt_of(template, thinking=thinking)
    calls = Calls(count, TARGETS)
    whole = rest(template, prompt, calls, thinking=thinking, chat=chat)
    text = raw(whole)
    for limit in range(1, whole.completion_tokens + 2):
        plan = rest(template, prompt, calls, thinking=thinking, chat=chat, max_tokens=limit)
        said = raw(plan) + plan.unseen
        assert text.startswith(said)
        assert 0 < plan.completion_tokens == len(encode(said)) <= limit
        assert plan.finish == ("length" if limit < whole.completion_tokens else whole.finish)
        leg = rest(template, prompt + said, calls, thinking=thinking)
        assert locate(template, prompt + said).trapped or said + raw(leg) == text


PIECES = (
    '{"name": "|find_it|", "arguments": {"q": "|ab0000| ab0001|"}}|}|"|<think>|</think>|AB0000|x| '
    '|<tool_call>\n|\n</tool_call>|\n|\n\n<\uff5cDSML\uff5ctool_calls>\n|<\uff5cDSML\uff5cinvoke name="|">\n'
    '|<\uff5cDSML\uff5cparameter name="q" string="true">|</\uff5cDSML\uff5cparameter>\n'
    "|</\uff5cDSML\uff5cinvoke>\n|</\uff5cDSML\uff5ctool_calls>"
)


@given(
    st.sampled_from(["", "<|assistant|>", "<\uff5cAssistant\uff5c></think>", "<|im_start|>assistant\n"]),
    st.lists(st.sampled_from(PIECES.split("|")), max_size=9).map("".join),
    st.integers(1, 3),
    st.booleans(),
    st.none() | st.integers(1, 30),
)
def test_any_region_is_answered_with_calls(
    marker: str, region: str, count: int, chat: bool, limit: int | None
) -> None:
    for template in FORMATS.values():
        for calls in (Calls(count), Calls(count, TARGETS)):
            plan = rest(template, marker + region, calls, chat=chat, max_tokens=limit)
            told = sum(piece.token_count for piece in plan.pieces) + plan.unseen_tokens
            assert plan.completion_tokens == told
            assert all(piece.token_count == len(encode(piece.raw)) for piece in plan.pieces)
            if (
                calls.required
                and plan.finish != "length"
                and chat
                and not locate(template, marker + region).trapped
            ):
                assert plan.finish == "tool_calls"


def waits(plan: Plan, *, chat: bool) -> tuple[list[tuple[int, bytes]], bytes | None]:
    """Each frame of the healthy script and the tokens that it has waited for; and the frame that opens it."""
    completion = Completion("chatcmpl-1", 1, "m")
    shape: StreamWriter = ChatWriter(completion) if chat else CompletionsWriter(completion)
    events = healthy_script(
        shape,
        plan.pieces,
        plan.finish,
        lambda: Counts(1, plan.completion_tokens),
        include_usage=True,
        unseen_tokens=plan.unseen_tokens,
    )
    tokens, frames = 0, []
    for event in single(events):
        if isinstance(event, Await):
            tokens += event.tokens
        elif isinstance(event, Frame):
            frames.append((tokens, event.data))
    return frames, next((frame.data for frame in shape.opening()), None)


@STYLES
@THINKING
@COUNTS
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("limit", [None, 1, 2, 5, 40])
def test_each_frame_waits_for_its_tokens(
    template: ChatTemplate, thinking: bool, count: int, chat: bool, limit: int | None
) -> None:
    """The role frame for the first of them, the finish for all; so the engine's pace is that of the raw text."""
    prompt = prompt_of(template, thinking=thinking)
    plan = rest(template, prompt, Calls(count, TARGETS), thinking=thinking, chat=chat, max_tokens=limit)
    frames, opening = waits(plan, chat=chat)
    assert [waited for waited, data in frames if data == opening] == [1] * chat
    content = frames[chat:-3]
    assert [waited for waited, _ in content] == list(accumulate(piece.token_count for piece in plan.pieces))
    assert [waited for waited, _ in frames[-3:]] == [plan.completion_tokens] * 3
