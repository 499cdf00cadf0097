"""A row of the journal: what one request asked for, what it got and how it ended, each text and list bounded. Pure.

No text of a prompt or an answer.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TEXT_BYTES: Final = 1024
"""Of a text in a row."""
NAME_BYTES: Final = 64
"""Of a header's or a field's name."""
MOST_NAMES: Final = 64
LINE_BYTES: Final = 4096
"""Of a line in the log."""
TRACEBACK_BYTES: Final = 65_536
"""Of a line in the log with the traceback after it."""

_MARK: Final = "…"
_MARK_BYTES: Final = len(_MARK.encode())

DRAWN_WITH: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Parameters that all legs of an answer must share, or it would not be one answer."""

PARAMETERS: Final = frozenset(
    {
        *DRAWN_WITH,
        "max_tokens",
        "max_completion_tokens",
        "n",
        "response_format",
        "reasoning_effort",
        "tool_choice",
        "parallel_tool_calls",
        "priority",
        "stream_options",
        "return_token_ids",
    }
)
"""Fields of a body whose values are kept: what decides how an answer is drawn and where it stops."""

_VALUE_BYTES: Final = 256

Peer: TypeAlias = Literal["fin", "rst", "none"]

HEADERS: Final = frozenset(
    {"content-type", "accept", "user-agent", "x-request-id", "x-test-id", "x-inference-lab-fault"}
)
"""Headers whose values are kept; of all others the name alone, since a value may be a credential."""


class Unplanned(str, Enum):
    """The endings that no death asks for; those that one may ask for are `faults.death.CLOSES`."""

    CLIENT_LEFT = "client_left"
    READER_TIMEOUT = "reader_timeout"
    """The reader took nothing for too long, and was reset."""
    REFUSED = "refused"
    """A whole answer with an error status."""
    PIPELINED = "pipelined"
    """Reset, since the client sent too much after an unfinished response."""
    SHUTDOWN = "shutdown"
    SERVER_LOST = "server_lost"
    """The process was gone before the response ended: written by the next one that opens the file."""
    DEFECT = "defect"
    """Reset, since the script failed; the log has the traceback."""

    def __str__(self) -> str:
        """The value, as Python 3.11's StrEnum has it."""
        return self.value


def cut(text: str, most_bytes: int = TEXT_BYTES) -> str:
    """The text, or as much of it as comes to `most_bytes` of UTF-8 together with the `…` that says so.

    What has been cut is not cut again.
    """
    if len(text) <= most_bytes and (text.isascii() or len(_encoded(text)) <= most_bytes):
        return text
    return _encoded(text[:most_bytes])[: most_bytes - _MARK_BYTES].decode(errors="ignore") + _MARK


def cut_texts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row's fields, those that are texts cut; lists and tables are bounded where they are made."""
    return {name: cut(value) if type(value) is str else value for name, value in facts.items()}


def cut_names(names: Sequence[str]) -> tuple[str, ...]:
    """The first names, each cut, and how many there are beside them."""
    kept = [cut(name, NAME_BYTES) for name in names[:MOST_NAMES]]
    return tuple(kept) if len(names) <= MOST_NAMES else (*kept, and_more(len(names) - MOST_NAMES))


def and_more(count: int) -> str:
    """The mark of a list that goes on."""
    return f"{_MARK} and {count} more"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def digest(data: bytes) -> str:
    """16 hex digits that are the same for the same bytes."""
    return blake2b(data, digest_size=8).hexdigest()


def parameters_of(values: Mapping[str, object]) -> dict[str, object]:
    """The parameters that a body sets; of a long value a digest, which tells whether it changed between legs."""
    return {
        name: _short(name, value)
        for name, value in values.items()
        if name in PARAMETERS and value is not None
    }


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """The parameters that an answer is drawn with and that differ between two of its legs, however they are spelled."""
    return [name for name in DRAWN_WITH if _meant(name, before.get(name)) != _meant(name, now.get(name))]


def _short(name: str, value: object) -> object:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    json = msgspec.json.encode(_meant(name, value), order="deterministic")
    return value if len(json) <= _VALUE_BYTES else {"digest": digest(json)}


def _meant(name: str, value: object) -> object:
    """The value in the one spelling that all that mean the same have in common; None for what is as if it were absent.

    A stop is one of several, whose order says nothing, and numbers are compared as numbers.
    """
    if name == "stop":
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = sorted(set(value))
        return [value] if isinstance(value, str) else value or None
    if isinstance(value, dict) and name == "logit_bias":
        return {key: _number(one) for key, one in value.items()} or None
    return _number(value)


def _number(value: object) -> object:
    """The value, one that is a whole number as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Engine(msgspec.Struct, frozen=True):
    """What the engine took: milliseconds from submission to the first place in a batch, the first and the last token.

    `submitted_ms` is the time from the request's begin to its submission, `lag_ms` how much later than this tokens came
    at most. None for what has not come about.
    """

    submitted_ms: float
    queued_ms: float | None
    ttft_ms: float | None
    duration_ms: float | None
    cached_tokens: int
    lag_ms: float = 0.0


class Call(msgspec.Struct, frozen=True):
    """A call: its id, None of one that an earlier leg has announced, and a digest of its arguments."""

    id: str | None
    arguments: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `docs/journal.md` has the meaning of each field; what is not known (yet) is None.

    `id` is given by the store. `http` is the protocol's version, `port` the one that the connection came to. `time` is
    Unix seconds, `peer_s` seconds after it; `prompt` 16 hex digits of the conversation's key; `reached` the words of
    the answer that a client holds which has taken all of this leg. `ends_well`, `finish`, `usage` and `error_sent` are
    read off what went out. `silent_ms` and `last_four_ms` are known where the client left.
    """

    id: int = 0
    time: float
    state: Literal["open", "ended"]
    method: str
    path: str
    http: Literal["1.0", "1.1"] | None = None
    port: int | None = None
    headers: dict[str, str]
    other_headers: tuple[str, ...]
    request_id: str | None
    test: str | None = None
    body_bytes: int | None = 0
    body_digest: str | None = None
    model: str | None = None
    stream: bool = False
    prompt: str | None = None
    tag: str | None = None
    progress: int | None = None
    trigger: Literal["header", "prompt", "config", "echo", "engine"] | None = None
    fault: str | None = None
    leg: int | None = None
    parameters: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()
    history_calls: tuple[Call, ...] = ()
    status: int | None = None
    error: str | None = None
    retry_after: str | None = None
    frames: int = 0
    content_frames: int = 0
    words: int | None = 0
    reached: int | None = None
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error_sent: bool = False
    done_sent: bool = False
    calls: tuple[Call, ...] = ()
    bytes_written: int = 0
    bytes_acknowledged: int = 0
    bytes_unsent: int = 0
    ends_well: bool | None = None
    ending_asked: str | None = None
    ending: str | None = None
    peer: Peer | None = None
    peer_s: float | None = None
    silent_ms: float | None = None
    last_four_ms: float | None = None
    engine: Engine | None = None
    duration_ms: float | None = None


def split_headers(
    lines: Iterable[tuple[bytes, Sequence[bytes]]],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Headers as they came, as the values that are kept, and the names of the others in their order."""
    kept: dict[str, str] = {}
    others: list[str] = []
    for raw, values in lines:
        name = _header_name(raw)
        if name in HEADERS:
            value = values[0] if len(values) == 1 else b", ".join(values)
            kept[name] = cut(value.decode("utf-8", "backslashreplace"))
        else:
            others.append(name)
    return kept, cut_names(others)


@lru_cache(maxsize=256)  # most clients send the same few
def _header_name(raw: bytes) -> str:
    return cut(raw.decode("latin-1").lower(), NAME_BYTES)


def ignored_in(values: Mapping[str, object], effective: frozenset[str]) -> tuple[str, ...]:
    """The fields of a body that were accepted without effect, null being absent."""
    if values.keys() <= effective:
        return ()
    return cut_names([name for name, value in values.items() if name not in effective and value is not None])
