"""A silence and its heartbeats: what servers send to say that they are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.faults.events import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.faults.death import Death
    from inference_lab.faults.events import Draft, Frame

HEARTBEATS: Final = {
    "ping": b": ping\n\n",
    "bare": b":\n\n",
    "keep_alive": b": keep-alive\n\n",
    "openrouter": b": OPENROUTER PROCESSING\n\n",
    "event": b"event: ping\ndata: {}\n\n",
    "empty_data": b"data:\n\n",
}


def silence(
    death: Death, make_beat: Callable[[], Frame], ms: int, *, bounded: bool = False
) -> Iterator[Draft]:
    """A silence of `ms` with its heartbeats; `bounded`: at least as long as the asked number of beats."""
    if death.heartbeat == "none":
        if ms:
            yield Pause(ms)
        return
    count = ms // death.heartbeat_ms
    if isinstance(death.beats, int):
        count = death.beats if bounded and not ms else min(count, death.beats)
    yield from beats(death, make_beat(), count)
    if ms > count * death.heartbeat_ms:
        yield Pause(ms - count * death.heartbeat_ms)


def beats(death: Death, beat: Frame, count: int | None) -> Iterator[Draft]:
    """So many heartbeats, each behind its pause; None: without end."""
    pause = Pause(death.heartbeat_ms)
    sent = 0
    while count is None or sent < count:
        yield pause
        yield beat
        sent += 1
