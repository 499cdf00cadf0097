"""What the events of a message's stream say."""

from __future__ import annotations

from typing import Any, Final

from inference_lab.core.apis.messages.structure import KNOWN_EVENTS, MessageStructure
from inference_lab.core.apis.reading import (
    Names,
    ReadCall,
    ReadCounts,
    ReadFrame,
    ReadText,
    count_of,
    object_of,
    text_read,
    word_of,
)
from inference_lab.core.json_text import spaced

STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Chat's finish reasons, by which an answer goes, and what they are called here; any other stands as it is."""
_FINISHES: Final = {shown: reason for reason, shown in STOP_REASONS.items()} | {"stop_sequence": "stop"}

_END_BYTES: Final = 512
"""More than what ends a stream has, whoever writes it."""


class EventReader:
    """See `reading.FrameReader`."""

    def is_end(self, data: bytes) -> bool:
        """See `FrameReader.is_end`."""
        if len(data) > _END_BYTES:
            return False
        return data == b"[DONE]" or data.replace(b" ", b"").startswith(b'{"type":"message_stop"')

    def read(self, frame: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read`."""
        kind = word_of(frame.get("type"))
        if kind == "error" or (kind not in KNOWN_EVENTS and frame.get("error") is not None):
            return ReadFrame(is_error=True)
        if kind == "message_start":
            message = object_of(frame.get("message"))
            names = Names(message.get("id"), message.get("model"))
            return ReadFrame(is_answer=True, has_role=True, names=names)
        if kind == "content_block_start":
            return self._start(frame)
        if kind == "content_block_delta":
            return self._delta(frame)
        if kind == "message_delta":
            return self._end(frame)
        return ReadFrame()

    @staticmethod
    def _start(frame: dict[str, Any]) -> ReadFrame:
        block = object_of(frame.get("content_block"))
        if block.get("type") != "tool_use":
            return ReadFrame(is_answer=True)
        call = ReadCall(_index(frame), block.get("id"), block.get("name"))
        return ReadFrame(is_answer=True, calls=(call,))

    @staticmethod
    def _delta(frame: dict[str, Any]) -> ReadFrame:
        delta = object_of(frame.get("delta"))
        kind = word_of(delta.get("type"))
        if kind == "text_delta":
            return ReadFrame(is_answer=True, texts=_texts("text", delta.get("text")))
        if kind == "thinking_delta":
            return ReadFrame(is_answer=True, texts=_texts("reasoning", delta.get("thinking")))
        if kind == "input_json_delta":
            text = text_read("call", delta.get("partial_json"))
            return ReadFrame(is_answer=True, calls=(ReadCall(_index(frame), arguments=text),))
        return ReadFrame(is_answer=True)

    @staticmethod
    def _end(frame: dict[str, Any]) -> ReadFrame:
        reason = object_of(frame.get("delta")).get("stop_reason")
        finish = _FINISHES.get(reason, reason) if isinstance(reason, str) else None
        return ReadFrame(is_answer=True, finish=finish, counts=_counts(frame.get("usage")))

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read_whole`."""
        if body.get("type") != "message":
            return ReadFrame(is_error=True)
        texts: list[ReadText] = []
        calls: list[ReadCall] = []
        content = body.get("content")
        for index, value in enumerate(content if isinstance(content, list) else ()):
            block = object_of(value)
            if block.get("type") == "text":
                texts += _texts("text", block.get("text"))
            elif block.get("type") == "thinking":
                texts += _texts("reasoning", block.get("thinking"))
            elif block.get("type") == "tool_use":
                arguments = ReadText("call", _written(block.get("input")))
                calls.append(ReadCall(index, block.get("id"), block.get("name"), arguments))
        reason = body.get("stop_reason")
        return ReadFrame(
            is_answer=True,
            has_role=True,
            names=Names(body.get("id"), body.get("model")),
            texts=tuple(texts),
            calls=tuple(calls),
            finish=_FINISHES.get(reason, reason) if isinstance(reason, str) else None,
            counts=_counts(body.get("usage")),
        )

    def is_foreign(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_foreign`."""
        return "choices" in frame

    def is_own(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_own`."""
        kind = word_of(frame.get("type"))
        return kind == "message" or (kind in KNOWN_EVENTS and kind != "error")

    def structure(self, *, is_resumed: bool = False) -> MessageStructure:
        """See `FrameReader.structure`: a message's leg begins with a start of its own."""
        del is_resumed
        return MessageStructure()


EVENTS: Final = EventReader()


def _index(frame: dict[str, Any]) -> int:
    index = frame.get("index")
    return index if isinstance(index, int) else 0


def _texts(channel: Any, value: object) -> tuple[ReadText, ...]:  # noqa: ANN401 - one of the channels
    return () if value is None or value == "" else (text_read(channel, value),)


def _written(value: object) -> str:
    return spaced(value) if isinstance(value, dict) and value else ""


def _counts(usage: object) -> ReadCounts | None:
    """The counts of an answer: input that was cached is counted apart here."""
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    inputs = [count for count in (count_of(usage.get(name)) for name in names) if count is not None]
    return ReadCounts(usage, sum(inputs) if inputs else None, count_of(usage.get("output_tokens")))
