"""A model of gateways: answers in every shape of the API, rewrites of them that are right, and splices that are wrong.

No rewrite may be wrong to the oracle, and no splice whole. The suite tries a sample;
`python -m tests.support.gateways --cases 10000 [--seed 1]` searches on, and prints each case that it finds.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.oracle import Kind, verify
from inference_lab.core.prompts.messages import Message
from inference_lab.core.tokens import encode
from tests.support.streams import delta_of, grouped, join, usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.answer.pieces import Piece
    from inference_lab.core.answer.templates import ChatTemplate

WORD = re.compile(" ?[A-Za-z]{2}[0-9]{4}[éÉ]?")
DONE = "[DONE]"
ERROR: dict[str, Any] = {"error": {"message": "upstream failed", "code": 502}}
HEAD = {"id": "a", "created": 1, "model": "m"}


class Body(msgspec.Struct):
    """A response's body: its frames, or the one object of a JSON answer; a text is a frame that is no object."""

    is_chat: bool
    is_stream: bool
    frames: list[Any]
    channels: set[str]
    id: str = "a"

    def bytes(self) -> bytes:
        """As a client receives it."""
        if not self.is_stream:
            return json.dumps(self.frames[0], ensure_ascii=False).encode()
        texts = (frame if isinstance(frame, str) else json.dumps(frame) for frame in self.frames)
        return "".join(
            f"{text}\n\n" if text.startswith(":") else f"data: {text}\n\n" for text in texts
        ).encode()

    def choice(self, index: int) -> dict[str, Any] | None:
        """Choice 0 of a frame, if there is one."""
        frame = self.frames[index]
        choices = frame.get("choices") if isinstance(frame, dict) else None
        return choices[0] if choices else None

    def texts(self) -> list[tuple[int, dict[str, Any], str]]:
        """Where text stands: frame, the members it is one of, its name."""
        found = []
        for index in range(len(self.frames)):
            choice = self.choice(index) or {}
            said = choice.get("delta") or choice.get("message") or choice
            calls = [call["function"] for call in said.get("tool_calls") or ()]
            found += [
                (index, members, name)
                for members in (said, *calls)
                for name in ("reasoning_content", "content", "text", "arguments")
                if isinstance(members.get(name), str) and members[name]
            ]
        return found

    @property
    def last_text(self) -> int:
        """The frame of the last text."""
        return self.texts()[-1][0]

    def finish_at(self) -> int:
        """The frame with the finish."""
        return next(
            index for index in range(len(self.frames)) if (self.choice(index) or {}).get("finish_reason")
        )

    def finish(self, reason: str) -> None:
        """Another finish reason."""
        for index in range(self.finish_at(), len(self.frames)):
            choice = self.choice(index)
            if choice and choice["finish_reason"]:
                choice["finish_reason"] = reason

    def take_usage(self) -> None:
        """No usage at all."""
        for frame in self.frames:
            if isinstance(frame, dict):
                frame.pop("usage", None)
        if self.is_stream:
            self.frames = [frame for frame in self.frames if isinstance(frame, str) or frame.get("choices")]

    def put_usage(self, count: int) -> None:
        """A usage, and no other."""
        self.take_usage()
        if not self.is_stream:
            self.frames[0]["usage"] = usage(count)
        else:
            self.frames.insert(self.finish_at() + 1, {**HEAD, "choices": [], "usage": usage(count)})

    def put_last_usage(self, count: int) -> None:
        """A usage behind all others."""
        self.frames.insert(self.finish_at() + 1, {**HEAD, "choices": [], "usage": usage(count)})

    def words(self, up_to: int | None = None) -> int:
        """The words of the frames before this one, however they are cut."""
        texts: dict[tuple[str, object], str] = {}
        for index, members, name in self.texts():
            if up_to is None or index < up_to:
                call = self._call_at(index) if name == "arguments" else None
                texts[name, call] = texts.get((name, call), "") + members[name]
        return sum(len(WORD.findall(text)) for text in texts.values())

    def _call_at(self, index: int) -> object:
        """Which call a frame is of; in a JSON answer all are in one."""
        choice = self.choice(index) or {}
        return choice["delta"]["tool_calls"][0]["index"] if "delta" in choice else None

    def calls_at(self) -> set[int]:
        """The frames with calls in their deltas."""
        found = set()
        for index in range(len(self.frames)):
            choice = self.choice(index) or {}
            said = choice.get("delta") or choice.get("message") or {}
            if said.get("tool_calls"):
                found.add(index)
        return found

    def join_texts(self) -> str:
        """All text put into the first frame that has any."""
        places = self.texts()
        text = "".join(members[name] for _, members, name in places)
        for _, members, name in places:
            members[name] = ""
        _, members, name = places[0]
        members[name] = text
        return text

    def silent(self, said: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """A frame of this answer with another delta, on completions a text."""
        choice = {"index": 0, "finish_reason": finish}
        choice |= {"delta": said} if self.is_chat else {"text": said.get("content", "")}
        return {**HEAD, "id": self.id, "choices": [choice]}


def silent_frame(rng: random.Random) -> dict[str, Any]:
    """A frame without choices, as gateways make them of pings."""
    frame: dict[str, Any] = {
        "id": f"ping-{rng.random()}",
        "model": "other",
        "role": "assistant",
        "created": 7,
    }
    if rng.random() < 0.7:
        frame["choices"] = rng.choice(([], None))
    if rng.random() < 0.3:
        frame["usage"] = rng.choice((None, usage(0, prompt=0)))
    return frame


# -- healthy answers


def answer(rng: random.Random) -> Body:
    """A healthy answer of a few words in any shape, channel and format."""
    template = rng.choice(list(FORMATS.values()))
    is_chat, is_stream = rng.random() < 0.6, rng.random() < 0.7
    kind = rng.choice(("text", "text", "reasoning", "call", "calls"))
    pieces, finish = _pieces(rng, template, kind, is_chat=is_chat)
    tokens = len(encode("".join(piece.raw for piece in pieces)))
    channels = {piece.channel for piece in pieces}
    groups = [join(group) for group in grouped(pieces, rng.randint(1, 3))]
    if kind == "calls":
        raw_of_all, tokens = _raw_calls(template, pieces)
        frames = _second_call(groups) if is_chat else [raw_of_all]
    else:
        frames = [delta_of(piece) for piece in groups] if is_chat else [piece.raw for piece in groups]
    body = Body(is_chat, is_stream, [], set(channels))
    if is_stream:
        body.frames = _streamed(rng, body, frames, finish, tokens)
    else:
        said = _message(frames) if is_chat else {"text": "".join(frames)}
        choice = {"index": 0, **({"message": said} if is_chat else said), "finish_reason": finish}
        body.frames = [{**HEAD, "choices": [choice], "usage": usage(tokens)}]
    return body


def _pieces(
    rng: random.Random, template: ChatTemplate, kind: str, *, is_chat: bool
) -> tuple[list[Piece], str]:
    thinking = kind == "reasoning"
    prompt = template.render([Message("user", "hello")], thinking=thinking)
    place = locate(template, prompt)
    if kind in {"call", "calls"}:
        begun = list(
            islice(fault_pieces(template, replace(place, is_raw=not is_chat), "call"), 1 + rng.randint(1, 8))
        )
        prompt += "".join(piece.raw for piece in begun)
        plan = healthy(template, locate(template, prompt, is_raw=not is_chat))
        return [*begun, *plan.pieces], plan.finish
    plan = healthy(
        template,
        replace(place, is_raw=not is_chat),
        reasoning_words=rng.randint(1, 6) if thinking else 0,
        answer_words=rng.randint(2, 12) if rng.random() < 0.6 else None,
        max_tokens=rng.randint(24, 30),
    )
    return list(plan.pieces), plan.finish


def _raw_calls(template: ChatTemplate, pieces: list[Piece]) -> tuple[str, int]:
    """Two calls as their model writes them."""
    raw = "".join(piece.raw for piece in pieces)
    one = raw.removeprefix(template.calls_open).removesuffix(template.calls_close)
    text = f"{template.calls_open}{one}{template.call_between}{one}{template.calls_close}"
    return text, len(encode(text))


def _second_call(groups: list[Piece]) -> list[dict[str, Any]]:
    frames = [delta_of(piece) for piece in groups]
    again = copy.deepcopy(frames)
    for delta in again:
        delta["tool_calls"][0]["index"] = 1
        if "id" in delta["tool_calls"][0]:
            delta["tool_calls"][0]["id"] = "call_2"
    return frames + again


def _message(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """All deltas in one."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for delta in frames:
        for name in ("content", "reasoning_content"):
            if name in delta:
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(
                call["index"], {**call, "function": {**call["function"], "arguments": ""}}
            )
            known["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _streamed(rng: random.Random, body: Body, said: list[Any], finish: str, tokens: int) -> list[Any]:
    frames = [body.silent({"role": "assistant"})] if body.is_chat else []
    frames += [body.silent(one if body.is_chat else {"content": one}) for one in said]
    if rng.random() < 0.2:
        frames[-1]["choices"][0]["finish_reason"] = finish
    else:
        frames.append(body.silent({}, finish))
    place = rng.choice(("own", "own", "finish", "none"))
    if place == "finish":
        frames[-1]["usage"] = usage(tokens)
    elif place == "own":
        frames.append({**HEAD, "choices": [], "usage": usage(tokens)})
    return [*frames, *([DONE] if rng.random() < 0.9 else [])]


class Case(NamedTuple):
    """One body and what it must be; `kinds` are those of which a splice shows one."""

    name: str
    seed: str
    body: bytes
    known: dict[str, Any]
    outcomes: set[str]
    kinds: set[Kind]

    def failure(self) -> str | None:
        """What the oracle says instead, if it does."""
        verdict = verify(self.body, **self.known)
        said = {finding.kind for finding in verdict.findings}
        if verdict.outcome in self.outcomes and (not self.kinds or said & self.kinds) and self._is_fair(said):
            return None
        shown = self.body.decode(errors="replace")
        return f"{self.name} ({self.seed}) {self.known}: {verdict}\n{shown}"

    def _is_fair(self, said: set[Kind]) -> bool:
        """A count alone shows no truncation."""
        return self.name != "count_too_many" or Kind.SILENT_TRUNCATION not in said


def case_of(seed: int) -> Case:
    """A case by its number."""
    from tests.support.gateway_rewrites import REWRITES  # noqa: PLC0415 - they are written in terms of this module
    from tests.support.gateway_splices import SPLICES  # noqa: PLC0415

    rng = random.Random(seed)
    while True:
        body = answer(rng)
        if rng.random() < 0.4:
            outcomes, known, names = {"whole"}, {}, []
            for _ in range(rng.randint(1, 3)):
                name = rng.choice(sorted(REWRITES))
                found = REWRITES[name](rng, body)
                if found is None:
                    continue
                names.append(name)
                if found != "whole":
                    outcomes = {found.rstrip("!")}
                    known = {"ended": rng.choice(("unknown", "clean" if found.endswith("!") else "broken"))}
                    break
            if names:
                return Case("+".join(names), str(seed), body.bytes(), known, outcomes, set())
            continue
        name = rng.choice(sorted(SPLICES))
        kinds = SPLICES[name](rng, body)
        if kinds:
            return Case(name, str(seed), body.bytes(), {}, {"wrong"}, set(kinds))


def search(cases: int, seed: int) -> Iterator[str]:
    """The failures among so many cases."""
    for number in range(seed, seed + cases):
        if failure := case_of(number).failure():
            yield failure


def main(arguments: list[str]) -> int:
    """Search, print, and say by the exit status whether anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gateways", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = 0
    for failure in search(options.cases, options.seed):
        found += 1
        sys.stdout.write(f"{failure}\n\n")
    sys.stdout.write(f"{options.cases} cases, {found} found\n")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
