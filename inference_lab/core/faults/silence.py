"""Silences of a death, and the heartbeats in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.core.stream.events import HANGING, Frame, Pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.faults.death import Death

HEARTBEATS: Final = {
    "ping": b": ping\n\n",
    "bare": b":\n\n",
    "keep_alive": b": keep-alive\n\n",
    "openrouter": b": OPENROUTER PROCESSING\n\n",
    "event": b"event: ping\ndata: {}\n\n",
    "empty_data": b"data:\n\n",
}
"""The heartbeats that are the same in every stream; `empty_delta` is a frame of the stream's own."""


def silence(death: Death, ms: int, beat: Frame, *, bounded: bool = False) -> Iterator[Frame | Pause]:
    """A silence of `ms` with its heartbeats; `bounded`: at least as long as the asked number of beats."""
    if death.heartbeat == "none":
        if ms:
            yield Pause(ms)
        return
    count = beats_in(death, ms)
    if bounded and not ms and isinstance(death.beats, int):
        count = death.beats
    yield from beats(death, beat, count)
    if ms > count * death.heartbeat_ms:
        yield Pause(ms - count * death.heartbeat_ms)


def beats_in(death: Death, ms: int) -> int:
    """How many heartbeats a silence of `ms` has."""
    if death.heartbeat == "none":
        return 0
    count = ms // death.heartbeat_ms
    return min(count, death.beats) if isinstance(death.beats, int) else count


def beats_behind(death: Death, beat: Frame) -> Iterator[Frame | Pause]:
    """The heartbeats of a connection that stays open, where it shows any."""
    if hangs_with_beats(death):
        beat = Frame(beat.data, said=beat.said + HANGING)
        yield from beats(death, beat, death.beats if isinstance(death.beats, int) else None)


def beats(death: Death, beat: Frame, count: int | None) -> Iterator[Frame | Pause]:
    """So many heartbeats, each after its pause; None: without end."""
    pause = Pause(death.heartbeat_ms)
    sent = 0
    while count is None or sent < count:
        yield pause
        yield beat
        sent += 1


def hangs_with_beats(death: Death) -> bool:
    """Whether the connection that stays open shows signs of life; after a torn frame nothing may come."""
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
