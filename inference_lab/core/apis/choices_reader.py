"""Reads frames with a list of choices, as chat and completions have them, streamed or not."""

from __future__ import annotations

from typing import Any, Final

from inference_lab.core.apis.reading import (
    Channel,
    FrameReader,
    Names,
    ReadCall,
    ReadCounts,
    ReadFrame,
    ReadText,
)

_REASONING_KEYS: Final = ("reasoning_content", "reasoning")
"""As different servers call it; where both are there, they say the same."""

_ANSWER_KEYS: Final = ("choices", "output", "candidates", "content")
"""Where the APIs keep their lists of answers."""

_FOREIGN_KEYS: Final = ("output", "candidates", "content", "response", "delta", "content_block", "message")
"""Members of the frames of other APIs, whose answers are not followed."""


class ChoicesReader(FrameReader):
    """See `reading.FrameReader`."""

    def is_end(self, data: bytes) -> bool:
        """See `FrameReader.is_end`."""
        return data == b"[DONE]"

    def read(self, frame: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read`."""
        if _is_error(frame):
            return ReadFrame(is_error=True)
        listed = frame.get("choices")
        choices = (
            [choice for choice in listed if isinstance(choice, dict)] if isinstance(listed, list) else []
        )
        counts = _counts(frame.get("usage"))
        if not choices:  # it says nothing but its usage, whoever put it in
            return ReadFrame(counts=counts)
        first, *others = choices
        has_failed = [choice.get("error") is not None for choice in choices]
        numbers = [
            choice.get("index", "without an index") for choice in others if choice.get("error") is None
        ]
        if not (first.get("index") is None or first["index"] == 0) and not has_failed[0]:
            numbers.insert(0, first["index"])
            first = {}
        if has_failed[0]:
            first = {}
        delta = first.get("delta")
        delta = delta if isinstance(delta, dict) else first.get("message")
        delta = delta if isinstance(delta, dict) else {}
        finish = first.get("finish_reason")
        odd, calls = _calls(delta.get("tool_calls"))
        return ReadFrame(
            True,
            any(has_failed),
            "text" in first,
            bool(delta.get("role")),
            Names(frame.get("id"), frame.get("model"), frame.get("created")),
            (*_texts(first, delta), *odd),
            calls,
            finish if isinstance(finish, str) and finish else None,
            counts,
            tuple(numbers),
        )

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read_whole`."""
        if any(isinstance(body.get(key), list) for key in _ANSWER_KEYS):
            return self.read(body)
        return ReadFrame(is_error=True)

    def is_own(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_own`."""
        return "choices" in frame

    def is_foreign(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_foreign`."""
        if "choices" in frame or frame.get("error") is not None:
            return False
        if "error" in (frame.get("object"), frame.get("type")):  # values of any kind
            return False
        return any(key in frame for key in _FOREIGN_KEYS)


CHOICES: Final = ChoicesReader()


def _is_error(frame: dict[str, Any]) -> bool:
    return frame.get("error") is not None or frame.get("object") == "error" or frame.get("type") == "error"


def _texts(choice: dict[str, Any], delta: dict[str, Any]) -> list[ReadText]:
    """The texts in the order of an answer; of reasoning, the first of its two names that says something."""
    found = []
    if "text" in choice:
        found += _text("raw", "text", choice["text"])
    reasoning = [
        text for key in _REASONING_KEYS if key in delta for text in _text("reasoning", key, delta[key])
    ]
    spoken = [text for text in reasoning if not text.name]
    found += [text for text in reasoning if text.name] + spoken[:1]
    if "content" in delta:
        found += _text("text", "content", delta["content"])
    return found


def _text(channel: Channel, name: str, value: object) -> list[ReadText]:
    """A member that clients add up; null, and an empty text, say nothing."""
    if isinstance(value, str):
        return [ReadText(channel, value)] if value else []
    return [] if value is None else [ReadText(channel, "", name, value)]


def _calls(calls: object) -> tuple[list[ReadText], tuple[ReadCall, ...]]:
    """The calls of a delta; or what stands in their place and is none."""
    if calls is None:
        return [], ()
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return [ReadText("call", "", "tool_calls", calls)], ()
    return [], tuple(_call(call, place) for place, call in enumerate(calls))


def _call(call: dict[str, Any], place: int) -> ReadCall:
    index = call.get("index")
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = _text("call", "arguments", function.get("arguments"))
    return ReadCall(
        index if isinstance(index, int) else place,
        call.get("id"),
        function.get("name"),
        arguments[0] if arguments else ReadText("call"),
    )


def _counts(usage: object) -> ReadCounts | None:
    if not isinstance(usage, dict):
        return None
    numbers = map(usage.get, ("prompt_tokens", "completion_tokens", "total_tokens"))
    return ReadCounts(usage, *(number if isinstance(number, int) else None for number in numbers))
