"""The body of `POST /v1/messages`, and the same conversation as chat's messages and tools."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import force_setattr

from inference_lab.core.apis.request import MAX_TOKENS_LIMIT, Unlike, call_target_of, needs_tool, show_number
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.json_text import spaced
from inference_lab.core.prompts.messages import Message, Part, requires_call, targets_of

_ROLES: Final = ("user", "assistant", "system")
_PLACEHOLDERS: Final = {"image": "[image_url]", "document": "[file]"}
"""What stands in the prompt for a block that is no text, where chat's name for it is another one."""


class MessagesRequest(Unlike, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`; `tools` and `tool_choice` become chat's as it is read."""

    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    thinking: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tools is not None:
            force_setattr(self, "tools", [_tool(tool, place) for place, tool in enumerate(self.tools)])
        force_setattr(self, "tool_choice", _tool_choice(self.tool_choice))

    def check(self) -> None:
        """See `Common.check`."""
        self.check_prompt()
        if self.max_tokens is None:
            raise invalid_request("max_tokens: Field required", "max_tokens")
        if self.max_tokens < 1:
            raise invalid_request("max_tokens: Input should be greater than or equal to 1", "max_tokens")
        if self.max_tokens > MAX_TOKENS_LIMIT:
            raise invalid_request(
                f"max_tokens: is {show_number(self.max_tokens)}, expected 1 to {MAX_TOKENS_LIMIT}",
                "max_tokens",
            )

    def check_prompt(self) -> None:
        """Refuse what is no conversation with a model, whatever is wanted of it.

        Raises:
            ApiError: 400 with the field's name.
        """
        if self.model is None:
            raise invalid_request("model: Field required", "model")
        if self.messages is None:
            raise invalid_request("messages: Field required", "messages")
        if not self.messages:
            raise invalid_request("messages: at least one message is required", "messages")
        call_target_of(self)
        if requires_call(self.tool_choice) and not targets_of(self.tools):
            raise needs_tool()


def chat_of(body: MessagesRequest) -> list[Message]:
    """The conversation as chat's messages: a tool's result is a message of its own, at its place.

    Raises:
        ApiError: 400 for a block that its message has no place for, with its path.
    """
    said = [Message("system", text)] if (text := _system_text(body.system)) else []
    for place, message in enumerate(body.messages or ()):
        path = f"messages.{place}"
        role = message.get("role")
        if role not in _ROLES:
            raise invalid_request(
                f"{path}.role: Input should be 'user', 'assistant' or 'system'", f"{path}.role"
            )
        content = message.get("content")
        if not isinstance(content, str | list):
            raise invalid_request(
                f"{path}.content: Input should be a string or a list of blocks", f"{path}.content"
            )
        if isinstance(content, str):
            said.append(Message(role, content))
        elif role == "assistant":
            said.append(_answer(content, f"{path}.content"))
        else:
            said += _question(role, content, f"{path}.content")
    return said


def _system_text(system: str | list[dict[str, Any]] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = []
    for place, block in enumerate(system):
        if block.get("type") != "text":
            raise _misplaced(f"system.{place}", "type", "'text'")
        texts.append(_string(block, "text", f"system.{place}"))
    return "".join(texts)


def _answer(blocks: list[Any], path: str) -> Message:
    """A past answer, or the one so far: what it has of each kind joined, whatever order the blocks have."""
    content: list[Part] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, kind, where in _blocks(blocks, path):
        if kind == "text":
            content.append(Part("text", _string(block, "text", where)))
        elif kind == "thinking":
            reasoning.append(_string(block, "thinking", where))
        elif kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                raise _misplaced(where, "input", "an object")
            function = {"name": _string(block, "name", where), "arguments": spaced(block["input"])}
            calls.append({"type": "function", "function": function})
        elif kind == "tool_result":
            raise _misplaced(where, "type", "a block that an answer can have")
        elif kind != "redacted_thinking":
            content.append(Part("text", _PLACEHOLDERS.get(kind, f"[{kind}]")))
    return Message(
        "assistant", content, reasoning_content="".join(reasoning) or None, tool_calls=calls or None
    )


def _question(role: str, blocks: list[Any], path: str) -> list[Message]:
    """A message of anybody else: the blocks between two results of tools are one."""
    if not blocks:
        return [Message(role, [])]
    said: list[Message] = []
    run: list[Part] = []
    for block, kind, where in _blocks(blocks, path):
        if kind == "tool_result" and role == "user":
            if run:
                said.append(Message(role, run))
                run = []
            said.append(Message("tool", _result(block.get("content"), where)))
        elif kind == "text":
            run.append(Part("text", _string(block, "text", where)))
        elif kind in {"thinking", "redacted_thinking", "tool_use", "tool_result"}:
            raise _misplaced(where, "type", f"a block that a message of role {role!r} can have")
        else:
            run.append(Part("text", _PLACEHOLDERS.get(kind, f"[{kind}]")))
    return [*said, Message(role, run)] if run else said


def _result(content: object, path: str) -> str:
    """A tool's result as text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _misplaced(path, "content", "a string or a list of blocks")
    return "".join(
        _string(block, "text", where) if kind == "text" else _PLACEHOLDERS.get(kind, f"[{kind}]")
        for block, kind, where in _blocks(content, f"{path}.content")
    )


def _blocks(blocks: list[Any], path: str) -> list[tuple[dict[str, Any], str, str]]:
    """Blocks with their types and paths."""
    found = []
    for place, block in enumerate(blocks):
        where = f"{path}.{place}"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise _misplaced(where, "type", "a string")
        found.append((block, kind, where))
    return found


def _string(block: dict[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _misplaced(path, name, "a string")
    return value


def _misplaced(path: str, name: str, expected: str) -> ApiError:
    return invalid_request(f"{path}.{name}: Input should be {expected}", f"{path}.{name}")


def _tool(tool: dict[str, Any], place: int) -> dict[str, Any]:
    """A tool as chat has it; a server's own stands as it came, and is never called."""
    if tool.get("type", "custom") not in {"custom", None}:
        return tool
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str):
        raise ValueError(f"tools.{place}.name: Input should be a string")
    if not isinstance(schema, dict):
        raise ValueError(f"tools.{place}.input_schema: Input should be an object")
    function: dict[str, Any] = {"name": name}
    if "description" in tool:
        function["description"] = tool["description"]
    function["parameters"] = schema
    if "strict" in tool:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Which tool an answer calls, as chat has it."""
    if choice is None:
        return None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or kind not in {"auto", "any", "tool", "none"}:
        raise ValueError("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise ValueError("tool_choice.name: Input should be a string")
        return {"type": "function", "function": {"name": choice["name"]}}
    return {"auto": "auto", "any": "required", "none": "none"}[str(kind)]


def reasons(body: MessagesRequest, *, default: bool) -> bool:
    """Whether the model thinks; `default` is whether it does unless the request forbids it.

    Raises:
        ApiError: 400 for a `thinking` without a type.
    """
    if body.thinking is None:
        return default
    kind = body.thinking.get("type")
    if not isinstance(kind, str):
        raise invalid_request("thinking.type: Field required", "thinking.type")
    return default and kind != "disabled"


class CountRequest(MessagesRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`: as that of a message, but for what is about its answer."""

    def check(self) -> None:
        """See `Common.check`."""
        self.check_prompt()
