"""What tests of resuming share: a stream read as a client reads it, and the four forms of a leg."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.support.clients.families import FAMILIES, Delivered, Family
from tests.support.clients.resume_client import CHAT, COMPLETIONS, RENDER, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.lab import MemoryLab

Messages = list[dict[str, Any]]
USER: Messages = [{"role": "user", "content": "hello"}]
FORMS = ("ids", "text", "prefill", "continue")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_it",
            "parameters": {"properties": {"n": {"type": "number"}, "city": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Heard:
    """A stream as its client heard it: the content pieces (channel, text) in order, and its end."""

    pieces: tuple[tuple[str, str], ...]
    name: str | None
    finish: str
    usage: dict[str, int]

    def text(self, channel: str) -> str:
        return "".join(text for kind, text in self.pieces if kind == channel)

    def first(self, count: int | None) -> Heard:
        """The first `count` pieces alone."""
        return replace(self, pieces=self.pieces[:count])

    def said(self, count: int | None = None) -> Delivered:
        """The first `count` pieces of a chat."""
        cut = self.first(count)
        arguments = cut.text("call") if any(kind == "call" for kind, _ in cut.pieces) else None
        return Delivered(
            cut.text("reasoning"),
            cut.text("text"),
            (self.name or "") if arguments is not None else "",
            arguments,
        )

    def raw(self, count: int | None = None) -> str:
        """The first `count` pieces of a completion."""
        return "".join(text for _, text in self.pieces[:count])


def events(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


def hear(body: bytes) -> Heard:
    """Read a whole stream."""
    pieces: list[tuple[str, str]] = []
    name, finish, usage = None, "", {}
    for frame in map(read, events(body)):
        usage = frame.get("usage") or usage
        for choice in frame.get("choices", ()):
            delta = choice.get("delta", {})
            finish = choice["finish_reason"] or finish
            said = [
                ("raw", choice.get("text")),
                ("reasoning", delta.get("reasoning_content")),
                ("text", delta.get("content")),
            ]
            pieces += [(kind, text) for kind, text in said if text]
            for call in delta.get("tool_calls", ()):
                name = call["function"].get("name", name)
                pieces.append(("call", call["function"]["arguments"]))
    return Heard(tuple(pieces), name, finish, usage)


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation with one model, and how its answer is asked for."""

    lab: MemoryLab
    model: str
    messages: Iterable[dict[str, Any]] = tuple(USER)
    tools: list[dict[str, Any]] | None = None

    @property
    def family(self) -> Family:
        return FAMILIES[self.model.partition("-")[0]]

    @property
    def thinking(self) -> bool:
        return self.model.endswith("-thinks")

    def ask(self, path: str, fault: str | None = None, **body: Any) -> Heard:
        """A stream, heard."""
        return hear(self.stream(path, fault, **body))

    def stream(self, path: str, fault: str | None = None, **body: Any) -> bytes:
        asked = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **body}
        got = self.lab.exchange(path, asked, {"x-inference-lab-fault": fault} if fault else None)
        assert got.status == 200, got.raw
        return got.body

    def chat(self, more: Iterable[dict[str, Any]] = (), **body: Any) -> dict[str, Any]:
        tools = {} if self.tools is None else {"tools": self.tools}
        return {"messages": [*self.messages, *more], **tools, **body}

    def rendered(self, raw: str = "") -> dict[str, Any]:
        """What `/v1/render` tells of the answer so far."""
        body = {"model": self.model, **self.chat(), "continuation_text": raw, "return_rendered": True}
        told: dict[str, Any] = self.lab.post(RENDER, body)
        return told

    def first(self, path: str, fault: str | None = None, **body: Any) -> Heard:
        """The first leg, on either endpoint."""
        prompt = {"prompt": self.rendered()["token_ids"]} if path == COMPLETIONS else self.chat()
        return self.ask(path, fault, **prompt, **body)

    def prompt(self, form: str, raw: str, said: Delivered) -> tuple[str, dict[str, Any]]:
        """Where a leg of one of the four forms goes, and what is its own in its body."""
        if form in {"ids", "text"}:
            told = self.rendered(raw)
            return COMPLETIONS, {"prompt": told["token_ids"] if form == "ids" else told["rendered"]}
        message = {"role": "assistant", "content": said.content, "reasoning_content": said.reasoning}
        if said.arguments is not None:
            function = {"name": said.name, "arguments": said.arguments}
            message |= {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
        if form == "prefill":
            return CHAT, self.chat([message | {"prefix": True}])
        return CHAT, self.chat([message], continue_final_message=True, add_generation_prompt=False)

    def leg(self, form: str, raw: str, said: Delivered, fault: str | None = None, **body: Any) -> Heard:
        """A leg of one of the four forms."""
        path, own = self.prompt(form, raw, said)
        return self.ask(path, fault, **own, **body)
