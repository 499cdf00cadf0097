"""A continuation layer, small: passes a stream on, and where it dies asks for the rest and splices that onto it.

It knows what a gateway knows: the frames it saw, the ids that `/v1/render` (for a chat) or `/tokenize` (for a raw
prompt) tells, and the markup of the model's family. Its requests carry Authorization, Content-Type and Accept, and
nothing else. A `Bug` makes it do one thing wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from tests.support.clients.families import Delivered, Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

CHAT, COMPLETIONS, RENDER, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/render", "/tokenize"
DONE = b"data: [DONE]\n\n"
SENT_ON = (
    *("temperature", "top_p", "seed", "stop"),
    *("logit_bias", "frequency_penalty", "presence_penalty"),
)
_CLIENT_ERRORS = range(400, 500)


class DeathError(Exception):
    """The transport's: the connection broke, or was silent for too long."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; `blocks` are the body's bytes as they come, and may raise DeathError."""

    status: int
    content_type: str
    blocks: Iterable[bytes]


class Transport(Protocol):
    """Sends a POST."""

    def __call__(self, path: str, headers: Mapping[str, str], body: bytes, /) -> Reply: ...


class Bug(Enum):
    """What a gateway may get wrong."""

    DROPS_A_WORD = "drops a word"
    REPEATS_A_WORD = "repeats a word"
    RESTARTS = "restarts"
    LOSES_A_BLANK = "loses a blank"
    KEEPS_THE_TORN_HALF = "keeps the torn half"
    ADDS_USAGES_WRONGLY = "adds the usages wrongly"


@dataclass(slots=True)
class Answer:
    """The copy of what has been passed on. `raw` is its text as the model must have written it."""

    head: dict[str, Any] = field(default_factory=dict)
    said: Delivered = field(default_factory=Delivered)
    raw: str = ""
    role: bool = False
    finish: str = ""
    usage: bool = False
    done: bool = False
    failed: bool = False


@dataclass(slots=True)
class ResumeClient:
    """`answer` gives what a gateway's client receives, on either endpoint; legs always go to completions."""

    ask: Transport
    family: Family | None = None
    thinking: bool = False
    bug: Bug | None = None
    most_legs: int = 8

    def answer(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """Pass the first stream on, then legs until the answer is whole or cannot be continued."""
        answer = Answer()
        reply = self._post(path, body)
        yield from self._first(reply, answer)
        for _ in range(self.most_legs):
            if answer.done or answer.finish or answer.failed:
                break
            yield from self._leg(path, body, answer)
        if answer.finish and not answer.done:
            yield from self._trailer(path, body, answer)

    def _post(self, path: str, body: dict[str, Any]) -> Reply:
        headers = {
            "Authorization": "Bearer none",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
        }
        return self.ask(path, headers, json.dumps(body).encode())

    def _first(self, reply: Reply, answer: Answer) -> Iterator[bytes]:
        """The first stream, byte for byte, while a copy accumulates."""
        if reply.status // 100 != 2 or not reply.content_type.startswith("text/event-stream"):
            answer.failed = True
            yield from reply.blocks
            return
        for event in whole_events(reply.blocks, torn=self.bug is Bug.KEEPS_THE_TORN_HALF):
            frame = read(event)
            if dies_of(frame):
                break
            yield event
            self._keep(answer, frame)
        if self.family is not None and not answer.raw:
            answer.raw = self.family.raw(answer.said, thinking=self.thinking)

    @staticmethod
    def _keep(answer: Answer, frame: dict[str, Any]) -> None:
        answer.done = answer.done or bool(frame.get("done"))
        answer.failed = answer.failed or is_error(frame)
        if not answer.head and "id" in frame:
            answer.head = {key: frame[key] for key in ("id", "object", "created", "model")}
        answer.usage = answer.usage or bool(frame.get("usage"))
        for choice in frame.get("choices") or ():
            delta = choice.get("delta") or {}
            said = answer.said
            answer.role = answer.role or "role" in delta
            answer.raw += choice.get("text") or ""
            name, arguments = said.name, said.arguments
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                name, arguments = (
                    name or function.get("name", ""),
                    (arguments or "") + function.get("arguments", ""),
                )
            answer.said = Delivered(
                said.reasoning + (delta.get("reasoning_content") or delta.get("reasoning") or ""),
                said.content + (delta.get("content") or ""),
                name,
                arguments,
            )
            answer.finish = answer.finish or choice.get("finish_reason") or ""

    def _leg(self, path: str, body: dict[str, Any], answer: Answer) -> Iterator[bytes]:
        """Ask for the rest and splice it on, until it ends or dies in its turn."""
        ids, continued = self._rendered(path, body, answer.raw)
        asked = body.get("max_tokens")
        if asked is not None and asked <= continued:
            answer.finish = "length"
            yield self._finish(path, answer)
            return
        first = True
        reply = self._post(COMPLETIONS, self._leg_body(body, ids, asked, continued))
        for event in whole_events(reply.blocks, torn=self.bug is Bug.KEEPS_THE_TORN_HALF):
            frame = read(event)
            if dies_of(frame):
                return
            if not event.endswith(b"\n\n"):
                yield event
            if frame.get("done"):
                answer.done = True
                yield event
            for choice in frame.get("choices") or ():
                answer.head = answer.head or self._head(path, frame)
                text = choice.get("text") or ""
                if text and first and self.bug is Bug.LOSES_A_BLANK:
                    text = text.lstrip(" ")
                if text and not (first and self.bug is Bug.DROPS_A_WORD):
                    yield from self._spliced(path, answer, text)
                first = first and not text
                if choice.get("finish_reason"):
                    answer.finish = choice["finish_reason"]
                    yield self._finish(path, answer)
            if frame.get("usage") and wants_usage(body):
                answer.usage = True
                yield self._usage(answer, frame["usage"], continued)
            if is_error(frame):
                answer.failed = True
                yield event

    def _leg_body(
        self, body: dict[str, Any], ids: list[int], asked: int | None, continued: int
    ) -> dict[str, Any]:
        leg = {
            "model": body["model"],
            "prompt": ids,
            "stream": True,
            "stream_options": {"include_usage": True},
            "nvext": {"agent_hints": {"priority": 1}},
        }
        if asked is not None:
            leg["max_tokens"] = asked - continued
        return leg | {key: body[key] for key in SENT_ON if key in body}

    def _rendered(self, path: str, body: dict[str, Any], raw: str) -> tuple[list[int], int]:
        """The ids of the prompt with the answer so far, and how many of them are the answer's."""
        if self.bug is Bug.RESTARTS:
            raw = ""
        elif self.bug is Bug.REPEATS_A_WORD:
            raw = raw[: raw.rfind(" ")]
        if path == CHAT:
            asked = {
                key: body[key]
                for key in ("model", "messages", "tools", "chat_template_kwargs")
                if key in body
            }
            told = self._json(RENDER, {**asked, "continuation_text": raw})
            return told["token_ids"], told["continuation_tokens"]
        ids, alone = (
            self._json(TOKENIZE, {"model": body["model"], "prompt": text})["tokens"]
            for text in (body["prompt"] + raw, body["prompt"])
        )
        return ids, len(ids) - len(alone)

    def _json(self, path: str, body: dict[str, Any]) -> Any:
        reply = self._post(path, body)
        data = b"".join(reply.blocks)
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {data!r}")
        return json.loads(data)

    def _spliced(self, path: str, answer: Answer, text: str) -> Iterator[bytes]:
        """A leg's text as frames of the first stream."""
        before, answer.raw = answer.said, answer.raw + text
        if self.family is None or path != CHAT:
            yield event_of(answer.head, {"text": text, "logprobs": None, "finish_reason": None})
            return
        after = answer.said = self.family.said(answer.raw, thinking=self.thinking)
        role = {} if answer.role else {"role": "assistant"}
        answer.role = True
        for delta in deltas(before, after, answer.head):
            yield event_of(answer.head, {"delta": role | delta, "finish_reason": None})
            role = {}

    def _finish(self, path: str, answer: Answer) -> bytes:
        if path != CHAT:
            return event_of(answer.head, {"text": "", "logprobs": None, "finish_reason": answer.finish})
        if answer.finish == "stop" and answer.said.arguments is not None:
            answer.finish = "tool_calls"
        return event_of(answer.head, {"delta": {}, "finish_reason": answer.finish})

    def _usage(self, answer: Answer, leg: dict[str, int], continued: int) -> bytes:
        prompt = leg["prompt_tokens"] - continued
        completion = leg["completion_tokens"] + continued
        if self.bug is Bug.ADDS_USAGES_WRONGLY:
            prompt, completion = leg["prompt_tokens"], leg["completion_tokens"]
        return event_of(answer.head, None, usage=counts(prompt, completion))

    def _trailer(self, path: str, body: dict[str, Any], answer: Answer) -> Iterator[bytes]:
        """What a stream that has finished still lacks."""
        if not answer.usage and wants_usage(body):
            ids, continued = self._rendered(path, body, answer.raw)
            yield event_of(answer.head, None, usage=counts(len(ids) - continued, continued))
        yield DONE

    @staticmethod
    def _head(path: str, frame: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        return {"id": frame["id"], "object": kind, "created": frame["created"], "model": frame["model"]}


def whole_events(blocks: Iterable[bytes], *, torn: bool = False) -> Iterator[bytes]:
    """The events up to the end or the death; what is torn there is dropped, or kept by mistake."""
    held = b""
    try:
        for block in blocks:
            *whole, held = (held + block).split(b"\n\n")
            yield from (event + b"\n\n" for event in whole)
    except DeathError:
        pass
    if held and torn:
        yield held


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether the client has asked for a usage frame."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def is_error(frame: dict[str, Any]) -> bool:
    """Whether a frame is an error object, wrapped or flat."""
    return frame.get("error") is not None or frame.get("object") == "error"


def dies_of(frame: dict[str, Any]) -> bool:
    """Whether a frame is the death of its stream: an error that is not the client's own."""
    error = frame if frame.get("object") == "error" else frame.get("error")
    if not isinstance(error, dict):
        return error is not None
    return error.get("code") not in _CLIENT_ERRORS or error.get("type") == "request_cancelled"


def counts(prompt: int, completion: int) -> dict[str, int]:
    """A usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def deltas(before: Delivered, after: Delivered, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a chat client is still to hear."""
    for key, old, new in (
        ("reasoning_content", before.reasoning, after.reasoning),
        ("content", before.content, after.content),
    ):
        if new != old:
            yield {key: new[len(old) :]}
    if after.arguments is None:
        return
    if before.arguments is None:
        function = {"name": after.name, "arguments": ""}
        yield {
            "tool_calls": [{"index": 0, "id": f"call_{head['id']}", "type": "function", "function": function}]
        }
    if arguments := after.arguments[len(before.arguments or "") :]:
        yield {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


def event_of(head: dict[str, Any], choice: dict[str, Any] | None, **more: Any) -> bytes:
    """One frame."""
    choices = [] if choice is None else [{"index": 0, **choice}]
    text = json.dumps({**head, "choices": choices, **more}, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


@lru_cache(4096)
def read(event: bytes) -> dict[str, Any]:
    """One event's JSON; `{"done": True}` for `[DONE]`, nothing where it is no frame."""
    data = event.strip().removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return {"done": True}
    try:
        frame = json.loads(data)
    except ValueError:
        return {}
    return frame if isinstance(frame, dict) else {}
