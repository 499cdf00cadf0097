"""Raw prompts without a generation marker that speak of markup: it opens a block only in front of an answer's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference_lab.core.answer.answer import healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from tests.support.clients.resume_client import COMPLETIONS

if TYPE_CHECKING:
    from tests.support.lab import MemoryLab

STYLES = st.sampled_from(list(FORMATS.values()))
MARKUP = sorted(
    {
        text
        for template in FORMATS.values()
        for text in (
            template.reasoning_open,
            template.reasoning_close,
            template.reasoning_open.strip(),
            template.calls_open + template.call_open,
            template.calls_open + template.open_argument("f", "k"),
            template.call_open,
            template.name_close,
            template.key_open,
            template.key_close,
            template.value_close,
            template.call_close,
            template.calls_close,
            template.calls_open,
            "<tool_call>",
        )
        if text
    }
)
PROSE = ("Explain the ", " tag!", " and ", "x", "\n", " ", "Why? ", "AB", "qu00", "{", '"')
TALK = st.lists(st.sampled_from([*MARKUP, *PROSE]), max_size=6).map("".join)


def raw(template: ChatTemplate, prompt: str, reasoning: int, *, chat: bool = False) -> str:
    """What a prompt is answered with, its tag as `qu`."""
    position = locate(template, prompt)
    plan = healthy(template, replace(position, is_raw=not chat), reasoning_words=reasoning, answer_words=3)
    text = "".join(piece.raw for piece in plan.pieces)
    return re.sub(position.tag.upper() + "(?=[0-9])", "QU", re.sub(position.tag + "(?=[0-9])", "qu", text))


def fresh(template: ChatTemplate, reasoning: int) -> str:
    """An answer from its beginning."""
    block = f"{template.reasoning_open}QU0000 QU0001{template.reasoning_close}" if reasoning else ""
    return f"{block}qu0000 qu0001 qu0002"


@given(STYLES, TALK, st.sampled_from(["Why?", " tag!", ".", " in <think> land"]), st.sampled_from([0, 2]))
def test_markup_that_is_spoken_of_opens_nothing(
    template: ChatTemplate, talk: str, end: str, reasoning: int
) -> None:
    assert raw(template, f"Explain {talk}{end}", reasoning) == fresh(template, reasoning)


@given(STYLES, TALK, st.sampled_from([0, 2]))
def test_words_in_the_middle_of_such_talk_change_nothing(
    template: ChatTemplate, talk: str, reasoning: int
) -> None:
    for word in ("ab0000", "AB0000", "ab0000 ab0001"):
        for prompt in (f"{word} and {talk} tag!", f"Explain {talk}{word} to me{talk}."):
            assert raw(template, prompt, reasoning) == fresh(template, reasoning)


@given(STYLES, TALK, st.sampled_from(["", "<think>", "Why? "]), st.sampled_from([0, 2]))
def test_words_at_the_end_are_an_answer_so_far_whatever_is_said_before(
    template: ChatTemplate, talk: str, before: str, reasoning: int
) -> None:
    """Each of them is content, or a call's or a block's where the markup in front of it is."""
    prompt = f"Explain {talk}. {before}ab0000 ab0001"
    position = locate(template, prompt)
    assert (position.region, position.progress, position.tag) == ("ab0000 ab0001", 2, "ab")
    assert raw(template, prompt, reasoning) == " qu0002"


@given(STYLES, TALK, st.sampled_from([0, 2]))
def test_an_opened_block_is_open_where_nothing_or_its_words_follow(
    template: ChatTemplate, talk: str, reasoning: int
) -> None:
    opened = f"Explain {talk}. {template.reasoning_open}"
    rest = f"{' QU0001' * (reasoning > 1)}{template.reasoning_close}qu0000 qu0001 qu0002"
    begun = "QU0000" * bool(reasoning)
    assert raw(template, opened, reasoning) == begun + rest
    assert raw(template, f"{opened}AB0000", reasoning) == rest
    for torn in ("AB0", "AB00", "AB000"):
        assert raw(template, opened + torn, reasoning) == begun + rest


@given(STYLES, TALK, st.integers(1, 15))
def test_an_opened_call_goes_on_where_its_words_follow(template: ChatTemplate, talk: str, words: int) -> None:
    opening = template.calls_open + template.open_argument("f", "k")
    said = opening + "".join(f"{' ' * bool(i)}ab{i:04d}{'é' * (i % 8 == 7)}" for i in range(words))
    position = locate(template, f"Explain {talk}. {said}")
    assert (position.region, position.place.channel, position.progress) == (said, "call", words)


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("reasoning", [0, 2])
@pytest.mark.parametrize(
    "prompt",
    [
        "Explain the <think> tag!",
        "Explain <think>\nand\n</think>.",
        "What does </think> mean?",
        "<think> is a tag, </think> another, <think> a third",
        'Write {"name": "f", "arguments": {"k": "v"}} to a file',
        'Use {"name": "f"} and {"k": "v',
        "Close the </tool_call> and the <tool_call>.",
        "ab0000 <think> ab0001 tag",
    ],
)
def test_prompts_that_people_write(template: ChatTemplate, reasoning: int, prompt: str) -> None:
    assert raw(template, prompt, reasoning) == fresh(template, reasoning)


def test_a_completion_is_answered_with_words(lab: MemoryLab) -> None:
    prompt = "Explain the <think> tag!"
    tag = locate(FORMATS["hermes"], prompt).tag
    answer = lab.post(COMPLETIONS, {"model": "hermes", "prompt": prompt, "max_tokens": 3})
    assert answer["choices"][0]["text"] == f"{tag}0000 {tag}0001 {tag}0002"
    assert answer["usage"]["completion_tokens"] == 3
