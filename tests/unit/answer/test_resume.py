"""Continuing an answer: what was passed on and what the leg says make the whole, wherever the cut is."""

from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.pieces import Channel
from inference_lab.core.answer.resume_point import ResumePoint, locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.answer.writer import Plan
from inference_lab.core.prompts.messages import CallTarget, Message, call_target
from inference_lab.core.tokens import encode

WORDS = 48
REASONING = 9
TOOL = {
    "type": "function",
    "function": {
        "name": "find_it",
        "parameters": {"properties": {"n": {"type": "number"}, "q": {"type": "string"}}},
    },
}
ASKED = [
    Message("user", "hello qu0000 qu0001 <|assistant|> <<fault:stall>> <\uff5cAssistant\uff5c></think>x")
]
STYLES = pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
THINKING = pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])


def rest(
    template: ChatTemplate, prompt: str, *, thinking: bool, chat: bool = False, max_tokens: int | None = None
) -> Plan:
    return healthy(
        template,
        locate(template, prompt, is_raw=not chat),
        reasoning_words=REASONING if thinking else 0,
        answer_words=WORDS,
        max_tokens=max_tokens,
    )


def raw(plan: Plan) -> str:
    return "".join(piece.raw for piece in plan.pieces)


def faulted(
    template: ChatTemplate, prompt: str, channel: Channel, count: int, call: CallTarget | None = None
) -> str:
    pieces = fault_pieces(template, locate(template, prompt, is_raw=True), channel, call=call)
    return "".join(piece.raw for piece in islice(pieces, count))


@STYLES
@THINKING
def test_a_plain_answer_goes_on_at_the_exact_character(template: ChatTemplate, thinking: bool) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    whole = raw(rest(template, prompt, thinking=thinking))
    for cut in range(len(whole) + 1):
        plan = rest(template, prompt + whole[:cut], thinking=thinking)
        assert whole[:cut] + raw(plan) == whole
        assert plan.finish == "stop"
        assert plan.completion_tokens == sum(len(encode(piece.raw)) for piece in plan.pieces)
        assert all(piece.words == 1 for piece in plan.pieces)


@STYLES
@THINKING
@pytest.mark.parametrize("other", ["[new]<|im_start|>assistant\n", "<|system|>new<|end|><|assistant|>"])
def test_a_prompt_rendered_anew_keeps_the_answer(template: ChatTemplate, thinking: bool, other: str) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    whole = raw(rest(template, prompt, thinking=thinking))
    # A reasoning block that the prompt itself opened leaves too little to be told by before its first digit.
    for cut in range(13, len(whole) + 1):
        assert whole[:cut] + raw(rest(template, other + whole[:cut], thinking=thinking)) == whole


@STYLES
@THINKING
def test_a_prompt_without_a_template_is_continued_from_the_first_whole_word(
    template: ChatTemplate, thinking: bool
) -> None:
    prompt = "Once upon a time in <think> land"
    whole = raw(rest(template, prompt, thinking=thinking))
    first = next(iter(rest(template, prompt, thinking=thinking).pieces)).raw
    for cut in range(len(first), len(whole) + 1):
        assert whole[:cut] + raw(rest(template, prompt + whole[:cut], thinking=thinking)) == whole


@STYLES
@THINKING
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_call_goes_on_at_the_exact_character(
    template: ChatTemplate,
    thinking: bool,
    tools: list[object] | None,
    before: int,
) -> None:
    prompt = template.render(ASKED, tools, thinking=thinking)
    content = faulted(template, prompt, "text", before) if before else ""
    begun = content + faulted(template, prompt + content, "call", 9, call_target(tools))
    whole = begun + raw(rest(template, prompt + begun, thinking=thinking))
    for cut in range(len(content) + 1, len(whole) + 1):
        position = locate(template, prompt + whole[:cut])
        if position.trapped:
            continue
        if position.place.channel in {"call", "end"}:
            plan = rest(template, prompt + whole[:cut], thinking=thinking)
            assert whole[:cut] + raw(plan) == whole
            assert plan.finish == "stop"
        if position.place.channel != "end":
            again = whole[:cut] + faulted(template, prompt + whole[:cut], "call", 20, call_target(tools))
            assert again.startswith(begun) or begun.startswith(again)


@STYLES
@THINKING
def test_a_faulted_leg_goes_on_in_its_channel_after_any_cut(template: ChatTemplate, thinking: bool) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    for channel in ("reasoning", "text"):
        whole = faulted(template, prompt, channel, 24)
        for cut in range(len(whole)):
            assert (whole[:cut] + faulted(template, prompt + whole[:cut], channel, 25)).startswith(whole)


@STYLES
def test_open_reasoning_is_closed_for_text_and_a_torn_word_completed_first(template: ChatTemplate) -> None:
    prompt = template.render(ASKED, thinking=True) + (
        "" if template.thinking_mark else template.reasoning_open
    )
    pieces = list(islice(fault_pieces(template, locate(template, f"{prompt}AB0000 AB00"), "text"), 3))
    assert [(piece.channel, piece.delta, piece.raw) for piece in pieces] == [
        ("reasoning", "01", "01"),
        ("text", "ab0000", f"{template.reasoning_close}ab0000"),
        ("text", " ab0001", " ab0001"),
    ]


@STYLES
def test_a_channel_that_lies_behind_is_refused(template: ChatTemplate) -> None:
    prompt = template.render(ASKED)
    called = prompt + faulted(template, prompt, "call", 3)
    for region, channel in ((prompt + "ab0000", "reasoning"), (called, "text"), (called, "reasoning")):
        with pytest.raises(ValueError, match=r"^the answer "):
            fault_pieces(template, locate(template, region, is_raw=True), channel)
    ended = called + raw(rest(template, called, thinking=False))
    with pytest.raises(ValueError, match="already complete"):
        fault_pieces(template, locate(template, ended, is_raw=True), "call")


@STYLES
def test_a_chat_hears_only_the_arguments_that_its_prefill_lacks(template: ChatTemplate) -> None:
    whole = '{"q": "ab0000 ab0001 ab0002'
    for arguments in ("", '{"q": "', '{"q": "ab0000 ab00', '{"q": "ab0000 ab0001'):
        call = {"function": {"name": "find_it", "arguments": arguments}}
        prompt = template.render([*ASKED, Message("assistant", None, tool_calls=[call])], [TOOL])
        position = locate(template, prompt)
        tag = position.tag
        pieces = list(islice(fault_pieces(template, position, "call"), 3))
        text = (arguments + "".join(piece.delta for piece in pieces)).replace(tag, "ab")
        assert text.startswith(whole)
        assert all(piece.words == 1 for piece in pieces)
        plan = rest(template, prompt, thinking=False, chat=True)
        said = arguments + "".join(piece.delta for piece in plan.pieces)
        assert msgspec.json.decode(said.replace(tag, "ab"))["q"].endswith(" ab0015é")
        assert plan.finish == "tool_calls"


def test_a_half_typed_call_in_a_chat_is_announced() -> None:
    hermes = FORMATS["hermes"]
    prompt = hermes.render([*ASKED, Message("assistant", "<tool_call>\n")], [TOOL])
    first, second = islice(rest(hermes, prompt, thinking=False, chat=True).pieces, 2)
    tag = locate(hermes, prompt).tag
    assert (first.delta, first.raw, first.words) == ("", '{"name": "find_it", "arguments": {"q": "', 0)
    assert (second.delta, second.raw) == (f'{{"q": "{tag}0000', f"{tag}0000")


@STYLES
def test_an_accent_may_be_written_as_an_escape(template: ChatTemplate) -> None:
    if template.json_key_close:
        return
    prompt = template.render(ASKED) + template.calls_open + template.open_argument("f", "k")
    said = "ab0000 ab0001 ab0002 ab0003 ab0004 ab0005 ab0006 ab0007"
    for torn in ("", "\\", "\\u", "\\u0", "\\u00", "\\u00e"):
        plan = rest(template, f"{prompt}{said}{torn}", thinking=False)
        expected = r"\u00e9"[len(torn) :] if torn else "é"
        assert [piece.raw for piece in islice(plan.pieces, 2)] == [expected, " ab0008"]
    assert next(iter(rest(template, prompt + said + r"\u00E9", thinking=False).pieces)).raw == " ab0008"


def test_the_trap_stops_the_model_at_once() -> None:
    template = FORMATS["dsv4"]
    prompt = template.render(ASKED)
    begun = prompt + faulted(template, prompt, "call", 9)
    whole = begun + raw(rest(template, begun, thinking=False))
    for tag in template.traps:
        plan = rest(template, whole[: whole.rindex(tag) + len(tag)], thinking=False)
        assert (list(plan.pieces), plan.finish, plan.completion_tokens) == ([], "stop", 1)
        lucky = rest(template, whole[: whole.rindex(tag) + len(tag) + 1], thinking=False)
        assert raw(lucky) == whole[whole.rindex(tag) + len(tag) + 1 :]


@pytest.mark.parametrize(
    ("region", "continuation"),
    [
        ("qu0000 qu0001", " qu0002"),
        ("qu0000 qu00", "01"),
        ("qu0000 ", "qu0001"),
        (" qu9999é qu1000", "0"),
        (" qu9999é qu10000", " qu10001"),
        (" qu0998 qu0999é qu1000", " qu1001"),
        (" qu0006 qu0007", "é"),
        ("qu0000 qu0015é", " qu0016"),
        ("Sure: qu0000 qu0001, and", " qu0002"),
        ("z", "?0000"),
        ("zz00", "00"),
        ("<think>ZZ0000</th", "ink>zz0000"),
    ],
)
def test_a_region_is_continued_after_its_last_word(region: str, continuation: str) -> None:
    lab = FORMATS["lab"]
    prompt = lab.render(ASKED)
    expected = continuation.replace("?", locate(lab, prompt).tag[1])
    plan = healthy(lab, locate(lab, prompt + region, is_raw=True), max_tokens=5)
    assert next(iter(plan.pieces)).raw == expected


def test_a_prefill_of_other_text_is_answered_from_word_0() -> None:
    lab = FORMATS["lab"]
    plain, prefilled = lab.render(ASKED), lab.render([*ASKED, Message("assistant", "Sure, ")])
    assert raw(rest(lab, prefilled, thinking=False)) == raw(rest(lab, plain, thinking=False))


@pytest.mark.parametrize(
    ("text", "region", "progress"),
    [
        ("hello", "", 0),
        ("hello qu00", "", 0),
        ("helloqu0000 qu0001", "qu0000 qu0001", 2),
        ("hello qu0004 qu0005 qu0006", " qu0004 qu0005 qu0006", 7),
        ("hello qu0004 qu0006", " qu0006", 7),
        ("qu0000 ab0001", " ab0001", 2),
        ("qu0000 qu0001 qu0", "qu0000 qu0001 qu0", 2),
        ("qu0000 qu0001 and more", "", 0),
        ("qu9998 qu9999é qu100", " qu9999é qu100", 10_000),
        (" qu9998 qu9999é qu1000", " qu9998 qu9999é qu1000", 10_000),
        ("a<think>QU0000 QU0001</think>qu0000", "<think>QU0000 QU0001</think>qu0000", 3),
        ("a<think>QU0000 QU0001</thi", "<think>QU0000 QU0001</thi", 2),
        ("a<think></think>qu0000", "<think></think>qu0000", 1),
        (
            'qu0000{"name": "f", "arguments": {"k": "qu0000 qu0001',
            'qu0000{"name": "f", "arguments": {"k": "qu0000 qu0001',
            3,
        ),
        ('hi{"name": "f", "arguments": {"k": "qu0000', '{"name": "f", "arguments": {"k": "qu0000', 1),
        ("<|user|>qu0000<|end|><|assistant|>", "", 0),
        ("<|assistant|>qu0000<|end|><|user|>qu0000 qu0001<|end|>", "", 0),
        ("<|user|>qu0000<|end|><|assistant|>ab0000", "ab0000", 1),
        ("<|assistant|>qu0000<|end|><|im_start|>assistant\nab0", "ab0", 0),
    ],
)
def test_the_region_is_found_with_and_without_a_marker(text: str, region: str, progress: int) -> None:
    position = locate(FORMATS["lab"], text)
    assert (position.region, position.progress, position.proper + region) == (region, progress, text)


@STYLES
@THINKING
def test_progress_counts_the_words_of_each_channel(template: ChatTemplate, thinking: bool) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    whole = faulted(template, prompt, "reasoning", 5)
    whole += faulted(template, prompt + whole, "text", 4)
    whole += faulted(template, prompt + whole, "call", 4)
    assert locate(template, prompt + whole).progress == 5 + 4 + 3


def test_all_forms_of_a_prompt_have_one_key() -> None:
    lab = FORMATS["lab"]
    prompt = lab.render(ASKED)
    positions = [locate(lab, prompt), locate(lab, prompt, encode(prompt)), locate(lab, prompt + "qu00")]
    assert len({position.key for position in positions}) == 1


def test_the_tag_of_a_known_prompt_never_changes() -> None:
    position = locate(FORMATS["lab"], "<|user|>hello<|end|><|assistant|>")
    assert (position.key, position.tag) == (0xF0B8B4529F00F26D, "dx")


@pytest.mark.parametrize(
    ("prompt", "channel"),
    [
        ("<|assistant|><think>", "reasoning"),
        ("<think>", "reasoning"),
        ("<think></think>", "start"),
        ("<|user|><think><|end|><|assistant|>", "start"),
        ("<\uff5cAssistant\uff5c><think>", "reasoning"),
        ("<\uff5cAssistant\uff5c></think>", "text"),
    ],
)
def test_a_prompt_may_open_or_close_the_reasoning_block(prompt: str, channel: str) -> None:
    assert locate(FORMATS["lab"], prompt).place.channel == channel


def test_max_tokens_gives_a_leg_so_many_more() -> None:
    lab = FORMATS["lab"]
    prompt = lab.render(ASKED)
    for passed in range(1, 9):
        said = raw(rest(lab, prompt, thinking=False, max_tokens=passed))
        plan = healthy(lab, locate(lab, prompt + said, is_raw=True), max_tokens=10 - passed)
        assert (len(encode(said + raw(plan))), plan.completion_tokens, plan.finish) == (
            10,
            10 - passed,
            "length",
        )


def test_a_leg_with_nothing_left_ends_at_once() -> None:
    lab = FORMATS["lab"]
    prompt = lab.render(ASKED)
    whole = raw(healthy(lab, locate(lab, prompt, is_raw=True)))
    plan = healthy(lab, locate(lab, prompt + whole, is_raw=True))
    assert (raw(plan), plan.finish, plan.completion_tokens) == ("", "length", 0)


def test_a_torn_word_past_the_end_is_completed() -> None:
    lab = FORMATS["lab"]
    plan = healthy(lab, locate(lab, lab.render(ASKED) + "qu0000 qu0001 qu00", is_raw=True), answer_words=2)
    assert (raw(plan), plan.finish, plan.completion_tokens) == ("02", "stop", 1)


def test_a_call_longer_than_sixteen_words_is_only_closed() -> None:
    lab = FORMATS["lab"]
    prompt = lab.render(ASKED)
    begun = faulted(lab, prompt, "call", 20)
    plan = rest(lab, prompt + begun, thinking=False, chat=True)
    assert [(piece.delta, piece.raw, piece.words) for piece in plan.pieces] == [('"}', '"}}', 0)]
    whole = rest(lab, prompt + begun + '"}}', thinking=False, chat=True)
    assert (raw(whole), whole.finish, whole.completion_tokens) == ("", "tool_calls", 0)


PIECES = (
    'qu0000| qu0001| QU0001|QU0000| qu00|"|}|{|<think>|</think>|{"name": "|<tool_call>\n|\n|f|">\n|\\|é|x'
    '|", "arguments": |": "| string="|\n</tool_call>|\n\n<\uff5cDSML\uff5ctool_calls>\n'
    '|<\uff5cDSML\uff5cinvoke name="|</\uff5cDSML\uff5cparameter>'
)
REGION = st.lists(st.sampled_from(PIECES.split("|"))).map("".join)


@given(st.sampled_from(["", "<|assistant|>", "<\uff5cAssistant\uff5c><think>"]), REGION, st.booleans())
def test_any_region_is_continued(marker: str, region: str, chat: bool) -> None:
    for template in FORMATS.values():
        position: ResumePoint = locate(template, marker + region)
        plan = healthy(template, replace(position, is_raw=not chat), reasoning_words=2, answer_words=3)
        assert position.trapped or plan.completion_tokens == sum(piece.token_count for piece in plan.pieces)
        for channel in ("text", "reasoning", "call"):
            try:
                pieces = list(islice(fault_pieces(template, replace(position, is_raw=not chat), channel), 4))
            except ValueError:
                continue
            assert len(pieces) == 4
            assert all(piece.token_count == len(encode(piece.raw)) for piece in pieces)
