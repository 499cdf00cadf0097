"""The frames of the wire contract, computed a second time, on purpose without the program's code."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

ENDPOINTS = (CHAT, COMPLETIONS)
MODES = (
    "cut_between_frames",
    "cut_mid_frame",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
)
ABRUPT_FIN = ("cut_between_frames", "cut_mid_frame", "mid_reasoning", "mid_tool_call")
GRACEFUL = ("error_envelope_200", "error_400_in_sse", "no_done", "no_usage", "cancelled_499")
CURL_EXIT = {**dict.fromkeys(ABRUPT_FIN, 18), "reset": 56, "stall": 28, **dict.fromkeys(GRACEFUL, 0)}

DONE = b"data: [DONE]\n\n"
ENVELOPE = (
    b'data: {"error":{"message":"Provider returned error","code":502,'
    b'"metadata":{"provider_name":"inference-lab","raw":"simulated upstream failure"}}}\n\n'
)
BAD_REQUEST = (
    b'data: {"object":"error","message":"This model\'s maximum context length was exceeded",'
    b'"type":"BadRequestError","param":null,"code":400}\n\n'
)
CANCELLED = b'data: {"error":{"code":499,"message":"CancelledError: ","type":"request_cancelled"}}\n\n'


def lab_ids(text: str) -> list[int]:
    """Ids of plain ASCII text that holds no word: packs of four, never across `<` in front or `>` behind."""
    pieces = re.findall(r"<?[^<>]*>?|>", text)
    packs = [piece[i : i + 4] for piece in pieces for i in range(0, len(piece), 4)]
    return [sum(ord(char) << 7 * place for place, char in enumerate(pack)) for pack in packs]


def tag_of(ids: list[int]) -> str:
    """The two letters that a prompt's ids stand for."""
    raw = b"".join(number.to_bytes(4, "little") for number in ids if number)
    number = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big") % 676
    return chr(ord("a") + number // 26) + chr(ord("a") + number % 26)


def chat_prompt(*messages: tuple[str, str]) -> str:
    return "".join(f"<|{role}|>{text}<|end|>" for role, text in messages) + "<|assistant|>"


HELLO = {CHAT: lab_ids(chat_prompt(("user", "hello"))), COMPLETIONS: lab_ids("hello")}


def word(tag: str, index: int) -> str:
    return f"{' ' if index else ''}{tag}{index:04d}{'é' if index % 8 == 7 else ''}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def sse(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Stream:
    """What the frames of one answer share."""

    endpoint: str
    ident: str
    created: int
    model: str
    tag: str

    @property
    def chat(self) -> bool:
        return self.endpoint == CHAT

    @classmethod
    def of(cls, endpoint: str, first_frame: bytes, tag: str) -> Stream:
        """Take the free values (id, created) from the first frame, having checked their form."""
        document = json.loads(first_frame.removeprefix(b"data: "))
        prefix = "chatcmpl" if endpoint == CHAT else "cmpl"
        assert re.fullmatch(rf"{prefix}-[0-9a-f]{{24}}", document["id"]), document
        assert type(document["created"]) is int
        return cls(endpoint, document["id"], document["created"], document["model"], tag)

    def _document(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        base = {"id": self.ident, "object": kind, "created": self.created, "model": self.model}
        return sse({**base, "choices": choices, **more})

    def delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._document([{"index": 0, "delta": delta, "finish_reason": finish}])

    def piece(self, text: str, finish: str | None = None) -> bytes:
        return self._document([{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}])

    def opening(self) -> list[bytes]:
        return [self.delta({"role": "assistant"})] if self.chat else []

    def text(self, text: str) -> bytes:
        return self.delta({"content": text}) if self.chat else self.piece(text)

    def finish(self, reason: str = "stop") -> bytes:
        return self.delta({}, reason) if self.chat else self.piece("", reason)

    def usage(self, prompt: int, completion: int) -> bytes:
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        return self._document([], usage=counts)

    def content(self, mode: str, count: int, name: str, key: str) -> list[bytes]:
        """The N content frames of a mode."""
        if mode == "mid_reasoning":
            return [self._reasoning(index) for index in range(count)]
        if mode == "mid_tool_call":
            return [self._call(index, name, key) for index in range(count)]
        return [self.text(word(self.tag, index)) for index in range(count)]

    def _reasoning(self, index: int) -> bytes:
        text = word(self.tag, index).upper()
        if self.chat:
            return self.delta({"reasoning_content": text})
        return self.piece(text if index else "<think>" + text)

    def _call(self, index: int, name: str, key: str) -> bytes:
        if not self.chat:
            opening = f'{{"name": {quoted(name)}, "arguments": {{{quoted(key)}: "'
            return self.piece(word(self.tag, index - 1) if index else opening)
        if index == 0:
            function = {"name": name, "arguments": ""}
            ident = "call_" + self.ident.partition("-")[2]
            return self.delta(
                {"tool_calls": [{"index": 0, "id": ident, "type": "function", "function": function}]}
            )
        fragment = word(self.tag, index - 1)
        if index == 1:
            fragment = f'{{{quoted(key)}: "' + fragment
        return self.delta({"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]})

    def torn_half(self, index: int) -> bytes:
        frame = self.text(word(self.tag, index))
        cut = len(frame) // 2
        while frame[cut] & 0xC0 == 0x80:
            cut -= 1
        return frame[:cut]

    def torn_utf8(self, index: int) -> bytes:
        text = word(self.tag, index)
        frame = self.text(text if text.endswith("é") else text + "é")
        return frame[: frame.index("é".encode()) + 1]


def expected_chunks(
    stream: Stream,
    mode: str,
    count: int,
    *,
    utf8: bool = False,
    usage: int | None = None,
    name: str = "get_current_weather",
    key: str = "location",
) -> list[bytes]:
    """Every chunk of a death, `usage` being the prompt's tokens where the request asked for usage."""
    tail: dict[str, list[bytes]] = {
        "error_envelope_200": [ENVELOPE, DONE],
        "error_400_in_sse": [BAD_REQUEST],
        "cancelled_499": [CANCELLED],
        "no_done": [stream.finish(), *([] if usage is None else [stream.usage(usage, count)])],
        "no_usage": [stream.finish(), DONE],
        "cut_mid_frame": [stream.torn_utf8(count) if utf8 else stream.torn_half(count)],
    }
    return stream.opening() + stream.content(mode, count, name, key) + tail.get(mode, [])
