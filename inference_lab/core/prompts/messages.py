"""Chat messages as a request sends them, and the text their content stands for."""

from typing import Any

import msgspec


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
