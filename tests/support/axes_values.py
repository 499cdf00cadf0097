"""The values of each axis that tests meet, and what a value needs beside it to be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.faults.death import AXES, HEALTHY, LEG_KEYS
from inference_lab.core.faults.values import Choice, Flag

if TYPE_CHECKING:
    from collections.abc import Iterable

# Values for the kinds that do not list theirs; and for some that do, to meet more than their edges.
SAMPLES = {
    "after_chunks": ("0", "1", "9", "all"),
    "overlap": ("3", "9"),
    "skip": ("2",),
    "usage_off_by": ("none", "+2", "-30"),
    "delay_ms": ("0", "7"),
    "frame_bytes": ("300", "70000"),
    "pause_ms": ("2500",),
    "rest_delay_ms": ("0", "40"),
    "ttft_ms": ("2500",),
    "heartbeat_ms": ("400",),
    "beats": ("2", "unlimited"),
    "gap_ms": ("30",),
    "idle_ms": ("20",),
    "status": ("204", "429", "503"),
    "retry_after": ("1", '"Wed, 21 Oct 2026 07:28:00 GMT"'),
    "code": ("7", "null", "absent", '"7"', "late"),
    "message": ("M%M",),
    "type": ("sad",),
    "error": (
        "none",
        "vllm",
        "dynamo_comment",
        "openrouter",
        "raw_html",
        "plain",
    ),  # all of them: test_axes.py
    "finish": ("none", "abort", '"empty_each"'),
    "content_type": ("text/plain",),
    "name": ("x",),
    "test": ("t-1",),
    "times": ("2",),
    "tokens_per_frame": ("1", "3", "varied"),
    "multiline": ("1", "4", "30"),
    "comments": ("0", "2"),
    "retry": ("none", "5", "alone"),
    "segment": ("frame", "byte", "utf8", "crlf", "whole", "3"),
    "length": ("none", "+9", "-9", "both"),
    "tear": ("none", "half", "utf8", "byte:40"),
    "sequence": (
        "none",
        "double_finish",
        "after_finish",
        "after_done",
        "choices_null",
        "choices_empty",
        "dup:2",
        "drop:2",
        "swap:3",
    ),
}
# What the model does not know: how others write.
ELSEWHERE = {"dialect"}
PAIRED = [key for key in AXES if key not in ELSEWHERE]
ON_LEGS = [key for key in PAIRED if key in LEG_KEYS]
# Keys that say nothing on their own, and what they need to.
COMPANIONS = {
    "code": "error=openai",
    "message": "error=openai",
    "type": "error=openai",
    "reasoning_key": "content=reasoning;after_chunks=3",
    "content": "after_chunks=3",
    "heartbeat": "ttft_ms=2500",
    "heartbeat_ms": "heartbeat=ping;ttft_ms=2500",
    "beats": "heartbeat=ping;ttft_ms=9500",
    "pause_ms": "after_chunks=3;then=rest",
    "rest_delay_ms": "after_chunks=3;then=rest",
    "then": "after_chunks=3",
    "retry_after": "status=503",
    "body": "status=503",
    "gap_ms": "segment=3",
    "idle_ms": "close=idle_close",
    "chunk_error": "close=fin",
}


def values_of(key: str) -> tuple[str, ...]:
    """Every word of an axis, and a few of what has no end of values."""
    kind = AXES[key].kind
    if key in SAMPLES:
        return SAMPLES[key]
    if isinstance(kind, Choice):
        return kind.words
    assert isinstance(kind, Flag), f"{key} needs samples"
    return ("false", "true")


def changes_of(key: str) -> tuple[str, ...]:
    """The values of an axis but for its default."""
    default = str(getattr(HEALTHY, key)).lower()
    return tuple(value for value in values_of(key) if value != default)


def settings_for(key: str, value: str) -> dict[str, str]:
    companions = dict(part.split("=", 1) for part in COMPANIONS.get(key, "").split(";") if part)
    if key == "chunk_error" and value == "trailer":
        companions = {}
    if key == "segment" and value in {"byte", "crlf"}:  # of two words, since there is a chunk for each byte
        companions = {"after_chunks": "2"} | ({"eol": "crlf"} if value == "crlf" else {})
    if key == "content" and value in {"tool_call_parallel", "tool_call_complete"}:
        companions = {"after_chunks": "6"}
    if key == "at" and value == "request":
        companions = {"close": "fin"}
    if key == "status" and value == "204":
        companions = {"body": "empty"}
    if key == "sequence" and value.startswith(("drop", "swap")):
        companions = {"after_chunks": "3", "then": "rest"}
    return {**companions, key: value}


def directive_of(settings: Iterable[tuple[str, str]]) -> str:
    return ";".join(["ok", *(f"{key}={value}" for key, value in settings)])
