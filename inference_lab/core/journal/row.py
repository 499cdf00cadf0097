"""A row of the journal: what one request asked for, what it got and how it ended. No text of a prompt or an answer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from inference_lab.core.journal.bounds import NAME_BYTES, cut, cut_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Peer: TypeAlias = Literal["fin", "rst", "none"]

HEADERS: Final = frozenset(
    {"content-type", "accept", "user-agent", "x-request-id", "x-test-id", "x-inference-lab-fault"}
)
"""Headers whose values are kept; of all others the name alone, since a value may be a credential."""


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
