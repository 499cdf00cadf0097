"""Thinking mode, as a request's `chat_template_kwargs` may override it."""


def is_thinking(template_arguments: object, *, default: bool) -> bool:
    """Whether a chat is rendered in thinking mode; `default` is whether the model reasons at all.

    `thinking_mode` ("chat" or "thinking", DeepSeek), `thinking` and `enable_thinking` (Qwen) are understood,
    the first that is there counts.
    """
    if isinstance(template_arguments, dict):
        mode = template_arguments.get("thinking_mode")
        if isinstance(mode, str):
            return mode != "chat"
        for name in ("thinking", "enable_thinking"):
            value = template_arguments.get(name)
            if isinstance(value, bool):
                return value
    return default
