"""What axes make no sense together: one table, from which refusals and their documentation come.

A key counts as given when its value differs from the healthy stream's: a value equal to the default is never
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from inference_lab.dialects import LAB
from inference_lab.faults.death import ALL, HEALTHY, NONE, UNLIMITED, Death
from inference_lab.faults.errors import VARIANTS
from inference_lab.faults.leg_keys import leg_key

COUNTED_FRAMES: Final = 100_000
"""The longest script that is counted, or collected whole, before it is sent."""

# What shapes content frames, and what a stream that never gets to them cannot show.
CONTENT_KEYS: Final = (
    "after_chunks",
    "content",
    "reasoning_key",
    "tokens_per_frame",
    "frame_bytes",
    "tear",
    "malformed",
    "sequence",
    "then",
    "pause_ms",
    "text_in_finish",
    "finish",
    "usage",
    "overlap",
    "skip",
    "restart",
    "bos_shift",
    "role_again",
    "instant_stop",
    "usage_off_by",
)
# What a response that is no stream cannot show.
STREAM_KEYS: Final = (
    *CONTENT_KEYS,
    "reject",
    "error",
    "done",
    "at",
    "content_type",
    "heartbeat",
    "heartbeat_ms",
    "beats",
    "eol",
    "space",
    "multiline",
    "comments",
    "id",
    "retry",
    "bom",
    "final_blank",
    "spacing",
    "segment",
    "gap_ms",
    "length",
    "chunk_error",
    "encoding",
)
# How many frames these contents take at least.
CALL_FRAMES: Final = {"tool_call_parallel": 5, "tool_call_complete": 3}
# Closes behind a chunked terminator.
COMPLETE: Final = ("terminator", "terminator_rst", "idle_close", "stale")


class Constraint(msgspec.Struct, frozen=True):
    """A rule: where one of `keys` is given, `holds` must. `reason` says what would be right."""

    keys: tuple[str, ...]
    holds: Callable[[Death], bool]
    reason: str


def _variant(death: Death, what: str) -> bool:
    if death.error == "none":
        # A status and a JSON error have the fields of an OpenAI error.
        return (
            death.status != HEALTHY.status and death.body in {"json", "flat"}
        ) or death.answer_as == "json_error"
    return bool(getattr(VARIANTS[death.error], f"takes_{what}"))


def _at_least(death: Death, chunks: int) -> bool:
    return isinstance(death.after_chunks, int) and death.after_chunks >= chunks


def _silence(death: Death) -> bool:
    bounded = death.then == "rest" and death.beats != UNLIMITED
    return death.close == "hang" or death.pause_ms > 0 or death.ttft_ms > 0 or bounded


def _countable(death: Death) -> bool:
    endless = death.heartbeat != "none" and death.close == "hang"
    few = death.after_chunks == ALL or (
        isinstance(death.after_chunks, int) and death.after_chunks <= COUNTED_FRAMES
    )
    return few and death.frame_bytes is None and not endless


CONSTRAINTS: Final = (
    Constraint(
        STREAM_KEYS,
        lambda d: d.status == HEALTHY.status,
        "goes with a stream: status answers without one",
    ),
    Constraint(
        STREAM_KEYS, lambda d: d.answer_as == "sse", "goes with a stream: answer_as answers without one"
    ),
    Constraint(
        ("dialect",),
        lambda d: d.dialect == LAB.name or (d.status, d.answer_as, d.at == "request") == (200, "sse", False),
        "is seen on a stream only: status, answer_as and at=request answer without one",
    ),
    Constraint(("answer_as",), lambda d: d.status == HEALTHY.status, "excludes status"),
    Constraint(("retry_after", "body"), lambda d: d.status != HEALTHY.status, "goes with status"),
    Constraint(
        ("status",), lambda d: d.status not in {204, 304} or d.body == "empty", "204 and 304 need body=empty"
    ),
    Constraint(
        ("status", "answer_as"),
        lambda d: d.close in {"terminator", "fin", "rst", "hang"},
        "needs close=terminator, fin, rst or hang",
    ),
    Constraint(
        CONTENT_KEYS, lambda d: d.at == "frames", "goes with at=frames: it gets no further than at says"
    ),
    Constraint(("error",), lambda d: d.at != "request", "cannot follow at=request, which answers nothing"),
    Constraint(
        ("at",),
        lambda d: d.at != "request" or d.close in {"fin", "rst", "hang"},
        "=request needs close=fin, rst or hang",
    ),
    Constraint(
        ("at",),
        lambda d: d.at != "request" or d.ttft_ms == 0 or d.close != "hang",
        "=request with close=hang has no end for ttft_ms",
    ),
    Constraint(
        ("content_type", "heartbeat", "bom", "retry", "encoding", "length", "chunk_error"),
        lambda d: d.at != "request",
        "cannot be seen with at=request",
    ),
    Constraint(("code",), lambda d: _variant(d, "code"), "goes with an error whose code can be set"),
    Constraint(("message",), lambda d: _variant(d, "message"), "goes with an error whose message can be set"),
    Constraint(("type",), lambda d: _variant(d, "type"), "goes with an error that has a type"),
    Constraint(
        ("error", "malformed", "sequence", "then", "text_in_finish", "pause_ms"),
        lambda d: d.tear.word == "none",
        "cannot follow a torn frame: only close may",
    ),
    Constraint(
        ("finish",), lambda d: d.tear.word == "none" or d.finish == NONE, "cannot follow a torn frame"
    ),
    Constraint(("usage",), lambda d: d.tear.word == "none", "cannot follow a torn frame"),
    Constraint(("done",), lambda d: d.tear.word == "none" or d.done == "false", "cannot follow a torn frame"),
    Constraint(
        ("pause_ms",), lambda d: d.then == "rest", "needs then=rest: at an end there is nothing behind it"
    ),
    Constraint(
        ("then",),
        lambda d: d.after_chunks != ALL and d.content == "text",
        "=rest needs a number of after_chunks and text",
    ),
    Constraint(
        ("content",),
        lambda d: d.after_chunks != ALL,
        "needs a number of after_chunks: the whole answer is text",
    ),
    Constraint(
        ("content",),
        lambda d: d.content not in CALL_FRAMES or _at_least(d, CALL_FRAMES[d.content]),
        "=tool_call_parallel needs after_chunks of at least 5, tool_call_complete of at least 3",
    ),
    Constraint(
        ("content",),
        lambda d: d.content != "tool_call_complete" or d.tear.word == "none",
        "=tool_call_complete has no frame behind it that could be torn",
    ),
    Constraint(
        ("overlap", "skip"),
        lambda d: d.content not in CALL_FRAMES and not d.restart and not (d.overlap and d.skip),
        "goes with text, reasoning or one open call, and neither with restart nor with the other",
    ),
    Constraint(
        ("restart",),
        lambda d: d.content in {"text", "reasoning"},
        "goes with text or reasoning",
    ),
    Constraint(
        ("bos_shift", "usage_off_by"),
        lambda d: (
            d.usage not in {"never", "null_every_chunk", "zero_every_chunk"}
            and (d.finish != NONE or d.usage in {"always", "every_chunk"})
        ),
        "needs counts on the wire",
    ),
    Constraint(
        ("instant_stop",),
        lambda d: not (d.overlap or d.skip or d.restart or d.usage_off_by != "none"),
        "says nothing: it excludes overlap, skip, restart and usage_off_by",
    ),
    Constraint(
        ("reject",),
        lambda d: leg_key(msgspec.structs.replace(d, reject="none")) is None,
        "excludes the other keys of legs: nothing is left for them to act on",
    ),
    Constraint(("reasoning_key",), lambda d: d.content == "reasoning", "goes with content=reasoning"),
    Constraint(
        ("tokens_per_frame",), lambda d: d.content in {"text", "reasoning"}, "goes with text and reasoning"
    ),
    Constraint(
        ("text_in_finish",),
        lambda d: d.finish != NONE and d.content == "text",
        "needs text and a finish frame",
    ),
    Constraint(
        ("usage",),
        lambda d: (
            d.usage in {"never", "always", "every_chunk", "null_every_chunk", "zero_every_chunk"}
            or d.finish != NONE
        ),
        "=on_finish and with_choices need a finish frame",
    ),
    Constraint(("frame_bytes",), lambda d: _at_least(d, 1), "needs a number of after_chunks, at least 1"),
    Constraint(
        ("frame_bytes",),
        lambda d: (
            (d.segment, d.encoding, d.eol, d.spacing, d.multiline) == ("frame", "none", "lf", "compact", 1)
        ),
        "goes with segment=frame, encoding=none, eol=lf, spacing=compact and multiline=1",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "dup" or (d.after_chunks != ALL and _at_least(d, d.sequence.number)),
        "=dup repeats frames of a numbered after_chunks",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "drop" or d.then == "rest",
        "=drop needs then=rest, or nothing is left out",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "swap" or d.after_chunks != ALL,
        "=swap needs a number of after_chunks",
    ),
    Constraint(
        ("sequence",),
        lambda d: (
            d.content == "text" or d.sequence.word not in {"drop", "swap", "after_finish", "after_done"}
        ),
        "goes with text",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word not in {"double_finish", "after_finish"} or d.finish != NONE,
        "needs a finish frame",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "after_done" or d.done != "false",
        "=after_done needs done",
    ),
    Constraint(
        ("heartbeat",),
        _silence,
        "needs a silence: close=hang, pause_ms, ttft_ms, or then=rest with beats",
    ),
    Constraint(("heartbeat_ms", "beats"), lambda d: d.heartbeat != "none", "goes with heartbeat"),
    Constraint(("segment",), lambda d: d.segment != "crlf" or d.eol == "crlf", "=crlf needs eol=crlf"),
    Constraint(("gap_ms",), lambda d: d.segment != "frame", "needs segment: a frame is one piece"),
    Constraint(
        ("length",),
        lambda d: d.encoding == "none" and d.chunk_error == "none",
        "excludes encoding and chunk_error",
    ),
    Constraint(
        ("length",),
        lambda d: d.close in {"terminator", "fin", "rst", "hang"},
        "needs close=terminator, fin, rst or hang",
    ),
    Constraint(
        ("length", "segment"),
        lambda d: (d.length == "none" and d.segment != "whole") or _countable(d),
        f"needs a stream that can be counted first: at most {COUNTED_FRAMES} chunks, no frame_bytes, no endless beats",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: (
            d.chunk_error == "trailer"
            or d.close not in {"terminator", "idle_close", "stale", "terminator_rst"}
        ),
        "breaks the response: close=fin, rst or hang",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.chunk_error != "trailer" or d.close in COMPLETE,
        "=trailer is a terminator: it needs a close with one",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.close not in {"eof", "torn_chunk", "partial_terminator"},
        "excludes that close",
    ),
    Constraint(("idle_ms",), lambda d: d.close == "idle_close", "goes with close=idle_close"),
)


def broken(death: Death) -> str | None:
    """The first constraint a death breaks, as a sentence that begins with the key; None if there is none."""
    for constraint in CONSTRAINTS:
        for key in constraint.keys:
            if getattr(death, key) != getattr(HEALTHY, key) and not constraint.holds(death):
                return f"{key} {constraint.reason}".replace(" =", "=")
    return None


def acts_without_stream(death: Death) -> bool:
    """Whether a death has an effect on a request that asked for no stream."""
    if death.status != HEALTHY.status or death.at == "request":
        return True
    if death.answer_as != HEALTHY.answer_as:
        return death.answer_as != "json"  # which is the answer such a request gets anyway
    if death.dialect not in {None, LAB.name}:
        return False
    others = (key for key in STREAM_KEYS if getattr(death, key) != getattr(HEALTHY, key))
    return (
        (death.ttft_ms > 0 or death.strict_params)
        and next(others, None) is None
        and death.close in {"terminator", "fin", "rst", "hang"}
    )
