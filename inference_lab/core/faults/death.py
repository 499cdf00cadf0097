"""A death, resolved: one value on each axis. Every death is the healthy stream with something changed.

**An axis is one annotated line of `Death`**: the values it takes, what it acts on, what it does in a line, and its
default, which is the healthy stream on the fault path: the whole answer as text, finish and usage as the engine would
send them, the terminal frame, the chunked terminator. An axis is a key of a directive, the same in a header, a prompt
and a TOML table. The documentation and `inference-lab faults` print this table, and lists of axes are queries over it.
"""

from collections.abc import Callable
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.axis import Axis, Phase, axis_of
from inference_lab.core.faults.values import (
    U32_MAX,
    U64_MAX,
    Choice,
    Code,
    HeaderText,
    Identifier,
    Integer,
    IntegerOrHeader,
    Keyword,
    NumberedChoice,
    NumberedWord,
    SignedInteger,
    Text,
)

ALL: Final = "all"
NONE: Final = Keyword("none")
UNLIMITED: Final = "unlimited"
STREAMED: Final = ("asked", "sse")
"""What `answer_as` says of a stream: where the request asked for one, and on any request."""
WHOLE_CLOSES: Final = ("terminator", "fin", "rst", "hang")
"""The closes that a request can meet that asked for no stream."""
HELD_FRAMES: Final = 1000
"""The most that one value may keep in memory: frames repeated, reversed or joined, words or lines in one frame."""

_MS: Final = Integer(U64_MAX)

CloseWord: TypeAlias = Literal[
    "terminator",
    "fin",
    "rst",
    "hang",
    "terminator_rst",
    "fin_close",
    "eof",
    "partial_terminator",
    "torn_chunk",
    "tls_raw",
    "idle_close",
    "stale",
]
CLOSES: Final[tuple[str, ...]] = get_args(CloseWord)
"""How a response may be asked to end."""


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


class Death(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, dict=True):
    """One value on each axis; units in the names, `None` where the axis is not in play."""

    # what is sent
    after_chunks: Annotated[
        int | str,
        Axis(Phase.CONTENT, "content frames before the fault point", Integer(U32_MAX, words=("all",))),
    ] = ALL
    delay_ms: Annotated[int, Axis(Phase.PACE, "milliseconds between frames", _MS)] = 10
    content: Annotated[
        Literal["text", "reasoning", "tool_call", "tool_call_parallel", "tool_call_complete"],
        Axis(
            Phase.CONTENT,
            "what the content frames carry: a call, a whole one and a second, one that the last frame closes",
        ),
    ] = "text"
    reasoning_key: Annotated[
        Literal["reasoning_content", "reasoning"],
        Axis(Phase.CONTENT, "the delta's key of reasoning, on chat"),
    ] = "reasoning_content"
    tokens_per_frame: Annotated[
        int | str,
        Axis(
            Phase.CONTENT,
            "words in a content frame; varied: the cycle 1, 2, 4",
            Integer(HELD_FRAMES, least=1, words=("varied",)),
        ),
    ] = 1
    frame_bytes: Annotated[
        int | None,
        Axis(
            Phase.CONTENT,
            "the last content frame is padded with blanks to this size",
            Integer(2**31 - 1, least=1),
        ),
    ] = None
    tear: Annotated[
        NumberedWord,
        Axis(
            Phase.CONTENT,
            "how much of one more frame goes out before the close",
            NumberedChoice(("none", "half", "utf8"), {"byte": (1, U32_MAX)}),
        ),
    ] = NumberedWord("none")
    malformed: Annotated[bool, Axis(Phase.CONTENT, "a frame of broken JSON at the fault point")] = False
    sequence: Annotated[
        NumberedWord,
        Axis(
            Phase.CONTENT,
            "frames repeated (dup), left out (drop), reversed (swap), or where none belongs",
            NumberedChoice(
                ("none", "double_finish", "after_finish", "after_done", "choices_null", "choices_empty"),
                {"dup": (1, HELD_FRAMES), "drop": (1, U32_MAX), "swap": (2, HELD_FRAMES)},
            ),
        ),
    ] = NumberedWord("none")
    then: Annotated[
        Literal["end", "rest"],
        Axis(Phase.CONTENT, "behind the fault point: the tail, or first the rest of the answer"),
    ] = "end"
    pause_ms: Annotated[int, Axis(Phase.CONTENT, "silence at the fault point", _MS)] = 0
    rest_delay_ms: Annotated[
        int | None,
        Axis(Phase.CONTENT, "then=rest: milliseconds between the frames behind the fault point", _MS),
    ] = None
    # the tail
    error: Annotated[str, Axis(Phase.ERROR, "an error in the stream", Choice("none", *VARIANTS))] = "none"
    code: Annotated[int | str | Keyword | None, Axis(Phase.ERROR, "the error's code", Code())] = None
    message: Annotated[str | None, Axis(Phase.ERROR, "the error's message", Text())] = None
    type: Annotated[str | None, Axis(Phase.ERROR, "the error's type", Text())] = None
    finish: Annotated[
        str | Keyword | None,
        Axis(Phase.CONTENT, "the finish reason", Text("none", moved={"empty_each": "empty_finish=true"})),
    ] = None
    empty_finish: Annotated[
        bool, Axis(Phase.CONTENT, '"" as the finish reason of every frame that has none')
    ] = False
    text_in_finish: Annotated[bool, Axis(Phase.CONTENT, "one more word rides in the finish frame")] = False
    usage: Annotated[
        Literal[
            "asked",
            "never",
            "always",
            "every_chunk",
            "null_every_chunk",
            "zero_every_chunk",
            "on_finish",
            "with_choices",
        ],
        Axis(Phase.COUNTS, "when token counts are sent"),
    ] = "asked"
    usage_off_by: Annotated[
        int | str,
        Axis(
            Phase.COUNTS,
            "so many completion_tokens too many or too few, at least 0",
            SignedInteger(U32_MAX, words=("none",)),
        ),
    ] = "none"
    done: Annotated[Literal["true", "false", "twice"], Axis(Phase.TERMINAL, "the [DONE] at the end")] = "true"
    # only where words have been passed on already
    overlap: Annotated[int, Axis(Phase.LEG, "legs: begins so many words too early", Integer(U32_MAX))] = 0
    skip: Annotated[int, Axis(Phase.LEG, "legs: leaves so many words out", Integer(U32_MAX))] = 0
    restart: Annotated[bool, Axis(Phase.LEG, "legs: begins again with word 0")] = False
    bos_shift: Annotated[bool, Axis(Phase.LEG, "legs: counts one prompt token more")] = False
    role_again: Annotated[bool, Axis(Phase.LEG, "legs: a second role frame, on chat")] = False
    instant_stop: Annotated[bool, Axis(Phase.LEG, "legs: says nothing, and that the answer is complete")] = (
        False
    )
    reject: Annotated[
        Literal["none", "prefill", "unsupported_param", "context_length", "context_length_in_stream"],
        Axis(
            Phase.LEG,
            "legs: refused as a server does that knows no prefill, not this parameter, not this length",
        ),
    ] = "none"
    # on any request
    strict_params: Annotated[
        bool, Axis(Phase.REQUEST, "a request with fields that are not known is refused")
    ] = False
    # how far it gets, and what stands before it
    at: Annotated[
        Literal["frames", "request", "head", "role"],
        Axis(Phase.REACH, "how far it gets: not one byte, the head only, the role frame only"),
    ] = "frames"
    ttft_ms: Annotated[int, Axis(Phase.REACH, "silence between the head and the first frame", _MS)] = 0
    status: Annotated[
        int, Axis(Phase.REACH, "an HTTP status in place of a stream", Integer(599, least=200))
    ] = 200
    retry_after: Annotated[
        int | str | None,
        Axis(
            Phase.REACH, "a retry-after header: seconds, or an HTTP date in quotes", IntegerOrHeader(U32_MAX)
        ),
    ] = None
    body: Annotated[Literal["json", "flat", "html", "empty"], Axis(Phase.REACH, "the body of a status")] = (
        "json"
    )
    answer_as: Annotated[
        Literal["asked", "sse", "json", "json_error", "html", "empty"],
        Axis(Phase.REACH, "a stream where none was asked for (sse), or a 200 that is no stream"),
    ] = "asked"
    content_type: Annotated[
        str | None, Axis(Phase.OPENING, "the answer under another content type", HeaderText())
    ] = None
    # silence
    heartbeat: Annotated[
        Literal["none", "ping", "bare", "keep_alive", "openrouter", "event", "empty_data", "empty_delta"],
        Axis(Phase.OPENING, "signs of life during a silence"),
    ] = "none"
    heartbeat_ms: Annotated[
        int, Axis(Phase.OPENING, "milliseconds between heartbeats", Integer(U64_MAX, least=1))
    ] = 1000
    beats: Annotated[
        int | str, Axis(Phase.OPENING, "how many heartbeats", Integer(U32_MAX, least=1, words=("unlimited",)))
    ] = UNLIMITED
    # SSE
    eol: Annotated[Literal["lf", "crlf", "cr"], Axis(Phase.SPELLING, "line ends")] = "lf"
    space: Annotated[bool, Axis(Phase.SPELLING, "the blank behind `data:`")] = True
    multiline: Annotated[
        int,
        Axis(
            Phase.SPELLING,
            "data lines per frame, with the JSON spread over them",
            Integer(HELD_FRAMES, least=1),
        ),
    ] = 1
    comments: Annotated[int, Axis(Phase.SPELLING, "comment lines between frames", Integer(HELD_FRAMES))] = 0
    id: Annotated[bool, Axis(Phase.SPELLING, "an id: field per frame")] = False
    retry: Annotated[
        int | str,
        Axis(
            Phase.SPELLING,
            "a retry: field in the first frame, or in a block alone",
            Integer(U32_MAX, words=("none", "alone")),
        ),
    ] = "none"
    bom: Annotated[bool, Axis(Phase.SPELLING, "a byte order mark at the start")] = False
    final_blank: Annotated[bool, Axis(Phase.SPELLING, "the last blank line")] = True
    spacing: Annotated[Literal["compact", "python"], Axis(Phase.SPELLING, "blanks in the JSON")] = "compact"
    # framing
    segment: Annotated[
        int | str,
        Axis(
            Phase.FRAMING,
            "where the stream is cut into chunks: n frames a piece, every byte, inside every é, between CR and LF",
            Integer(HELD_FRAMES, least=1, words=("frame", "byte", "utf8", "crlf", "whole")),
        ),
    ] = "frame"
    gap_ms: Annotated[int, Axis(Phase.FRAMING, "milliseconds between the pieces of a segment", _MS)] = 0
    length: Annotated[
        int | str,
        Axis(
            Phase.FRAMING,
            "a wrong Content-Length in place of chunks; both: chunks too",
            SignedInteger(U32_MAX, words=("none", "both")),
        ),
    ] = "none"
    chunk_error: Annotated[
        Literal["none", "bad_size", "no_crlf", "response_inside", "trailer"],
        Axis(Phase.FRAMING, "broken chunked framing at the fault point"),
    ] = "none"
    encoding: Annotated[
        Literal["none", "gzip", "gzip_truncated", "gzip_unlabelled"],
        Axis(Phase.FRAMING, "content coding of the stream"),
    ] = "none"
    # the end
    close: Annotated[CloseWord, Axis(Phase.END, "how the response ends")] = "terminator"
    idle_ms: Annotated[
        int, Axis(Phase.END, "how long an idle connection lives, with close=idle_close", _MS)
    ] = 0
    # who writes it: None is the model's own dialect; `given` are the keys that then win over the dialect
    dialect: Annotated[
        str | None, Axis(Phase.WRITER, "whose way of writing a stream; else the model's", Choice(*DIALECTS))
    ] = None
    given: frozenset[str] = frozenset()
    # for whoever reads the log; whose requests they are, and how many of them meet it
    name: Annotated[str | None, Axis(Phase.LABEL, "a name for the log", Text())] = None
    test: Annotated[
        str | None,
        Axis(Phase.LABEL, "the id of the test that asks, where no header `x-test-id` says one", Identifier()),
    ] = None
    times: Annotated[
        int | None,
        Axis(
            Phase.LABEL,
            "so many requests of a test and prompt meet it, then what is next in the list",
            Integer(U32_MAX, least=1),
        ),
    ] = None

    @cached_property
    def may_stream(self) -> bool:
        """Whether it is a stream on some request: neither a status nor an answer of another kind."""
        return self.status == HEALTHY.status and self.answer_as in STREAMED

    @cached_property
    def thinks_on(self) -> bool:
        """Whether the fault point is in the reasoning of an answer that goes on after it."""
        return self.content == "reasoning" and self.then == "rest"

    @property
    def given_reasoning_key(self) -> str | None:
        """The key of reasoning that the directive gives itself; None: the dialect's."""
        return self.reasoning_key if "reasoning_key" in self.given else None


HEALTHY: Final = Death()
DEFAULTS: Final[dict[str, object]] = msgspec.structs.asdict(HEALTHY)


AXES: Final = MappingProxyType(
    {
        key: axis_of(hint)
        for key, hint in get_type_hints(Death, include_extras=True).items()
        if get_origin(hint) is Annotated
    }
)
"""The axes by their keys, in the order of a response."""


def keys_of(*phases: Phase) -> tuple[str, ...]:
    """The axes that act on one of these."""
    return tuple(key for key, axis in AXES.items() if axis.phase in phases)


LABELS: Final = keys_of(Phase.LABEL)
LEG_KEYS: Final = keys_of(Phase.LEG)
CONTENT_KEYS: Final = keys_of(Phase.CONTENT)
SPELLING_KEYS: Final = keys_of(Phase.SPELLING)
OPENED_KEYS: Final = keys_of(Phase.OPENING)
UNSEEN_KEYS: Final = tuple(key for key in keys_of(Phase.CONTENT, Phase.COUNTS, Phase.LEG) if key != "reject")
"""What a stream that never gets to its content frames cannot show; a rejection needs no content."""
STREAM_KEYS_BUT_AT: Final = (
    *UNSEEN_KEYS,
    "reject",
    "error",
    *keys_of(Phase.TERMINAL, Phase.OPENING, Phase.SPELLING, Phase.FRAMING),
)
"""What a response that is no stream cannot show, and what cannot be seen where nothing is answered at all."""
STREAM_KEYS: Final = (*STREAM_KEYS_BUT_AT, "at")
STREAM_ONLY_KEYS: Final = tuple(key for key in STREAM_KEYS if key not in OPENED_KEYS)


@cache
def _getter_of(keys: tuple[str, ...]) -> tuple[Callable[[Death], object], object]:
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
