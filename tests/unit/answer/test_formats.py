"""Chat templates: the exact prompt of each kind of conversation."""

import msgspec
import pytest

from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.answer.templates.members import Member, members_of, open_members_of
from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.prompts.messages import Message

LAB, HERMES, DSV4 = FORMATS["lab"], FORMATS["hermes"], FORMATS["dsv4"]
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
    final: bool | None,
    generation: bool | None,
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


def bars(text: str) -> str:
    """The full-width bar, which ruff will not have in source."""
    return text.replace("|", "\uff5c")


HISTORY = [
    {"role": "system", "content": "S"},
    user(),
    assistant(
        reasoning="R", content="C", tool_calls=[call('{"k": "v","n":[1,{"a": null}]}'), call("", name="g")]
    ),
    {"role": "tool", "content": "T"},
]


def test_hermes_renders_a_conversation() -> None:
    assert HERMES.render(messages(*HISTORY), [{"type": "x"}]) == (
        '<|im_start|>system\n<tools>\n[{"type":"x"}]\n</tools><|im_end|>\n'
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nR</think>\n\nC"
        '<tool_call>\n{"name": "f", "arguments": {"k": "v","n":[1,{"a": null}]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nT<|im_end|>\n<|im_start|>assistant\n"
    )


def test_dsv4_renders_a_conversation() -> None:
    prompt = bars(
        '<|begin▁of▁sentence|><tools>\n[{"type":"x"}]\n</tools>\n\nS<|User|>hello'
        "<|Assistant|><think>R</think>C\n\n"
        '<|DSML|tool_calls>\n<|DSML|invoke name="f">\n'
        '<|DSML|parameter name="k" string="true">v</|DSML|parameter>\n'
        '<|DSML|parameter name="n" string="false">[1, {"a": null}]</|DSML|parameter>\n</|DSML|invoke>\n'
        '<|DSML|invoke name="g">\n</|DSML|invoke>\n</|DSML|tool_calls><|end▁of▁sentence|>'
        "<|tool|>T<|Assistant|>"
    )
    assert DSV4.render(messages(*HISTORY), [{"type": "x"}]) == prompt + "</think>"
    assert DSV4.render(messages(*HISTORY), [{"type": "x"}], thinking=True) == prompt + "<think>"


@pytest.mark.parametrize(
    ("members", "thinking", "tail"),
    [
        ({}, False, "</think>"),
        ({}, True, "<think>"),
        ({"content": "C"}, False, "</think>C"),
        ({"content": "C"}, True, "<think></think>C"),
        ({"reasoning": "R"}, True, "<think>R"),
        ({"reasoning": "R", "content": "C"}, True, "<think>R</think>C"),
        (
            {"tool_calls": [call("")]},
            False,
            '</think>\n\n<|DSML|tool_calls>\n<|DSML|invoke name="f">\n',
        ),
        (
            {"tool_calls": [call('{"a": 1, "k": "v')]},
            False,
            (
                '</think>\n\n<|DSML|tool_calls>\n<|DSML|invoke name="f">\n'
                '<|DSML|parameter name="a" string="false">1</|DSML|parameter>\n'
                '<|DSML|parameter name="k" string="true">v'
            ),
        ),
        (
            {"tool_calls": [call("{}")]},
            False,
            '</think>\n\n<|DSML|tool_calls>\n<|DSML|invoke name="f">\n</|DSML|invoke>\n</|DSML|tool_calls>',
        ),
    ],
)
def test_dsv4_leaves_the_last_piece_of_a_prefill_open(
    members: dict[str, object],
    thinking: bool,
    tail: str,
) -> None:
    prompt = DSV4.render(messages(assistant(**members)), thinking=thinking)
    assert prompt == bars(f"<|begin▁of▁sentence|><|Assistant|>{tail}")


@pytest.mark.parametrize(
    ("members", "thinking", "tail"),
    [
        ({}, True, ""),
        ({"content": "C"}, False, "C"),
        ({"content": "C"}, True, "<think>\n</think>\n\nC"),
        ({"reasoning": "R"}, False, "<think>\nR"),
        ({"tool_calls": [call("{")]}, False, '<tool_call>\n{"name": "f", "arguments": {'),
    ],
)
def test_hermes_leaves_the_last_piece_of_a_prefill_open(
    members: dict[str, object],
    thinking: bool,
    tail: str,
) -> None:
    assert (
        HERMES.render(messages(assistant(**members)), thinking=thinking) == f"<|im_start|>assistant\n{tail}"
    )


@pytest.mark.parametrize(
    ("arguments", "whole", "broken"),
    [
        ("", [], None),
        ('{"a": "x"', [Member("a", "x", is_string=True)], None),
        ('{"a": "x" ', [Member("a", "x", is_string=True)], None),
        ('{"a": "', [], Member("a", "", is_string=True)),
        (
            '{"a": 1, "a": "\\u00e9\\n',
            [Member("a", "1", is_string=False)],
            Member("a", "é\n", is_string=True),
        ),
        (
            '{"a": {"b": []}, "c": "\\ud83d',
            [Member("a", '{"b": []}', is_string=False)],
            Member("c", "\ufffd", True),
        ),
    ],
)
def test_arguments_may_break_off_behind_a_member_or_inside_a_string(
    arguments: str, whole: list[Member], broken: Member | None
) -> None:
    assert open_members_of(arguments) == (whole, broken)


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        '{"a": "x", ',
        '{"a',
        '{"a"',
        '{"a": ',
        '{"a": 1',
        '{"a": tru',
        '{"a": ["x',
        '{"a": "\\u00',
        "[",
        '"x',
        "<",
        '{"a": 1,, "b": "',
    ],
)
def test_arguments_that_break_off_elsewhere_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match="can be continued only"):
        DSV4.render(messages(assistant(tool_calls=[call(arguments)])))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("[1]", "must be a JSON object"),
        ("5", "must be a"),
        ('{"a": 1', "must be a whole JSON object"),
        ('{"a" 1}', "are no JSON: "),
        ("{" * 600, "must be a whole JSON object"),
        ('{"a": ' + "9" * 5000 + "}", "hold an integer of too many digits"),
    ],
)
def test_past_arguments_that_are_no_object_are_refused(arguments: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^a call's arguments {reason}"):
        members_of(arguments)


def test_arguments_may_be_nested_as_deep_as_the_scanner_goes() -> None:
    deep = "[" * 499 + "]" * 499
    assert members_of(f'{{"a": {deep}}}') == [Member("a", deep, is_string=False)]


@pytest.mark.parametrize(
    ("arguments", "default", "thinking"),
    [
        (None, True, True),
        ({}, False, False),
        ({"thinking_mode": "chat"}, True, False),
        ({"thinking_mode": "thinking"}, False, True),
        ({"thinking": False}, True, False),
        ({"enable_thinking": False}, True, False),
        ({"thinking": "no"}, True, True),
        (5, True, True),
    ],
)
def test_template_arguments_override_thinking(arguments: object, default: bool, thinking: bool) -> None:
    assert is_thinking(arguments, default=default) is thinking
