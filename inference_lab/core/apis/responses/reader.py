"""What the events of a response's stream say."""

from __future__ import annotations

from typing import Any, Final

from inference_lab.core.apis.reading import FrameReader, Names, ReadCall, ReadCounts, ReadFrame, ReadText
from inference_lab.core.apis.responses.structure import ResponseStructure

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.cancelled"})
_TEXTS: Final = {
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
        kind = frame.get("type")
        if kind in {"error", "response.failed"} or (kind is None and frame.get("error") is not None):
            return ReadFrame(is_error=True)
        if kind in _TEXTS:
            return ReadFrame(is_answer=True, texts=(_text(_TEXTS[kind], frame.get("delta")),))
        if kind == "response.function_call_arguments.delta":
            return ReadFrame(
                is_answer=True, calls=(ReadCall(_index(frame), arguments=_text("call", frame.get("delta"))),)
            )
        if kind == "response.output_item.added":
            item = _object(frame.get("item"))
            if item.get("type") != "function_call":
                return ReadFrame(is_answer=True)
            call = ReadCall(_index(frame), item.get("call_id"), item.get("name"))
            return ReadFrame(is_answer=True, calls=(call,))
        if kind == "response.created":
            return ReadFrame(is_answer=True, has_role=True, names=_names(frame))
        if kind in _ENDS:
            return _end(_object(frame.get("response")), is_end=True)
        return ReadFrame(is_answer=isinstance(kind, str))

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        """See `FrameReader.read_whole`."""
        if body.get("object") != "response" or body.get("status") == "failed":
            return ReadFrame(is_error=True)
        texts: list[ReadText] = []
        calls: list[ReadCall] = []
        for index, item in enumerate(_list(body.get("output"))):
            kind = _object(item).get("type")
            if kind == "function_call":
                arguments = _text("call", item.get("arguments"))
                calls.append(ReadCall(index, item.get("call_id"), item.get("name"), arguments))
            elif kind in {"message", "reasoning"}:
                channel = "text" if kind == "message" else "reasoning"
                parts = [*_list(item.get("summary")), *_list(item.get("content"))]
                texts += [_text(channel, _object(part).get("text")) for part in parts]
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
        return str(frame.get("type")).startswith("response.") or frame.get("object") == "response"

    def structure(self) -> ResponseStructure:
        """See `FrameReader.structure`."""
        return ResponseStructure()


RESPONSE_EVENTS: Final = ResponseReader()


def _end(response: dict[str, Any], *, is_end: bool) -> ReadFrame:
    """The last event, or a whole answer: why it is over, and what it cost."""
    status, details = response.get("status"), _object(response.get("incomplete_details"))
    has_call = any(_object(item).get("type") == "function_call" for item in _list(response.get("output")))
    finish = {"completed": "tool_calls" if has_call else "stop"}.get(str(status), str(status))
    if status == "incomplete":
        finish = "length" if details.get("reason") == "max_output_tokens" else str(details.get("reason"))
    names = Names(response.get("id"), response.get("model"), response.get("created_at"))
    counts = _counts(response.get("usage"))
    return ReadFrame(is_answer=True, names=names, finish=finish, counts=counts, is_end=is_end)


def _names(frame: dict[str, Any]) -> Names:
    response = _object(frame.get("response"))
    return Names(response.get("id"), response.get("model"), response.get("created_at"))


def _counts(usage: object) -> ReadCounts | None:
    if not isinstance(usage, dict):
        return None
    values = (usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens"))
    return ReadCounts(
        usage,
        *(value if isinstance(value, int) and not isinstance(value, bool) else None for value in values),
    )


def _text(channel: Any, value: object) -> ReadText:  # noqa: ANN401 - one of the channels
    return (
        ReadText(channel, value) if isinstance(value, str) else ReadText(channel, name="delta", value=value)
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _index(frame: dict[str, Any]) -> int:
    index = frame.get("output_index")
    return index if isinstance(index, int) else 0
