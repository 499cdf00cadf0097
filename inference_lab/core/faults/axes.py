"""The axes: the keys of a directive, the same in a header, a prompt and a TOML table, each in one row.

The documentation and `inference-lab faults` print this table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.leg_keys import REJECTIONS
from inference_lab.core.faults.values import (
    U32_MAX,
    U64_MAX,
    Choice,
    Code,
    Flag,
    HeaderText,
    Identifier,
    Integer,
    IntegerOrHeader,
    Kind,
    Signed,
    SubChoice,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Axis(msgspec.Struct, frozen=True):
    """A key: the values it takes, and one line of what it does. Its default is `Death`'s."""

    kind: Kind
    help: str


_MS: Final = Integer(U64_MAX)
HELD_FRAMES: Final = 1000
"""The most that one value may keep in memory: frames repeated, reversed or joined, words or lines in one frame."""

CLOSES: Final = (
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
)
"""How a response may be asked to end."""

AXES: Final[Mapping[str, Axis]] = {
    "after_chunks": Axis(Integer(U32_MAX, words=("all",)), "content frames before the fault point"),
    "delay_ms": Axis(_MS, "milliseconds between frames"),
    "content": Axis(
        Choice("text", "reasoning", "tool_call", "tool_call_parallel", "tool_call_complete"),
        "what the content frames carry: a call, a whole one and a second, one that the last frame closes",
    ),
    "reasoning_key": Axis(Choice("reasoning_content", "reasoning"), "the delta's key of reasoning, on chat"),
    "tokens_per_frame": Axis(
        Integer(HELD_FRAMES, least=1, words=("varied",)),
        "words in a content frame; varied: the cycle 1, 2, 4",
    ),
    "frame_bytes": Axis(
        Integer(2**31 - 1, least=1), "the last content frame is padded with blanks to this size"
    ),
    "tear": Axis(
        SubChoice(("none", "half", "utf8"), {"byte": (1, U32_MAX)}),
        "how much of one more frame goes out before the close",
    ),
    "malformed": Axis(Flag(), "a frame of broken JSON at the fault point"),
    "sequence": Axis(
        SubChoice(
            ("none", "double_finish", "after_finish", "after_done", "choices_null", "choices_empty"),
            {"dup": (1, HELD_FRAMES), "drop": (1, U32_MAX), "swap": (2, HELD_FRAMES)},
        ),
        "frames repeated (dup), left out (drop), reversed (swap), or where none belongs",
    ),
    "then": Axis(Choice("end", "rest"), "behind the fault point: the tail, or first the rest of the answer"),
    "pause_ms": Axis(_MS, "silence at the fault point"),
    "rest_delay_ms": Axis(_MS, "then=rest: milliseconds between the frames behind the fault point"),
    "error": Axis(Choice("none", *VARIANTS), "an error in the stream"),
    "code": Axis(Code(), "the error's code"),
    "message": Axis(Text(), "the error's message"),
    "type": Axis(Text(), "the error's type"),
    "finish": Axis(Text("none", moved={"empty_each": "empty_finish=true"}), "the finish reason"),
    "empty_finish": Axis(Flag(), '"" as the finish reason of every frame that has none'),
    "text_in_finish": Axis(Flag(), "one more word rides in the finish frame"),
    "usage": Axis(
        Choice(
            "asked",
            "never",
            "always",
            "every_chunk",
            "null_every_chunk",
            "zero_every_chunk",
            "on_finish",
            "with_choices",
        ),
        "when token counts are sent",
    ),
    "usage_off_by": Axis(
        Signed(U32_MAX, words=("none",)), "so many completion_tokens too many or too few, at least 0"
    ),
    "done": Axis(Choice("true", "false", "twice"), "the [DONE] at the end"),
    "overlap": Axis(Integer(U32_MAX), "legs: begins so many words too early"),
    "skip": Axis(Integer(U32_MAX), "legs: leaves so many words out"),
    "restart": Axis(Flag(), "legs: begins again with word 0"),
    "bos_shift": Axis(Flag(), "legs: counts one prompt token more"),
    "role_again": Axis(Flag(), "legs: a second role frame, on chat"),
    "instant_stop": Axis(Flag(), "legs: says nothing, and that the answer is complete"),
    "reject": Axis(
        Choice("none", *REJECTIONS),
        "legs: refused as a server does that knows no prefill, not this parameter, not this length",
    ),
    "strict_params": Axis(Flag(), "a request with fields that are not known is refused"),
    "at": Axis(
        Choice("frames", "request", "head", "role"),
        "how far it gets: not one byte, the head only, the role frame only",
    ),
    "ttft_ms": Axis(_MS, "silence between the head and the first frame"),
    "status": Axis(Integer(599, least=200), "an HTTP status in place of a stream"),
    "retry_after": Axis(IntegerOrHeader(U32_MAX), "a retry-after header: seconds, or an HTTP date in quotes"),
    "body": Axis(Choice("json", "flat", "html", "empty"), "the body of a status"),
    "answer_as": Axis(
        Choice("asked", "sse", "json", "json_error", "html", "empty"),
        "a stream where none was asked for (sse), or a 200 that is no stream",
    ),
    "content_type": Axis(HeaderText(), "the answer under another content type"),
    "heartbeat": Axis(
        Choice("none", "ping", "bare", "keep_alive", "openrouter", "event", "empty_data", "empty_delta"),
        "signs of life during a silence",
    ),
    "heartbeat_ms": Axis(Integer(U64_MAX, least=1), "milliseconds between heartbeats"),
    "beats": Axis(Integer(U32_MAX, least=1, words=("unlimited",)), "how many heartbeats"),
    "eol": Axis(Choice("lf", "crlf", "cr"), "line ends"),
    "space": Axis(Flag(), "the blank behind `data:`"),
    "multiline": Axis(Integer(HELD_FRAMES, least=1), "data lines per frame, with the JSON spread over them"),
    "comments": Axis(Integer(HELD_FRAMES), "comment lines between frames"),
    "id": Axis(Flag(), "an id: field per frame"),
    "retry": Axis(
        Integer(U32_MAX, words=("none", "alone")), "a retry: field in the first frame, or in a block alone"
    ),
    "bom": Axis(Flag(), "a byte order mark at the start"),
    "final_blank": Axis(Flag(), "the last blank line"),
    "spacing": Axis(Choice("compact", "python"), "blanks in the JSON"),
    "segment": Axis(
        Integer(HELD_FRAMES, least=1, words=("frame", "byte", "utf8", "crlf", "whole")),
        "where the stream is cut into chunks: n frames a piece, every byte, inside every é, between CR and LF",
    ),
    "gap_ms": Axis(_MS, "milliseconds between the pieces of a segment"),
    "length": Axis(
        Signed(U32_MAX, words=("none", "both")), "a wrong Content-Length in place of chunks; both: chunks too"
    ),
    "chunk_error": Axis(
        Choice("none", "bad_size", "no_crlf", "response_inside", "trailer"),
        "broken chunked framing at the fault point",
    ),
    "encoding": Axis(
        Choice("none", "gzip", "gzip_truncated", "gzip_unlabelled"), "content coding of the stream"
    ),
    "close": Axis(Choice(*CLOSES), "how the response ends"),
    "idle_ms": Axis(_MS, "how long an idle connection lives, with close=idle_close"),
    "dialect": Axis(Choice(*DIALECTS), "whose way of writing a stream; else the model's"),
    "name": Axis(Text(), "a name for the log"),
    "test": Axis(Identifier(), "the id of the test that asks, where no header `x-test-id` says one"),
    "times": Axis(
        Integer(U32_MAX, least=1),
        "so many requests of a test and prompt meet it, then what is next in the list",
    ),
}
