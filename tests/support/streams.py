"""Streams as the lab writes them, for tests of the oracle: frames as bytes, one or several words in each."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from inference_lab.core.answer.pieces import Piece

HEAD = {"id": "c", "created": 1, "model": "m"}
RAW_HEAD = HEAD


def event(frame: object) -> bytes:
    text = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({**HEAD, "choices": [choice], **members})


def raw_chunk(text: str = "", finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({**RAW_HEAD, "choices": [choice], **members})


def usage(completion: int, prompt: int = 5, total: int | None = None) -> dict[str, int]:
    whole = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": whole}


def usage_frame(completion: int, **counts: int) -> bytes:
    return event({**HEAD, "choices": [], "usage": usage(completion, **counts)})


DONE = event("[DONE]")
ROLE = chunk({"role": "assistant"})


def delta_of(piece: Piece, name: str = "f") -> dict[str, Any]:
    if piece.channel == "text":
        return {"content": piece.delta}
    if piece.channel == "reasoning":
        return {"reasoning_content": piece.delta}
    if piece.delta:
        return {"tool_calls": [{"index": 0, "function": {"arguments": piece.delta}}]}
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}


def grouped(pieces: Iterable[Piece], size: int) -> list[list[Piece]]:
    """Several pieces of one channel to a frame; an announcement stays alone."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        last = groups[-1] if groups else []
        if last and len(last) < size and last[0].channel == piece.channel and last[0].delta and piece.delta:
            last.append(piece)
        else:
            groups.append([piece])
    return groups


def join(pieces: Sequence[Piece]) -> Piece:
    first = pieces[0]
    return Piece(
        first.channel,
        "".join(piece.delta for piece in pieces),
        "".join(piece.raw for piece in pieces),
        sum(piece.token_count for piece in pieces),
        sum(piece.words for piece in pieces),
    )


def chat(pieces: Iterable[Piece], finish: str = "stop", size: int = 1) -> list[bytes]:
    """The frames of a healthy chat stream, usage and `[DONE]` included."""
    groups = [join(group) for group in grouped(pieces, size)]
    frames = [chunk(delta_of(piece)) for piece in groups]
    count = sum(piece.token_count for piece in groups)
    return [ROLE, *frames, chunk(finish=finish), usage_frame(count), DONE]


def completion(pieces: Iterable[Piece], finish: str = "stop", size: int = 1) -> list[bytes]:
    """The frames of a healthy completions stream."""
    groups = [join(group) for group in grouped(pieces, size)]
    frames = [raw_chunk(piece.raw) for piece in groups]
    count = sum(piece.token_count for piece in groups)
    last = event({**RAW_HEAD, "choices": [], "usage": usage(count)})
    return [*frames, raw_chunk(finish=finish), last, DONE]


def words(numbers: Iterable[int], tag: str = "qu") -> list[bytes]:
    """Chat frames of these words, whatever their order."""
    return [chunk({"content": spell_for(tag, number)}) for number in numbers]


def spell_for(tag: str, number: int) -> str:
    accent = ("É" if tag.isupper() else "é") if number % 8 == 7 else ""
    return f"{' ' if number else ''}{tag}{number:04d}{accent}"


def stream(frames: Iterable[bytes], finish: str | None = "stop") -> bytes:
    """A chat stream of these content frames, ended normally."""
    end = [chunk(finish=finish), DONE] if finish else []
    return b"".join(chain([ROLE], frames, end))
