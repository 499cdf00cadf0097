"""Chat messages: what is accepted, what is refused with which path, and their text."""

import msgspec
import pytest

from inference_lab.core.prompts.messages import Message, text_of


def convert(value: object) -> Message:
    return msgspec.convert(value, Message)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("hello", "hello"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}], "ab"),
        (
            [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "x"}}],
            "see [image_url]",
        ),
        ([{"type": "input_audio", "text": 5}], "[input_audio]"),
        ([{"text": "untyped"}], "untyped"),
    ],
)
def test_content_has_one_text(content: object, text: str) -> None:
    assert text_of(convert({"role": "user", "content": content}).content) == text


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({}, "role"),
        ({"role": 5}, "$.role"),
        ({"role": "user", "content": 5}, "$.content"),
        ({"role": "user", "content": {"type": "text"}}, "$.content"),
        ({"role": "user", "content": ["text"]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "$.content[1]"),
        ({"role": "user", "content": [{"type": 5}]}, "$.content[0]"),
        ({"role": "user", "content": [{}]}, "$.content[0]"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_path(message: object, path: str) -> None:
    with pytest.raises(ValueError, match=r"at `|required") as refusal:
        convert(message)
    assert path in str(refusal.value)


def test_other_members_are_free() -> None:
    message = convert({"role": "assistant", "name": 5, "tool_calls": "x", "reasoning": {}, "foreign": [1]})
    assert message.past_reasoning == ""


def test_reasoning_content_comes_before_reasoning() -> None:
    assert convert({"role": "a", "reasoning_content": "R", "reasoning": "S"}).past_reasoning == "R"
    assert convert({"role": "a", "reasoning_content": None, "reasoning": "S"}).past_reasoning == "S"
