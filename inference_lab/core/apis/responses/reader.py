"""What the events of a response's stream say."""

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
    count_of,
    list_of,
    object_of,
    text_read,
    word_of,
)
from inference_lab.core.apis.responses.structure import ResponseStructure

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.cancelled"})
_TEXTS: Final[dict[object, Channel]] = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}


class ResponseReader(FrameReader):
    """See `reading.FrameReader`."""

    def is_end(self, data: bytes) -> bool:
        """See `FrameReader.is_end`: what some servers send after the last event."""
        return data == b"[DONE]"

    def read(self, frame: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read`."""
        kind = word_of(frame.get("type"))
        if kind in {"error", "response.failed"} or (not kind and frame.get("error") is not None):
            return ReadFrame(is_error=True)
        if kind in _TEXTS:
            return ReadFrame(is_answer=True, texts=(text_read(_TEXTS[kind], frame.get("delta")),))
        if kind == "response.function_call_arguments.delta":
            return ReadFrame(
                is_answer=True,
                calls=(ReadCall(_index(frame), arguments=text_read("call", frame.get("delta"))),),
            )
        if kind == "response.output_item.added":
            item = object_of(frame.get("item"))
            if item.get("type") != "function_call":
                return ReadFrame(is_answer=True)
            call = ReadCall(_index(frame), item.get("call_id"), item.get("name"))
            return ReadFrame(is_answer=True, calls=(call,))
        if kind == "response.created":
            return ReadFrame(is_answer=True, has_role=True, names=_names(frame))
        if kind in _ENDS:
            return _end(object_of(frame.get("response")), is_end=True)
        return ReadFrame(is_answer=bool(kind))

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read_whole`."""
        if body.get("object") != "response" or body.get("status") == "failed":
            return ReadFrame(is_error=True)
        texts: list[ReadText] = []
        calls: list[ReadCall] = []
        for index, item in enumerate(list_of(body.get("output"))):
            kind = word_of(object_of(item).get("type"))
            if kind == "function_call":
                arguments = text_read("call", item.get("arguments"))
                calls.append(ReadCall(index, item.get("call_id"), item.get("name"), arguments))
            elif kind in {"message", "reasoning"}:
                channel: Channel = "text" if kind == "message" else "reasoning"
                parts = [*list_of(item.get("summary")), *list_of(item.get("content"))]
                texts += [text_read(channel, object_of(part).get("text")) for part in parts]
        end = _end(body, is_end=False)
        return ReadFrame(
            is_answer=True,
            has_role=True,
            names=end.names,
            texts=tuple(texts),
            calls=tuple(calls),
            finish=end.finish,
            counts=end.counts,
        )

    def is_foreign(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_foreign`."""
        return "choices" in frame

    def is_own(self, frame: dict[str, Any]) -> bool:
        """See `FrameReader.is_own`."""
        return word_of(frame.get("type")).startswith("response.") or frame.get("object") == "response"

    def structure(self, *, is_resumed: bool = False) -> ResponseStructure:
        """See `FrameReader.structure`."""
        return ResponseStructure(is_resumed=is_resumed)


RESPONSE_EVENTS: Final = ResponseReader()


def _end(response: dict[str, Any], *, is_end: bool) -> ReadFrame:
    """The last event, or a whole answer: why it is over, and what it cost."""
    status, details = response.get("status"), object_of(response.get("incomplete_details"))
    has_call = any(object_of(item).get("type") == "function_call" for item in list_of(response.get("output")))
    finish = {"completed": "tool_calls" if has_call else "stop"}.get(str(status), str(status))
    if status == "incomplete":
        reason = details.get("reason", "max_output_tokens")  # which some servers leave out
        finish = "length" if reason == "max_output_tokens" else str(reason)
    names = Names(response.get("id"), response.get("model"), response.get("created_at"))
    counts = _counts(response.get("usage"))
    return ReadFrame(is_answer=True, names=names, finish=finish, counts=counts, is_end=is_end)


def _names(frame: dict[str, Any]) -> Names:
    response = object_of(frame.get("response"))
    return Names(response.get("id"), response.get("model"), response.get("created_at"))


def _counts(usage: object) -> ReadCounts | None:
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "output_tokens", "total_tokens")
    return ReadCounts(usage, *(count_of(usage.get(name)) for name in names))


def _index(frame: dict[str, Any]) -> int:
    index = frame.get("output_index")
    return index if isinstance(index, int) else 0
