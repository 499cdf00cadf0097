"""A stream cut at every byte and spliced there by the client is whole, whatever its frames hold."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.oracle import verify
from tests.support.clients.families import BAR
from tests.support.clients.resume_client import (
    CHAT,
    COMPLETIONS,
    DeathError,
    Reply,
    ResumeClient,
    event_of,
    read,
    whole_events,
)
from tests.support.lab import FAMILIES, WORDS, files
from tests.support.resuming import TOOLS, Case, events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.support.lab import MemoryLab

FRAMES = 40
SSE = "text/event-stream; charset=utf-8"
TRAPS = (f"</{BAR}DSML{BAR}parameter>", f"</{BAR}DSML{BAR}invoke>")


class Cut:
    """A transport whose first stream dies at a byte; what follows goes to the server, asked once for the same."""

    def __init__(self, lab: MemoryLab) -> None:
        self.first: bytes | None = None
        self._lab = lab
        self._known: dict[tuple[str, bytes], Reply] = {}

    def __call__(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        if self.first is not None:
            data, self.first = self.first, None
            return Reply(200, SSE, _dying(data))
        if (path, body) not in self._known:
            reply = self._lab(path, headers, body)
            self._known[path, body] = Reply(reply.status, reply.content_type, tuple(reply.blocks))
        return self._known[path, body]


def _dying(data: bytes) -> Iterator[bytes]:
    yield data
    raise DeathError("cut")


def text_of(event: bytes) -> tuple[str, str]:
    """The channel and text of a content frame; ('', '') for any other."""
    for choice in read(event).get("choices", ()):
        for key, text in (*choice.get("delta", {}).items(), ("text", choice.get("text"))):
            if key in {"text", "content", "reasoning_content"} and text:
                return key, text
    return "", ""


def regrouped(data: bytes, size: int) -> bytes:
    """The stream with `size` content frames of a channel in one, or each character in a frame of its own for 0."""
    told = []
    for channel, group in groupby(events(data), lambda event: text_of(event)[0]):
        frames = list(group)
        if not channel or size == 1:
            told += frames
            continue
        head = {key: value for key, value in read(frames[0]).items() if key != "choices"}
        texts = [text_of(frame)[1] for frame in frames]
        parts = (
            ["".join(texts[place : place + size]) for place in range(0, len(texts), size)]
            if size
            else "".join(texts)
        )
        for part in parts:
            choice: dict[str, Any] = {"delta": {channel: part}}
            if channel == "text":
                choice = {"text": part, "logprobs": None}
            told.append(event_of(head, {**choice, "finish_reason": None}))
    return b"".join(told)


def wrong_splices(
    case: Case, path: str, data: bytes, cuts: Iterable[int], words: int, **body: Any
) -> list[int]:
    """Where a splice at one of these bytes is anything but whole."""
    transport = Cut(case.lab)
    client = ResumeClient(transport, case.family, case.thinking)
    outcomes: dict[bytes, str] = {}
    wrong = []
    for cut in cuts:
        # What the client makes of a cut is all that it goes by, so the same need not be spliced again.
        seen = b"".join(whole_events(_dying(data[:cut])))
        if seen not in outcomes:
            transport.first = data[:cut]
            outcomes[seen] = verify(client.answer(path, body), tokens=words, ended="clean").outcome
        if outcomes[seen] != "whole":
            wrong.append(cut)
    return wrong


def asked(case: Case, path: str, **more: Any) -> dict[str, Any]:
    prompt = {"prompt": case.rendered()["rendered"]} if path == COMPLETIONS else case.chat()
    return {"model": case.model, "stream": True, **prompt, **more}


def boundaries(data: bytes) -> Iterator[int]:
    """The byte behind each frame, 0 first."""
    return accumulate(map(len, events(data)), initial=0)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("model", ["lab", "lab-thinks", "hermes-thinks", "dsv4-thinks"])
def test_a_splice_at_any_byte_is_whole(lab: MemoryLab, model: str, size: int, path: str) -> None:
    case = Case(lab, model)
    usage = {"stream_options": {"include_usage": True}}
    markup = case.first(path).usage["completion_tokens"] - WORDS
    body = asked(case, path, max_tokens=FRAMES + markup, **usage)
    data = lab.exchange(path, body).body
    assert sum(bool(text_of(event)[0]) for event in events(data)) == FRAMES
    data = regrouped(data, size)
    assert wrong_splices(case, path, data, range(len(data) + 1), FRAMES, **body) == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", files())
def test_a_splice_behind_any_character_is_whole(lab: MemoryLab, model: str, path: str) -> None:
    case = Case(lab, model)
    # A torn word costs other tokens than a whole one, so there are no limits and no counts here.
    body = asked(case, path)
    data = regrouped(lab.exchange(path, body).body, 0)
    assert verify(data, tokens=WORDS).outcome == "whole"
    # Through the reasoning and the first é of the content.
    cuts = list(boundaries(data))[: 130 if case.thinking else 60 : 1 + case.thinking]
    assert wrong_splices(case, path, data, cuts, WORDS, **body) == []


CALLS = [(path, 1, model) for path in (CHAT, COMPLETIONS) for model in files()]
CALLS += [(COMPLETIONS, 0, model) for model in FAMILIES]


@pytest.mark.parametrize(("path", "size", "model"), CALLS)
def test_a_splice_in_a_call_is_whole_but_in_the_two_traps(
    lab: MemoryLab, path: str, size: int, model: str
) -> None:
    case = Case(lab, model, tools=TOOLS)
    body = asked(case, path)
    begun = lab.exchange(
        path, {**body, "tools": TOOLS}, {"x-inference-lab-fault": "mid_tool_call;delay_ms=0"}
    )
    transport = Cut(lab)
    transport.first = begun.body
    whole = b"".join(ResumeClient(transport, case.family, case.thinking).answer(path, body))
    assert verify(whole, tokens=16, ended="clean").outcome == "whole"
    data = regrouped(whole, size)
    said, traps, cuts = "", [], []
    for place, event in zip(boundaries(data), [*events(data), b""], strict=True):
        # Until its name has begun there is no call yet: no delta has told of it.
        if "find" in said:
            cuts.append(place)
            traps += [place] if said.endswith(TRAPS) else []
        said += text_of(event)[1] if path == COMPLETIONS else event.decode()
    assert len(traps) == (2 if (size, model) == (0, "dsv4") else 0)
    assert wrong_splices(case, path, data, cuts, 16, **body) == traps
