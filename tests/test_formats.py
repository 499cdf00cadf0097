"""Chat templates: the exact prompt of each kind of conversation."""

import msgspec
import pytest

from inference_lab.formats import FORMATS
from inference_lab.messages import Message

LAB = FORMATS["lab"]
TOOL = {"type": "function", "function": {"name": "f", "description": "é < 5"}}


def messages(*items: dict[str, object]) -> list[Message]:
    return msgspec.convert(list(items), list[Message])


def user(text: str = "hello") -> dict[str, object]:
    return {"role": "user", "content": text}


def assistant(**members: object) -> dict[str, object]:
    return {"role": "assistant", **members}


def call(arguments: object, name: str = "f") -> dict[str, object]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("conversation", "prompt"),
    [
        ([user()], "<|user|>hello<|end|><|assistant|>"),
        (
            [{"role": "system", "content": "Brief."}, user(), assistant(content="Hi."), user("more")],
            "<|system|>Brief.<|end|><|user|>hello<|end|><|assistant|>Hi.<|end|><|user|>more<|end|><|assistant|>",
        ),
        (
            [
                assistant(content=None, reasoning="R", tool_calls=[call('{"k":1}'), call({"k": 2})]),
                {"role": "tool"},
            ],
            (
                '<|assistant|><think>R</think>{"name": "f", "arguments": {"k":1}}'
                '{"name": "f", "arguments": {"k": 2}}<|end|><|tool|><|end|><|assistant|>'
            ),
        ),
        ([user(), assistant(content="Once")], "<|user|>hello<|end|><|assistant|>Once"),
        ([user(), assistant()], "<|user|>hello<|end|><|assistant|>"),
        ([assistant(reasoning_content="R")], "<|assistant|><think>R"),
        ([assistant(reasoning_content="R", content="C")], "<|assistant|><think>R</think>C"),
        ([assistant(tool_calls=[call("")])], '<|assistant|>{"name": "f", "arguments": '),
        (
            [assistant(content="C", tool_calls=[call('{"k": "v"}'), call('{"k": "w', name='g"')])],
            '<|assistant|>C{"name": "f", "arguments": {"k": "v"}}{"name": "g\\"", "arguments": {"k": "w',
        ),
        ([assistant(tool_calls=[call('{"k": "v"}')])], '<|assistant|>{"name": "f", "arguments": {"k": "v"}}'),
    ],
)
def test_lab_renders_a_conversation(conversation: list[dict[str, object]], prompt: str) -> None:
    assert LAB.render(messages(*conversation)) == prompt


def test_lab_puts_the_tools_in_front_as_compact_json() -> None:
    tools = '[{"type":"function","function":{"name":"f","description":"é < 5"}}]'
    assert LAB.render(messages(user()), [TOOL]) == f"{tools}<|user|>hello<|end|><|assistant|>"
    assert LAB.render(messages(user()), []) == "<|user|>hello<|end|><|assistant|>"


def test_thinking_shows_in_lab_only_where_content_has_no_reasoning() -> None:
    assert LAB.render(messages(user()), thinking=True) == "<|user|>hello<|end|><|assistant|>"
    assert LAB.render(messages(assistant(content="C")), thinking=True) == "<|assistant|><think></think>C"
    assert LAB.render(messages(assistant()), thinking=True) == "<|assistant|>"


@pytest.mark.parametrize(
    ("final", "generation", "prompt"),
    [
        (None, None, "<|assistant|>C"),
        (True, None, "<|assistant|>C"),
        (True, False, "<|assistant|>C"),
        (None, False, "<|assistant|>C"),
        (None, True, "<|assistant|>C<|end|><|assistant|>"),
        (False, None, "<|assistant|>C<|end|><|assistant|>"),
        (False, True, "<|assistant|>C<|end|><|assistant|>"),
        (False, False, "<|assistant|>C<|end|>"),
    ],
)
def test_the_two_flags_decide_whether_a_last_assistant_message_is_continued(
    final: bool | None,  # noqa: FBT001
    generation: bool | None,  # noqa: FBT001
    prompt: str,
) -> None:
    chat = messages(assistant(content="C"))
    assert LAB.render(chat, add_generation_prompt=generation, continue_final_message=final) == prompt


def test_no_generation_prompt_leaves_the_conversation_as_it_is() -> None:
    assert LAB.render(messages(user()), add_generation_prompt=False) == "<|user|>hello<|end|>"


def test_contradicting_flags_are_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        LAB.render(messages(assistant()), add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(ValueError, match="assistant message at the end"):
        LAB.render(messages(user()), continue_final_message=True)
