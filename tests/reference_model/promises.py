"""What the axes promise of a stream, checked on what a strict parser makes of its bytes.

The parser knows chunks (RFC 9112 section 7.1), gzip and server-sent events, and nothing of this program.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.reference_model.frames import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.reference_model.frames import Answer
    from tests.reference_model.model import Response

COMPLETE = ("terminator", "terminator_rst", "idle_close", "stale")


@dataclass
class Event:
    """One server-sent event."""

    data: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Any:
        """Its JSON; None for what is none."""
        try:
            return json.loads("\n".join(self.data))
        except ValueError:
            return None


@dataclass
class Parsed:
    """A stream taken apart; `rest` is what the chunked framing did not allow, `tail` a block without its end."""

    chunks: list[bytes]
    terminated: bool
    rest: bytes
    body: bytes
    events: list[Event]
    comments: int
    tail: bytes
    has_bom: bool

    @property
    def choices(self) -> list[dict[str, Any]]:
        documents = [event.document for event in self.events]
        frames = [document for document in documents if isinstance(document, dict)]
        return [choice for frame in frames if "error" not in frame for choice in frame.get("choices") or ()]

    @property
    def words(self) -> list[int]:
        """The numbers of the words of text, in their order."""
        texts = [
            choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in self.choices
        ]
        return [int(number) for number in re.findall(r"qu(\d{4})", "".join(texts))]

    @property
    def finishes(self) -> list[str]:
        return [choice["finish_reason"] for choice in self.choices if choice.get("finish_reason")]

    @property
    def done(self) -> int:
        return sum(event.data == ["[DONE]"] for event in self.events)


def parse(response: Response) -> Parsed:
    headers = dict(response.headers)
    chunks, terminated, rest = [response.wire], False, b""
    if headers.get("transfer-encoding") == "chunked":
        chunks, terminated, rest = _dechunk(response.wire)
    body = b"".join(chunks)
    if body.startswith(b"\x1f\x8b"):
        body = zlib.decompressobj(31).decompress(body)
    has_bom = body.startswith(b"\xef\xbb\xbf")
    events, comments, tail = _events(body.removeprefix(b"\xef\xbb\xbf"))
    return Parsed(chunks, terminated, rest, body, events, comments, tail, has_bom)


def _dechunk(wire: bytes) -> tuple[list[bytes], bool, bytes]:
    chunks: list[bytes] = []
    at = 0
    while found := re.compile(rb"([0-9a-f]+)\r\n").match(wire, at):
        size, start = int(found[1], 16), found.end()
        if size == 0:
            trailer = re.compile(rb"(?:[a-z-]+: [^\r\n]*\r\n)*\r\n").match(wire, start)
            return (chunks, True, wire[trailer.end() :]) if trailer else (chunks, False, wire[at:])
        if wire[start + size : start + size + 2] != b"\r\n":
            break
        chunks.append(wire[start : start + size])
        at = start + size + 2
    return chunks, False, wire[at:]


def _events(body: bytes) -> tuple[list[Event], int, bytes]:
    lines = re.split(r"\r\n|\r|\n", body.decode(errors="surrogateescape"))
    events: list[Event] = []
    comments = 0
    event = Event()
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if event.data:
                events.append(event)
            event = Event()
        elif line.startswith(":"):
            comments += 1
        elif name == "data":
            event.data.append(value)
        else:
            event.fields[name] = value
    tail = "".join([*event.data, lines[-1]])
    return events, comments, tail.encode(errors="surrogateescape")


def _counts(parsed: Parsed, value: str, settings: dict[str, str], answer: Answer) -> bool:
    """The text begins with the words that were asked for, each once and in its place."""
    frames = answer.words if value == "all" else int(value)
    if settings.get("content", "text") != "text" or settings.get("tokens_per_frame", "1") != "1":
        return True
    wanted = list(range(frames))
    if settings.get("sequence", "none").startswith("dup"):
        return parsed.words[:frames] == wanted
    further = settings.get("then") == "rest" or settings.get("text_in_finish") == "true" or "tear" in settings
    return parsed.words == wanted or (
        (further or settings.get("sequence", "none") != "none") and parsed.words[:frames] == wanted
    )


def _ends(parsed: Parsed, value: str, settings: dict[str, str], _: Answer) -> bool:
    if settings.get("length", "none") not in {"none", "both"}:
        return True
    return parsed.terminated == (value in COMPLETE)


def _usage(parsed: Parsed, value: str, *_: object) -> bool:
    documents = [event.document for event in parsed.events]
    frames = [document for document in documents if isinstance(document, dict) and "choices" in document]
    own = [frame["usage"] for frame in frames if frame["choices"] == [] and frame.get("usage")]
    if value == "never":
        return not any("usage" in frame for frame in frames)
    if value.endswith("_chunk"):
        return all("usage" in frame for frame in frames if "provider" not in frame)
    if value in {"on_finish", "with_choices"}:
        return not own and any(frame["choices"] and frame.get("usage") for frame in frames)
    return value != "always" or len(own) == 1


PROMISES: dict[str, Any] = {
    "after_chunks": _counts,
    "close": _ends,
    "usage": _usage,
    "done": lambda p, value, *_: p.done == {"true": 1, "false": 0, "twice": 2}[value],
    "finish": lambda p, value, *_: not p.finishes if value == "none" else value.strip('"') in p.finishes,
    "empty_finish": lambda p, value, s, _: (
        value == "false"
        or s.get("error", "none").startswith("openrouter")
        or all(choice["finish_reason"] is not None for choice in p.choices)
    ),
    "bom": lambda p, value, *_: p.has_bom == (value == "true"),
    "comments": lambda p, value, s, _: (
        value == "0" or p.comments % int(value) == 0 or "heartbeat" in s or "error" in s
    ),
    "id": lambda p, value, s, _: (
        "error" in s
        or [event.fields.get("id") for event in p.events if "id" in event.fields]
        == ([str(number) for number in range(len(p.events))] if value == "true" else [])
    ),
    "retry": lambda p, value, *_: (
        (b"retry: " in p.body) == (value != "none") and (p.body.count(b"retry: ") <= 1)
    ),
    "eol": lambda p, value, *_: {
        "lf": b"\r" not in p.body,
        "cr": b"\n" not in p.body,
        "crlf": p.body.count(b"\r\n") == p.body.count(b"\n") == p.body.count(b"\r"),
    }[value],
    "multiline": lambda p, value, *_: all(
        len(event.data) in {int(value), 1} for event in p.events if isinstance(event.document, dict)
    ),
    "space": lambda p, value, s, _: (
        value == "true" or "multiline" in s or not re.search(rb"(^|[\r\n])data: ", p.body)
    ),
    "spacing": lambda p, value, s, _: value == "compact" or "malformed" in s or b'","' not in p.body,
    "segment": lambda p, value, s, _: (
        {
            "byte": lambda: all(len(chunk) == 1 for chunk in p.chunks),
            "whole": lambda: len(p.chunks) <= 1,
            "utf8": lambda: not any("é".encode() in chunk for chunk in p.chunks),
            "crlf": lambda: not any(b"\r\n" in chunk for chunk in p.chunks),
        }.get(value, lambda: True)()
        if s.get("close") != "eof" and s.get("length", "none") in {"none", "both"}
        else True
    ),
    "malformed": lambda p, value, *_: value == "false" or any(event.document is None for event in p.events),
    "tear": lambda p, value, *_: (bool(p.tail) or value == "byte:40") if value != "none" else True,
    "chunk_error": lambda p, value, *_: bool(p.rest) if value not in {"none", "trailer"} else True,
    "name": lambda *_: True,
    "test": lambda *_: True,
    "times": lambda *_: True,  # test_attempts.py
}
"""Whether a value is kept, from what was parsed, all settings and the healthy answer."""


def broken_promises(
    directive: str, response: Response, answer: Answer, keys: Collection[str] = PROMISES.keys()
) -> list[str]:
    """The settings of a directive, of those named, that the response does not keep."""
    settings = settings_of(directive)
    sse = settings.get("status", "200") == "200" and settings.get("answer_as", "asked") in {"asked", "sse"}
    if not sse or settings.get("at", "frames") != "frames" or response.infinite_pieces:
        return []
    parsed = parse(response)
    cut_short = (
        settings.get("chunk_error", "none") not in {"none", "trailer"}
        or settings.get("tear", "none") != "none"
    )
    cut_short = cut_short or settings.get("final_blank") == "false"
    found = []
    for key, value in settings.items():
        if key not in keys or (cut_short and key not in {"tear", "chunk_error", "bom"}):
            continue
        promise = PROMISES.get(key)
        if promise is not None and not promise(parsed, value, settings, answer):
            found.append(f"{key}={value} is not kept: {parsed.body[:300]!r}")
    return found
