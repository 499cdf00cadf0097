"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from inference_lab.core.apis.request import Common, call_target_of, needs_tool
from inference_lab.core.errors import invalid_request
from inference_lab.core.prompts.messages import (
    Message,
    requires_call,
    targets_of,
)


class ChatRequest(Common, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    def check(self) -> None:
        """See `Common.check`."""
        super().check()
        if not self.messages:
            raise invalid_request("messages: missing or empty, expected a list of messages", "messages")
        call_target_of(self)
        if requires_call(self.tool_choice) and not targets_of(self.tools):
            raise needs_tool()
