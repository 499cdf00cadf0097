"""A death, resolved: one value on each axis. Every death is the healthy stream with something changed.

The defaults are the healthy stream on the fault path: the whole answer as text, finish and usage as the engine would
send them, the terminal frame, the chunked terminator. What an axis means stands in `axes.py`, the table of keys.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Final

import msgspec

from inference_lab.core.faults.values import Bare, Sub

ALL: Final = "all"
NONE: Final = Bare("none")
UNLIMITED: Final = "unlimited"
STREAMED: Final = ("asked", "sse")
"""What `answer_as` says of a stream: where the request asked for one, and on any request."""


class Close(Enum):
    """How the response ends on the wire: the one ending of every script."""

    TERMINATOR = "terminator"
    """The chunked terminator; the connection is reusable."""
    COMPLETE = "complete"
    """As the terminator, which is among the bytes already."""
    FIN = "fin"
    """A FIN without the terminator."""
    RST = "rst"
    """A TCP reset without the terminator."""
    TERMINATOR_RST = "terminator_rst"
    """The terminator, and a TCP reset after it."""
    HANG = "hang"
    """Nothing: open until the client leaves."""
    TLS_RAW = "tls_raw"
    """A FIN without the terminator and without TLS close_notify."""
    STALE = "stale"
    """The terminator, and nothing further; the client's next bytes on the connection meet a TCP reset."""

    @property
    def ending(self) -> str:
        """The word under which it is logged, shown and counted: what happens to the connection."""
        return "rst" if self is Close.TERMINATOR_RST else self.value


class Death(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """One value on each axis; units in the names, `None` where the axis is not in play."""

    # what is sent
    after_chunks: int | str = ALL
    delay_ms: int = 10
    content: str = "text"
    reasoning_key: str = "reasoning_content"
    tokens_per_frame: int | str = 1
    frame_bytes: int | None = None
    tear: Sub = Sub("none")
    malformed: bool = False
    sequence: Sub = Sub("none")
    then: str = "end"
    pause_ms: int = 0
    rest_delay_ms: int | None = None
    # the tail
    error: str = "none"
    code: int | str | Bare | None = None
    message: str | None = None
    type: str | None = None
    finish: str | Bare | None = None
    empty_finish: bool = False
    text_in_finish: bool = False
    usage: str = "asked"
    usage_off_by: int | str = "none"
    done: str = "true"
    # only where words have been passed on already
    overlap: int = 0
    skip: int = 0
    restart: bool = False
    bos_shift: bool = False
    role_again: bool = False
    instant_stop: bool = False
    reject: str = "none"
    # on any request
    strict_params: bool = False
    # how far it gets, and what stands in front
    at: str = "frames"
    ttft_ms: int = 0
    status: int = 200
    retry_after: int | str | None = None
    body: str = "json"
    answer_as: str = "asked"
    content_type: str | None = None
    # silence
    heartbeat: str = "none"
    heartbeat_ms: int = 1000
    beats: int | str = UNLIMITED
    # SSE
    eol: str = "lf"
    space: bool = True
    multiline: int = 1
    comments: int = 0
    id: bool = False
    retry: int | str = "none"
    bom: bool = False
    final_blank: bool = True
    spacing: str = "compact"
    # framing
    segment: int | str = "frame"
    gap_ms: int = 0
    length: int | str = "none"
    chunk_error: str = "none"
    encoding: str = "none"
    # the end
    close: str = "terminator"
    idle_ms: int = 0
    # who writes it: None is the model's own dialect; `given` are the keys that then win over the dialect
    dialect: str | None = None
    given: frozenset[str] = frozenset()
    # for whoever reads the log; whose requests they are, and how many of them meet it
    name: str | None = None
    test: str | None = None
    times: int | None = None

    @property
    def may_stream(self) -> bool:
        """Whether it is a stream on some request: neither a status nor an answer of another kind."""
        return self.status == HEALTHY.status and self.answer_as in STREAMED

    @property
    def thinks_on(self) -> bool:
        """Whether the fault point is in the reasoning of an answer that goes on behind it."""
        return self.content == "reasoning" and self.then == "rest"

    @property
    def given_reasoning_key(self) -> str | None:
        """The key of reasoning that the directive gives itself; None: the dialect's."""
        return self.reasoning_key if "reasoning_key" in self.given else None


HEALTHY: Final = Death()
DEFAULTS: Final[dict[str, object]] = msgspec.structs.asdict(HEALTHY)
LABELS: Final = ("name", "test", "times")
"""What changes nothing about the response."""


@cache
def _getter_of(keys: tuple[str, ...]) -> tuple[attrgetter[object], object]:
    values_of = attrgetter(*keys)
    return values_of, values_of(HEALTHY)


def at_defaults(death: Death, keys: tuple[str, ...]) -> bool:
    """Whether a death is the healthy stream on these axes."""
    values_of, healthy = _getter_of(keys)
    return bool(values_of(death) == healthy)


def changed(death: Death, keys: tuple[str, ...]) -> list[str]:
    """The axes among these on which a death is not the healthy stream."""
    if at_defaults(death, keys):  # most are, and several lists of axes are asked about for each request
        return []
    return [key for key in keys if getattr(death, key) != getattr(HEALTHY, key)]
