"""Silences of a death, and the heartbeats in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference_lab.faults.death import Death


def hangs_with_beats(death: Death) -> bool:
    """Whether the connection that stays open shows signs of life; behind a torn frame nothing may come."""
    return death.heartbeat != "none" and death.close == "hang" and death.tear.word == "none"


def waits_for_beats(death: Death) -> bool:
    """Whether a number of beats is itself the silence at the fault point."""
    return death.then == "rest" and death.pause_ms == 0 and isinstance(death.beats, int)


def has_beats(death: Death) -> bool:
    """Whether there is a silence long enough for a heartbeat."""
    longest_ms = max(death.ttft_ms, death.pause_ms)
    return hangs_with_beats(death) or waits_for_beats(death) or longest_ms >= death.heartbeat_ms


def beats_count(death: Death) -> bool:
    """Whether the number of beats changes anything: some silence has room for more."""
    longest_ms = max(death.ttft_ms, death.pause_ms)
    return (
        not isinstance(death.beats, int)
        or hangs_with_beats(death)
        or waits_for_beats(death)
        or longest_ms // death.heartbeat_ms > death.beats
    )
