"""Chat messages as a request sends them, their tool calls, and the one that an answer makes."""

from __future__ import annotations

from typing import Any

import msgspec

from inference_lab.core.json_text import spaced

DEFAULT_NAME = "get_current_weather"
DEFAULT_KEY = "location"


class Part(msgspec.Struct, frozen=True, gc=False):
    """One part of a message's content; only a `text` part has text of its own.

    A part without `type` is a text part if it has `text`, as vLLM reads it.

    Raises:
        ValueError: `type` is no string, or the text of a text part is none. msgspec adds the field path.
    """

    type: Any = None
    text: Any = None

    def __post_init__(self) -> None:
        if self.type is None and self.text is None:
            raise ValueError(".type: missing")
        if not isinstance(self.type, str | None):
            raise ValueError(".type: must be a string")
        if self.type in {None, "text"} and not isinstance(self.text, str):
            raise ValueError(".text: a text part's text must be a string")


class Message(msgspec.Struct, frozen=True):
    """One chat message. Members beside role and content are free: what cannot be read renders nothing."""

    role: str
    content: str | list[Part] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None

    @property
    def past_reasoning(self) -> str:
        """Reasoning text: `reasoning_content`, else `reasoning`, else nothing."""
        for text in (self.reasoning_content, self.reasoning):
            if isinstance(text, str) and text:
                return text
        return ""


def text_of(content: str | list[Part] | None) -> str:
    """Content as one text: parts joined, a part that is no text as `[type]`."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if part.type in {None, "text"} else f"[{part.type}]" for part in content)


class Call(msgspec.Struct, frozen=True):
    """A call in a message: the tool's name and its arguments as JSON text, whole or not."""

    name: str
    arguments: str


class CallTarget(msgspec.Struct, frozen=True):
    """What an answer calls: the tool's name and the key of the argument that holds the words."""

    name: str = DEFAULT_NAME
    key: str = DEFAULT_KEY


def calls_of(tool_calls: object) -> list[Call]:
    """The calls of a message's `tool_calls`; elements of another shape are left out, as members are free.

    Raises:
        ValueError: arguments that are an object nested too deeply to be written.
    """
    calls = []
    for element in tool_calls if isinstance(tool_calls, list) else ():
        function = element.get("function") if isinstance(element, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(name, str):
            arguments = function.get("arguments")
            written = (
                arguments if isinstance(arguments, str) else "" if arguments is None else spaced(arguments)
            )
            calls.append(Call(name, written))
    return calls


def targets_of(tools: object) -> list[CallTarget]:
    """The function tools of a request, each with its first property of type string (else `location`).

    Raises:
        ValueError: tools that are no list of objects, or a function tool without a name; the message has the
            path.
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise ValueError("tools: must be a list")
    targets = []
    for place, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise ValueError(f"tools[{place}]: must be an object")
        if tool.get("type", "function") != "function":
            continue
        function = tool.get("function")
        if not isinstance(function, dict):
            raise ValueError(f"tools[{place}].function: must be an object")
        if not isinstance(function.get("name"), str):
            raise ValueError(f"tools[{place}].function.name: must be a string")
        targets.append(CallTarget(function["name"], _key_of(function.get("parameters"))))
    return targets


def call_target(tools: object, tool_choice: object = None) -> CallTarget:
    """The tool an answer calls: the one `tool_choice` names, else the first, else `get_current_weather`.

    Raises:
        ValueError: malformed tools, or a `tool_choice` that is no string and names none of them.
    """
    targets = targets_of(tools)
    if tool_choice is None or isinstance(tool_choice, str):
        return targets[0] if targets else CallTarget()
    if not isinstance(tool_choice, dict):
        raise ValueError("tool_choice: must be a string or an object")
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ValueError("tool_choice.function.name: must be a string")
    for target in targets:
        if target.name == name:
            return target
    raise ValueError(f"tool_choice.function.name: {name!r} is none of the request's tools")


def requires_call(tool_choice: object) -> bool:
    """Whether an answer must be a call: `required`, or a tool by its name."""
    return tool_choice == "required" or isinstance(tool_choice, dict)


def _key_of(parameters: Any) -> str:  # noqa: ANN401 - a client's JSON
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    for key, schema in properties.items() if isinstance(properties, dict) else ():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "string" or (isinstance(kind, list) and "string" in kind):
            return str(key)
    return DEFAULT_KEY
