"""Incidents: deaths that somebody captured or wrote down byte for byte, as values, and the script that replays one.

An incident says everything it sends. Only its blanks, where it has any, are filled in from the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import chain, count, islice
from re import compile as pattern
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from inference_lab.core.apis.contract import Completion
from inference_lab.core.faults.death import Close
from inference_lab.core.faults.grammar import shown
from inference_lab.core.stream.chunks import chunk
from inference_lab.core.stream.events import NOTHING, BodyEnd, Break, Event, Frame, Head, Pause
from inference_lab.core.stream.read_back import Heard, Unchunked, heard_in
from inference_lab.core.tokens import spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# The closes that stand after a complete response, and those that break it off; the names are the axis's.
COMPLETE: Final[Mapping[str, Close]] = {
    "terminator": Close.TERMINATOR,
    "terminator_rst": Close.TERMINATOR_RST,
    "idle_close": Close.TERMINATOR,
    "stale": Close.STALE,
}
BROKEN: Final[Mapping[str, Close]] = {
    "fin": Close.FIN,
    "rst": Close.RST,
    "hang": Close.HANG,
    "tls_raw": Close.TLS_RAW,
}
Framing: TypeAlias = Literal["chunked", "length", "both", "none"]
"""How a body is delimited: by chunks, by its Content-Length, by both, or by the end of the connection."""
_HEAD_FRAMING: Final[Mapping[Framing, BodyEnd]] = {
    "chunked": "stream",
    "both": "stream",
    "length": "length",
    "none": "none",
}

BODILESS: Final = (204, 304)
"""The statuses whose response is complete with its head (RFC 9110 sections 15.3.5 and 15.4.5)."""

LITERAL: Final = "<<>>"
"""How a literal `<<` is written where blanks are filled in."""
NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Blank(Enum):
    """What a place in a frame is filled with, from the request that is answered."""

    ID = "id"
    """The response's own id."""
    MODEL = "model"
    """The name of the model that answers."""
    WORD = "word"
    """The next word of the answer, with the blank before it."""


_BLANK: Final = pattern("<<(" + "|".join(blank.value for blank in Blank) + "|)>>")
_SAMPLE: Final = "qu"
"""The letters of the words that the blanks are filled with to read it."""
EXPECTED: Final = ", ".join(f"<<{blank.value}>>" for blank in Blank)
Part: TypeAlias = bytes | Blank


class Piece(msgspec.Struct, frozen=True):
    """Bytes with blanks in them; `framed`: they are one HTTP chunk where the response is chunked."""

    parts: tuple[Part, ...]
    framed: bool = True

    @property
    def words(self) -> int:
        """How many words of the answer it carries."""
        return sum(part is Blank.WORD for part in self.parts)


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A captured response. `headers` (lower-case names) hold none that say how the body is framed.

    Its Content-Length, where the `framing` has one, is `length_off_by` bytes off. `head_pause_ms` lies before the
    head.

    Raises:
        ValueError: values that do not go together; the sentence begins with the key at fault.
    """

    name: str
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    framing: Framing
    length_off_by: int = 0
    head_pause_ms: int = 0
    steps: tuple[Piece | Pause, ...] = ()
    close: str
    idle_ms: int = 0
    heard: Heard | None = None
    """What its bytes say, once they have been read."""

    def __post_init__(self) -> None:
        known = {**COMPLETE, **BROKEN}
        if self.close not in known:
            raise ValueError(f"close is {shown(self.close)}, expected one of {', '.join(known)}")
        if self.framing == "none" and self.close in COMPLETE and self.status not in BODILESS:
            raise ValueError(
                f"close is {self.close!r}, which a body without an end (head.framing none) cannot reach"
            )
        if self.idle_ms and self.close != "idle_close":
            raise ValueError(f"idle_ms is {self.idle_ms}, which goes with close idle_close only")
        if self.length_off_by and self.framing not in {"length", "both"}:
            raise ValueError(
                f"head.length_off_by is {self.length_off_by}, which goes with framing length or both only"
            )
        parts = [part for step in self.steps if isinstance(step, Piece) for part in step.parts]
        if not any(isinstance(part, Blank) for part in parts):
            _check_length(self.length_off_by, sum(len(part) for part in parts if isinstance(part, bytes)))
        msgspec.structs.force_setattr(self, "heard", _heard(self))

    @property
    def needs_stream(self) -> bool:
        """Whether only a request for a stream can be answered with it: its body is server-sent events."""
        kind = dict(self.headers).get(b"content-type", b"")
        return kind.partition(b";")[0].strip().lower() == b"text/event-stream"

    @property
    def words(self) -> int:
        """How many words of the answer it carries."""
        return sum(step.words for step in self.steps if isinstance(step, Piece))

    @property
    def has_raw(self) -> bool:
        """Whether it has bytes that are framed by themselves."""
        return any(isinstance(step, Piece) and not step.framed for step in self.steps)


def _heard(incident: Incident) -> Heard:
    """What a client reads of it, its blanks filled in as from any request."""
    sample = Completion("chatcmpl-0", 0, "m")
    words = (spell(_SAMPLE, index) for index in count())
    written = [_data(step, sample, words) for step in incident.steps if isinstance(step, Piece)]
    sizes = [len(data) for data, _ in written]
    unchunked = Unchunked() if incident.framing in {"chunked", "both"} else None
    left = sum(sizes) + incident.length_off_by if incident.framing == "length" else sum(sizes)
    blocks = []
    for data, is_framed in written:
        if incident.status in BODILESS:
            block = b""
        elif unchunked is None:
            block = data[: max(0, left)]
            left -= len(data)
        else:
            block = unchunked.feed(chunk(data) if is_framed else data)
        blocks.append(block)
    heard = heard_in(blocks, incident.words, _SAMPLE)
    is_coded = dict(incident.headers).get(b"content-encoding", b"identity").strip().lower() != b"identity"
    is_lost = unchunked is not None and unchunked.is_broken and not any(blocks)
    if is_coded or is_lost:
        heard = msgspec.structs.replace(
            heard, said=(NOTHING,) * len(blocks), are_words=False, is_readable=False
        )
    return heard


def _check_length(off_by: int, body_bytes: int) -> int:
    """The Content-Length; raises ValueError for one below zero."""
    if body_bytes + off_by < 0:
        raise ValueError(f"head.length_off_by is {off_by}, but the body has {body_bytes} bytes")
    return body_bytes + off_by


Incidents: TypeAlias = Mapping[str, Incident]
NO_INCIDENTS: Final[Incidents] = {}


def parts_of(text: str) -> tuple[Part, ...]:
    """A text with its blanks: `<<id>>`, `<<model>>`, `<<word>>`; `<<>>` is a literal `<<`.

    Raises:
        ValueError: any other `<<`.
    """
    parts: list[Part] = []
    literal = ""
    for place, piece in enumerate(_BLANK.split(text)):
        if place % 2 == 0:
            if "<<" in piece:
                shown = piece[piece.index("<<") :][:20]
                raise ValueError(
                    f"{shown!r} is no placeholder, expected {EXPECTED}, or {LITERAL} for a literal <<"
                )
            literal += piece
        elif not piece:
            literal += "<<"
        else:
            parts += [literal.encode(), Blank(piece)] if literal else [Blank(piece)]
            literal = ""
    return (*parts, literal.encode()) if literal else tuple(parts)


def incident_script(
    incident: Incident,
    completion: Completion,
    words: Iterable[str],
    *,
    delay_ms: int | None,
) -> Iterator[Event]:
    """The events of a replay: as recorded, or with `delay_ms` between the pieces in place of the recorded pauses.

    `words` are the answer's, of which as many are taken as there are blanks for words.

    Raises:
        ValueError: a Content-Length below zero. It is raised before the first event.
    """
    filled = _filled(incident, completion, iter(words))
    if incident.framing in {"length", "both"}:
        events = list(filled)
        body_bytes = sum(len(event.data) for event in events if isinstance(event, (Frame, Break)))
        length: int | None = _check_length(incident.length_off_by, body_bytes)
        filled = iter(events)
    else:
        length = None
    idle_ms = incident.idle_ms if incident.close == "idle_close" else None
    head = Head(incident.status, incident.headers, _HEAD_FRAMING[incident.framing], length, idle_ms)
    pause_ms = incident.head_pause_ms if delay_ms is None else 0
    front: list[Event] = [Pause(pause_ms), head] if pause_ms else [head]
    close = COMPLETE[incident.close] if incident.close in COMPLETE else BROKEN[incident.close]
    return chain(front, filled if delay_ms is None else _paced(filled, delay_ms), (close,))


def _filled(incident: Incident, completion: Completion, words: Iterator[str]) -> Iterator[Event]:
    said = iter(() if incident.heard is None else incident.heard.said)
    for step in incident.steps:
        if isinstance(step, Pause):
            yield step
            continue
        data, is_framed = _data(step, completion, words)
        told = next(said, NOTHING)
        yield Frame(data, said=told) if is_framed else Break("raw", data, told)


def _data(piece: Piece, completion: Completion, words: Iterator[str]) -> tuple[bytes, bool]:
    """A piece's bytes, its blanks filled in, and whether they are a chunk."""
    fixed = {Blank.ID: completion.id, Blank.MODEL: completion.model}
    filled = (
        part
        if isinstance(part, bytes)
        else b"".join(map(_in_json, [fixed[part]] if part in fixed else islice(words, 1)))
        for part in piece.parts
    )
    return b"".join(filled), piece.framed


def _in_json(text: str) -> bytes:
    """A text as it stands inside a JSON string."""
    return msgspec.json.encode(text)[1:-1]


def _paced(events: Iterator[Event], delay_ms: int) -> Iterator[Event]:
    first = True
    for event in events:
        if isinstance(event, Pause):
            continue
        if not first and delay_ms:
            yield Pause(delay_ms)
        first = False
        yield event
