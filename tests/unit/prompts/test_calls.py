"""Tool calls: which tool an answer calls, and the calls that messages carry."""

import pytest

from inference_lab.core.prompts.messages import Call, CallTarget, call_target, calls_of


def tool(name: str, **properties: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


STRING, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
    ("tools", "choice", "target"),
    [
        (None, None, CallTarget("get_current_weather", "location")),
        ([], "auto", CallTarget("get_current_weather", "location")),
        ([tool("a", n=NUMBER, s=STRING)], None, CallTarget("a", "s")),
        ([tool("a", n=NUMBER)], "required", CallTarget("a", "location")),
        ([tool("a", n={"type": ["null", "string"]})], None, CallTarget("a", "n")),
        (
            [tool("a"), tool("b", q=STRING)],
            {"type": "function", "function": {"name": "b"}},
            CallTarget("b", "q"),
        ),
        (
            [{"type": "web_search"}, {"function": {"name": "a", "parameters": 5}}],
            None,
            CallTarget("a", "location"),
        ),
    ],
)
def test_the_answer_calls_the_chosen_or_first_tool(tools: object, choice: object, target: CallTarget) -> None:
    assert call_target(tools, choice) == target


@pytest.mark.parametrize(
    ("tools", "choice", "path"),
    [
        ({}, None, "tools: "),
        ([5], None, "tools[0]: "),
        ([tool("a"), {"type": "function"}], None, "tools[1].function: "),
        ([{"function": {"name": None}}], None, "tools[0].function.name: "),
        ([tool("a")], 5, "tool_choice: "),
        ([tool("a")], {"function": "a"}, "tool_choice.function.name: "),
        ([tool("a")], {"function": {"name": "b"}}, "tool_choice.function.name: "),
    ],
)
def test_malformed_tools_are_refused_with_their_path(tools: object, choice: object, path: str) -> None:
    with pytest.raises(ValueError, match=r": ") as refusal:
        call_target(tools, choice)
    assert str(refusal.value).startswith(path)


@pytest.mark.parametrize(
    ("tool_calls", "calls"),
    [
        (None, []),
        ("x", []),
        ([5, {"function": 5}, {"function": {"name": 5}}], []),
        ([{"function": {"name": "a"}}], [Call("a", "")]),
        ([{"id": "x", "function": {"name": "a", "arguments": '{"k":1'}}], [Call("a", '{"k":1')]),
        ([{"function": {"name": "a", "arguments": {"k": ["é"]}}}], [Call("a", '{"k": ["é"]}')]),
    ],
)
def test_a_message_carries_the_calls_that_can_be_read(tool_calls: object, calls: list[Call]) -> None:
    assert calls_of(tool_calls) == calls
