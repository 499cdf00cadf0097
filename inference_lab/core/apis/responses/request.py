"""The body of `POST /v1/responses`, and the same conversation as chat's messages and tools."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

from msgspec.structs import force_setattr

from inference_lab.core.apis.request import MAX_TOKENS_LIMIT, Unlike, call_target_of, needs_tool, show_number
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.prompts.messages import Message, requires_call, targets_of

_ROLES: Final = ("user", "system", "developer", "assistant")
_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts that are text, and the member that holds it."""
_PLACEHOLDERS: Final = {"input_image": "[image_url]", "input_file": "[file]", "input_audio": "[input_audio]"}
_UNFINISHED: Final = {"in_progress", "incomplete"}
_REASONING, _CONTENT, _CALLS = range(3)
"""The order in which an answer speaks."""


class ResponsesRequest(Unlike, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`; `tools` and `tool_choice` become chat's as it is read."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: Any = None
    modalities: list[str] | None = None
    max_tokens: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "max_tokens", None)
        if self.tools is not None:
            force_setattr(self, "tools", [_tool(tool, place) for place, tool in enumerate(self.tools)])
        force_setattr(self, "tool_choice", _tool_choice(self.tool_choice))

    @property
    def token_limit(self) -> int | None:
        """The explicit limit, if there is one."""
        return self.max_output_tokens

    @property
    def wants_summary(self) -> bool:
        """Whether reasoning is to come as a summary."""
        return self.reasoning is not None and self.reasoning.get("summary") is not None

    @property
    def wants_encrypted(self) -> bool:
        """Whether reasoning items are to have a content that only this server reads."""
        return self.include is not None and "reasoning.encrypted_content" in self.include

    def check(self) -> None:
        """See `Common.check`."""
        if self.model is None:
            raise invalid_request("model: missing", "model")
        limit = self.max_output_tokens
        if limit is not None and not 1 <= limit <= MAX_TOKENS_LIMIT:
            raise invalid_request(
                f"max_output_tokens: is {show_number(limit)}, expected 1 to {MAX_TOKENS_LIMIT}",
                "max_output_tokens",
            )
        if not self.input:
            raise invalid_request("input: missing or empty, expected a string or a list of items", "input")
        self._check_state()
        call_target_of(self)
        if requires_call(self.tool_choice) and not targets_of(self.tools):
            raise needs_tool()

    def _check_state(self) -> None:
        """Refuse what would need an earlier response, or one that outlives its connection: nothing is kept."""
        if self.background:
            raise _unsupported(
                "background", "responses are not kept, so none can go on without its connection"
            )
        for name, given in (("prompt", self.prompt), ("modalities", set(self.modalities or ()) - {"text"})):
            if given:
                raise _unsupported(name, "cannot be honoured; leave it out")
        if self.conversation is not None:
            given = self.conversation if isinstance(self.conversation, str) else self.conversation.get("id")
            raise ApiError(
                404, "not_found", f"Conversation with id '{given}' not found.", param="conversation"
            )
        if self.previous_response_id is not None:
            raise ApiError(
                400,
                "previous_response_not_found",
                f"Previous response with id '{self.previous_response_id}' not found.",
                param="previous_response_id",
            )


def _unsupported(name: str, reason: str) -> ApiError:
    return ApiError(400, "unsupported_parameter", f"{name}: {reason}", param=name)


class _Conversation:
    """Chat's messages, made of items one by one: reasoning, text and calls that follow one another are one answer."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._reached: int | None = None
        self.is_open = False

    def say(self, role: str, text: str) -> None:
        """A message of anybody else."""
        self.close()
        self.messages.append(Message(role, text))

    def answer(self, kind: int, text: str = "", call: dict[str, Any] | None = None, *, is_open: bool) -> None:
        """More of an answer; a step back in its order begins another."""
        if self._reached is not None and (kind < self._reached or (kind == _CONTENT == self._reached)):
            self.close()
        self._reached = kind
        self.is_open = is_open
        if call is not None:
            self._calls.append(call)
        else:
            (self._reasoning if kind == _REASONING else self._content).append(text)

    def close(self) -> None:
        """The answer that was being read is over."""
        if self._reached is not None:
            self.messages.append(
                Message(
                    "assistant",
                    "".join(self._content),
                    reasoning_content="".join(self._reasoning) or None,
                    tool_calls=self._calls or None,
                )
            )
        self._reasoning, self._content, self._calls, self._reached = [], [], [], None


def chat_of(body: ResponsesRequest) -> tuple[list[Message], bool]:
    """The conversation as chat's messages, and whether its last is an answer that is to go on.

    Raises:
        ApiError: 400 for an item or a part whose members are wrong, 404 for one that refers to another.
    """
    said = _Conversation()
    if isinstance(body.instructions, str) and body.instructions:
        said.say("system", body.instructions)
    if isinstance(body.instructions, list):
        _read(said, body.instructions, "instructions")
    if isinstance(body.input, str):
        said.say("user", body.input)
    else:
        _read(said, body.input or [], "input")
    is_open, ends_in_answer = said.is_open, said._reached is not None  # noqa: SLF001 - of this module
    said.close()
    return said.messages, is_open and ends_in_answer


def _read(said: _Conversation, items: list[dict[str, Any]], where: str) -> None:
    for place, item in enumerate(items):
        path = f"{where}[{place}]"
        kind = item.get("type", "message")
        is_open = item.get("status") in _UNFINISHED
        if kind == "message":
            role = item.get("role")
            if role not in _ROLES:
                raise _wrong(path, "role", "user, system, developer or assistant")
            text = _text(item.get("content"), f"{path}.content")
            if role == "assistant":
                said.answer(_CONTENT, text, is_open=is_open)
            else:
                said.say(role, text)
        elif kind == "reasoning":
            said.answer(_REASONING, _reasoning(item, path), is_open=is_open)
        elif kind == "function_call":
            _string(item, "call_id", path)
            function = {name: _string(item, name, path) for name in ("name", "arguments")}
            said.answer(_CALLS, call={"type": "function", "function": function}, is_open=is_open)
        elif kind == "function_call_output":
            _string(item, "call_id", path)
            said.say("tool", _text(item.get("output"), f"{path}.output"))
        elif kind == "item_reference":
            raise ApiError(
                404,
                "not_found",
                f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. "
                "Try again with `store` set to true, or remove this item from your input.",
                param="input",
            )
        elif not isinstance(kind, str):
            raise _wrong(path, "type", "a string")
        elif kind.endswith("_output"):
            said.say("tool", f"[{kind}]")
        else:
            said.answer(_CONTENT, f"[{kind}]", is_open=is_open)


def _reasoning(item: dict[str, Any], path: str) -> str:
    """The text of reasoning: its content, else its summary, else what only this server can read."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return "".join(
                _string(part, "text", f"{path}.{name}") for part in parts if isinstance(part, dict)
            )
    return decrypted(item.get("encrypted_content"))


def decrypted(content: object) -> str:
    """The text that this server has put into an `encrypted_content`; nothing for anybody else's."""
    if not isinstance(content, str) or not content.startswith("lab:"):
        return ""
    try:
        return b64decode(content[4:], validate=True).decode()
    except ValueError:
        return ""


def _text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_request(f"{path}: expected a string or a list of parts", path)
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise _wrong(f"{path}[{place}]", "type", "a string")
        if kind in _TEXTS:
            texts.append(_string(part, _TEXTS[kind], f"{path}[{place}]"))
        else:
            texts.append(_PLACEHOLDERS.get(kind, f"[{kind}]"))
    return "".join(texts)


def _string(item: dict[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(path, name, "a string")
    return value


def _wrong(path: str, name: str, expected: str) -> ApiError:
    return invalid_request(f"{path}.{name}: expected {expected}", f"{path}.{name}")


def _tool(tool: dict[str, Any], place: int) -> dict[str, Any]:
    """A function tool as chat has it; any other stands as it came, and is never called."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    if not isinstance(tool.get("name"), str):
        raise ValueError(f"tools[{place}].name: must be a string")
    members = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in members if name in tool}}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Which tool an answer calls, as chat has it; a choice among tools that are no functions is none."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        return None
    if not isinstance(choice.get("name"), str):
        raise ValueError("tool_choice.name: must be a string")
    return {"type": "function", "function": {"name": choice["name"]}}
