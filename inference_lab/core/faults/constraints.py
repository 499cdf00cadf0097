"""What axes make no sense together: one table, from which refusals and their documentation come.

A key counts as given when its value differs from the healthy stream's, or from what the mode's row says: a value
equal to the default is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.death import (
    ALL,
    DEFAULTS,
    HEALTHY,
    NONE,
    SPELLING_KEYS,
    STREAM_KEYS,
    STREAM_KEYS_BUT_AT,
    STREAM_ONLY_KEYS,
    STREAMED,
    UNLIMITED,
    UNSEEN_KEYS,
    WHOLE_CLOSES,
    Death,
    at_defaults,
)
from inference_lab.core.faults.leg_keys import leg_key
from inference_lab.core.faults.silence import beats_count, hangs_with_beats, has_beats

COUNTED_FRAMES: Final = 100_000
"""The longest script that is counted, or collected whole, before it is sent."""

# How many frames these contents take at least.
CALL_FRAMES: Final = {"tool_call_parallel": 5, "tool_call_complete": 3}
# Closes that need the response to be whole, and those after which a client may go on.
COMPLETE: Final = ("terminator", "terminator_rst", "idle_close", "stale")


class Constraint(msgspec.Struct, frozen=True):
    """A rule: where one of `keys` is given, `holds` must. `reason` says what would be right; it follows the key.

    `own`: what only the mode's row says does not count.
    """

    keys: tuple[str, ...]
    holds: Callable[[Death], bool]
    reason: str
    own: bool = False


def _takes(death: Death, what: str) -> bool:
    if death.error == "none":
        # A status and a JSON error have the fields of an OpenAI error.
        has_json = death.status != HEALTHY.status and death.body in {"json", "flat"}
        return has_json or death.answer_as == "json_error"
    return bool(getattr(VARIANTS[death.error], f"takes_{what}"))


def _at_least(death: Death, chunks: int) -> bool:
    return death.after_chunks == ALL or int(death.after_chunks) >= chunks


def _has_finish(death: Death) -> bool:
    return death.at == "frames" and death.finish != NONE and death.tear.word == "none"


def _countable(death: Death) -> bool:
    few = death.after_chunks == ALL or int(death.after_chunks) <= COUNTED_FRAMES
    return few and death.frame_bytes is None and not hangs_with_beats(death)


def _is_plain(death: Death) -> bool:
    """Whether frames are spelled as they are by default and each is a chunk."""
    return at_defaults(death, (*SPELLING_KEYS, "segment", "encoding"))


def _has_body(death: Death) -> bool:
    if death.status != HEALTHY.status:
        return death.body != "empty"
    if death.at == "head" and death.close == "hang":
        return not at_defaults(death, ("error", "heartbeat")) or death.done != "false"
    return death.answer_as != "empty" or death.heartbeat != "none"


CONSTRAINTS: Final = (
    # a response that is no stream
    Constraint(
        STREAM_KEYS, lambda d: d.status == HEALTHY.status, "goes with a stream: status answers without one"
    ),
    Constraint(
        STREAM_ONLY_KEYS,
        lambda d: d.answer_as in STREAMED,
        "goes with a stream: answer_as answers without one",
    ),
    Constraint(
        ("dialect",),
        lambda d: d.dialect == LAB.name or (d.may_stream and d.at != "request"),
        "is seen on a stream only: status, answer_as and at=request answer without one",
    ),
    Constraint(("answer_as",), lambda d: d.status == HEALTHY.status, "excludes status"),
    Constraint(
        ("retry_after", "body"), lambda d: d.status != HEALTHY.status, "goes with a status other than 200"
    ),
    Constraint(
        ("status",),
        lambda d: d.status not in {204, 304} or d.body == "empty",
        "needs body=empty for 204 and 304",
    ),
    Constraint(
        ("status", "answer_as"),
        lambda d: d.may_stream or d.close in WHOLE_CLOSES,
        "needs close=terminator, fin, rst or hang",
    ),
    Constraint(
        ("ttft_ms",),
        lambda d: _has_body(d) or d.close in {"fin", "rst"},
        "needs something behind the head: a body, or close=fin or rst",
    ),
    # how far it gets
    Constraint(UNSEEN_KEYS, lambda d: d.at == "frames", "needs at=frames: it gets no further than at says"),
    Constraint(
        (*STREAM_KEYS_BUT_AT, "answer_as", "idle_ms"),
        lambda d: d.at != "request",
        "cannot be seen with at=request, which answers nothing",
    ),
    Constraint(
        ("at",),
        lambda d: d.at != "request" or d.close in {"fin", "rst", "hang", "tls_raw"},
        "=request needs close=fin, rst, hang or tls_raw",
    ),
    Constraint(
        ("ttft_ms",),
        lambda d: d.at != "request" or d.close != "hang",
        "has no end with at=request and close=hang",
    ),
    # errors
    Constraint(("code",), lambda d: _takes(d, "code"), "goes with an error whose code can be set"),
    Constraint(("message",), lambda d: _takes(d, "message"), "goes with an error whose message can be set"),
    Constraint(("type",), lambda d: _takes(d, "type"), "goes with an error that has a type"),
    # a torn frame
    Constraint(
        (
            "error",
            "malformed",
            "sequence",
            "then",
            "text_in_finish",
            "pause_ms",
            "final_blank",
        ),
        lambda d: d.tear.word == "none",
        "cannot follow a torn frame: only close may",
    ),
    Constraint(
        ("finish",),
        lambda d: d.tear.word == "none" or d.finish == NONE,
        "cannot follow a torn frame: only close may",
    ),
    Constraint(
        ("done",),
        lambda d: d.tear.word == "none" or d.done == "false",
        "cannot follow a torn frame: only close may",
    ),
    Constraint(
        ("usage",),
        lambda d: d.tear.word == "none" or d.usage.endswith("_chunk"),
        "cannot follow a torn frame: only close may",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.tear.word == "none" or d.chunk_error == "trailer",
        "cannot follow a torn frame: only close may",
    ),
    # the fault point
    Constraint(
        ("pause_ms", "rest_delay_ms"),
        lambda d: d.then == "rest",
        "needs then=rest: at an end there is nothing behind it",
    ),
    Constraint(
        ("then",),
        lambda d: d.after_chunks != ALL and (d.content == "text" or (d.thinks_on and _at_least(d, 1))),
        "=rest needs a number of after_chunks, and text, or reasoning with after_chunks of at least 1",
    ),
    Constraint(
        ("content",),
        lambda d: d.after_chunks != ALL,
        "needs a number of after_chunks: the whole answer is text",
    ),
    Constraint(
        ("content",),
        lambda d: _at_least(d, 1) or d.tear.word != "none",
        "needs after_chunks of at least 1",
        own=True,
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
        ("overlap", "skip", "restart"),
        lambda d: (
            _at_least(d, 1)
            or d.tear.word != "none"
            or d.then == "rest"
            or d.text_in_finish
            or d.sequence.word in {"after_finish", "after_done", "swap"}
        ),
        "needs a word to act on: after_chunks of at least 1, a tear or then=rest",
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
            and (_has_finish(d) or d.usage in {"always", "every_chunk"})
        ),
        "needs counts on the wire",
    ),
    Constraint(
        ("instant_stop",),
        lambda d: not (d.overlap or d.skip or d.restart),
        "says nothing: it excludes overlap, skip and restart",
    ),
    Constraint(
        ("reject",),
        lambda d: leg_key(msgspec.structs.replace(d, reject="none")) is None,
        "excludes the other keys of legs: nothing is left for them to act on",
    ),
    Constraint(("reasoning_key",), lambda d: d.content == "reasoning", "goes with content=reasoning"),
    Constraint(
        ("reasoning_key", "tokens_per_frame"),
        lambda d: _at_least(d, 1) or d.tear.word != "none" or d.then == "rest",
        "needs after_chunks of at least 1",
    ),
    Constraint(
        ("tokens_per_frame",), lambda d: d.content in {"text", "reasoning"}, "goes with text and reasoning"
    ),
    Constraint(
        ("tokens_per_frame",),
        lambda d: (
            d.tokens_per_frame != "varied" or _at_least(d, 2) or d.tear.word != "none" or d.then == "rest"
        ),
        "=varied needs after_chunks of at least 2: the cycle begins with 1",
    ),
    Constraint(("frame_bytes",), lambda d: _at_least(d, 1), "needs after_chunks of at least 1"),
    Constraint(
        ("frame_bytes",),
        _is_plain,
        "goes with plain SSE, a frame a chunk: the axes of spelling, segment and encoding at their defaults",
    ),
    Constraint(("frame_bytes",), lambda d: d.usage != "every_chunk", "excludes usage=every_chunk"),
    Constraint(
        ("frame_bytes",), lambda d: d.sequence.word != "dup", "excludes sequence=dup, which would repeat it"
    ),
    Constraint(("frame_bytes",), lambda d: d.chunk_error != "no_crlf", "excludes chunk_error=no_crlf"),
    # the order of frames
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "dup" or _at_least(d, d.sequence.number),
        "=dup repeats as many frames as after_chunks has, at most",
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
        lambda d: d.sequence.word not in {"double_finish", "after_finish"} or _has_finish(d),
        "needs a finish frame",
    ),
    Constraint(
        ("sequence",),
        lambda d: d.sequence.word != "after_done" or d.done != "false",
        "=after_done needs done",
    ),
    # the tail
    Constraint(
        ("text_in_finish",), lambda d: _has_finish(d) and d.content == "text", "needs text and a finish frame"
    ),
    Constraint(
        ("usage",),
        lambda d: (
            d.usage in {"always", "every_chunk", "null_every_chunk", "zero_every_chunk"} or _has_finish(d)
        ),
        "needs a finish frame, which a usage frame follows",
    ),
    # silence
    Constraint(
        ("heartbeat",),
        has_beats,
        "needs a silence of heartbeat_ms at least: close=hang, pause_ms, ttft_ms, or then=rest with beats",
    ),
    Constraint(("heartbeat_ms", "beats"), lambda d: d.heartbeat != "none", "goes with heartbeat"),
    Constraint(("beats",), beats_count, "is more than the silence has room for"),
    Constraint(
        ("final_blank",),
        lambda d: d.beats != UNLIMITED or not hangs_with_beats(d),
        "needs an end: the heartbeats have none",
    ),
    # framing
    Constraint(("segment",), lambda d: d.segment != "crlf" or d.eol == "crlf", "=crlf needs eol=crlf"),
    Constraint(
        ("gap_ms",),
        lambda d: d.segment not in {"frame", "whole"},
        "needs segment: a frame, or the whole, is one piece",
    ),
    Constraint(
        ("length",),
        lambda d: d.encoding == "none" and d.chunk_error == "none",
        "excludes encoding and chunk_error",
    ),
    Constraint(("length",), lambda d: d.close in WHOLE_CLOSES, "needs close=terminator, fin, rst or hang"),
    Constraint(
        ("length", "segment"),
        lambda d: (d.length == "none" and d.segment != "whole") or _countable(d),
        f"needs a stream that can be counted first: at most {COUNTED_FRAMES} frames, no frame_bytes, "
        "no heartbeats while it hangs",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.chunk_error == "trailer" or d.close not in COMPLETE,
        "breaks the response: it needs close=fin, rst, hang, fin_close or tls_raw",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.chunk_error != "trailer" or d.close in COMPLETE,
        "=trailer is a terminator: it needs a close with one",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.close not in {"eof", "torn_chunk", "partial_terminator"},
        "excludes close=eof, torn_chunk and partial_terminator",
    ),
    Constraint(
        ("chunk_error",),
        lambda d: d.chunk_error == "trailer" or (d.segment != "whole" and not isinstance(d.segment, int)),
        "needs chunks that end at the fault point: segment=frame, byte, utf8 or crlf",
    ),
    Constraint(("idle_ms",), lambda d: d.close == "idle_close", "goes with close=idle_close"),
)


def broken(death: Death, settings: Mapping[str, object], row: Death) -> str | None:
    """The first constraint a death breaks, as a sentence that begins with the key; None if there is none.

    `settings` are what a directive gives, `row` is its mode's death.
    """
    own = {key for key, value in settings.items() if getattr(row, key) not in {value, getattr(death, key)}}
    given = own | {key for key in DEFAULTS if getattr(death, key) != getattr(HEALTHY, key)}
    for constraint in CONSTRAINTS:
        counted = own if constraint.own else given
        for key in constraint.keys:
            if key in counted and not constraint.holds(death):
                return f"{key} {constraint.reason}".replace(" =", "=", 1)
    return None
