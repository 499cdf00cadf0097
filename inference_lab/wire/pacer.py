"""The pacing wheel: many deadlines, one armed timer.

Deadlines are absolute integers in microseconds, so that frame i of a stream is due at start + i·delay without drift,
for any delay up to 2^64 ms. They are served in slots of a millisecond, which is how finely epoll waits; never early.
What a turn of the reactor has no time for is served in the next: late is allowed, deaf is not.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from inference_lab.wire.counters import Log2Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

_log: Final = Logger()

_SLOT_US: Final = 1000
_COMPACT_ABOVE: Final = 64
_TAKEN_BACK: Final = object()

LATE_US: Final = 20_000
"""Lateness that is worth a line in the log: whoever measures a gateway's timing should know that it was ours."""
_QUIET_US: Final = 10_000_000

TURN_US: Final = 5_000
"""The budget of a turn: after so long the reactor sees to its sockets before more of what is due is served."""
_AT_ONCE: Final = 16
"""So many are called between two looks at the clock."""


class Lateness:
    """Says how late something was, at most every ten seconds, and then the worst since the last line.

    `line` is the log's line, with `{late}` in it for the milliseconds.
    """

    def __init__(self, line: str) -> None:
        self._line = line
        self._worst_us = 0
        self._quiet_until_us: int | None = None

    def report(self, late_us: int, now_us: int) -> None:
        """Take in that something was so late; more than `LATE_US` is worth a line."""
        if late_us <= LATE_US:
            return
        self._worst_us = max(self._worst_us, late_us)
        if self._quiet_until_us is None or now_us >= self._quiet_until_us:
            _log.warn(self._line, late=self._worst_us / 1000)
            self._worst_us = 0
            self._quiet_until_us = now_us + _QUIET_US


class Pacer:
    """Calls back at absolute times.

    `clock` arms timers (the reactor, or task.Clock); `seconds` tells the time they are counted in and should be
    monotonic: the reactor's own is the wall clock, which NTP may step.
    """

    def __init__(self, clock: IReactorTime, seconds: Callable[[], float]) -> None:
        self.clock = clock
        self._seconds = seconds
        # A dict as an ordered set: first come first served.
        self._slots: dict[int, dict[Callable[[], None], None]] = {}
        self._order: list[int] = []
        self._armed: IDelayedCall | None = None
        self._armed_slot = 0
        self._serving = False
        self._soon: dict[Callable[[], None], None] = {}
        self._next_turn: IDelayedCall | None = None
        self._lateness = Lateness(
            "frames were up to {late:.0f} ms late: too many streams, or no processor for this process"
        )
        self.late_us = Log2Histogram()
        """How late slots were served; a slot is a millisecond, however many wait for it."""
        self.turn_us = 0
        """The time at which the deadlines that are being served were found due: cheaper to ask for than `now_us`."""

    def now_us(self) -> int:
        """The time in microseconds."""
        return round(self._seconds() * 1e6)

    def at(self, due_us: int, wake: Callable[[], None]) -> int:
        """Call `wake` once when `due_us` has come; the answer is the slot, for `forget`. Nothing may wait twice."""
        slot = -(-due_us // _SLOT_US)
        waiting = self._slots.get(slot)
        if waiting is None:
            waiting = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        waiting[wake] = None
        if not self._serving and (self._armed is None or slot < self._armed_slot):
            self._arm()
        return slot

    def forget(self, slot: int, wake: Callable[[], None]) -> None:
        """Take back an `at` that has not been served; does nothing when it has."""
        waiting = self._slots.get(slot)
        if waiting is None or wake not in waiting:
            return
        del waiting[wake]
        if waiting:
            return
        del self._slots[slot]
        # The heap keeps the number of an emptied slot until its turn, which for a far deadline never comes.
        if len(self._order) > 2 * len(self._slots) + _COMPACT_ABOVE or not self._slots:
            self._order = sorted(self._slots)  # a sorted list is a heap
        if not self._serving and slot == self._armed_slot:
            self._arm()

    def soon(self, wake: Callable[[], None]) -> None:
        """Call `wake` once in a turn to come, after those that asked before; nothing may wait twice."""
        self._soon[wake] = None
        if self._next_turn is None:
            self._next_turn = self.clock.callLater(0, self._serve_soon)

    def forget_soon(self, wake: Callable[[], None]) -> None:
        """Take back a `soon`; does nothing when it has been served."""
        self._soon.pop(wake, None)
        if not self._soon and self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None

    def _serve_soon(self) -> None:
        self._next_turn = None
        begun_us = self.now_us()
        for wake in list(self._soon):
            if self._soon.pop(wake, _TAKEN_BACK) is None:
                try:
                    wake()
                except Exception:  # noqa: BLE001 - as in `_serve`
                    _log.failure("a call in a turn to come failed")
            if self.now_us() - begun_us >= TURN_US:
                break
        if self._soon and self._next_turn is None:
            self._next_turn = self.clock.callLater(0, self._serve_soon)

    def _is_over(self) -> bool:
        """Whether the turn has used up its time."""
        return self.now_us() - self.turn_us >= TURN_US

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        while self._order and self._order[0] not in self._slots:
            heapq.heappop(self._order)
        if self._order:
            self._armed_slot = self._order[0]
            wait_us = max(0, self._armed_slot * _SLOT_US - self.now_us())
            self._armed = self.clock.callLater(wait_us / 1e6, self._serve)

    def _serve(self) -> None:
        self._armed = None
        self._serving = True  # what is asked for meanwhile is armed once, at the end
        self.turn_us = now_us = self.now_us()
        if self._order[0] in self._slots:
            self._lateness.report(now_us - self._order[0] * _SLOT_US, now_us)
        slot = None
        while self._order and self._order[0] * _SLOT_US <= now_us:
            if slot is not None and self._is_over():
                break
            slot = heapq.heappop(self._order)
            waiting = self._slots.get(slot)
            if waiting is None:
                continue
            self.late_us.add(now_us - slot * _SLOT_US)
            # In rounds, since what is served may ask for this slot again; each is taken out before it is called, so
            # that a stream that ends may still take back a neighbour of the same slot.
            while waiting:
                for wake in list(islice(waiting, _AT_ONCE)):
                    if waiting.pop(wake, _TAKEN_BACK) is None:
                        try:  # written out, as it is done for every frame
                            wake()
                        except Exception:  # noqa: BLE001 - one stream's defect must not stop everybody's clock
                            _log.failure("a timed call failed")
                if waiting and self._is_over():
                    heapq.heappush(self._order, slot)
                    break
            if not waiting and self._slots.get(slot) is waiting:
                del self._slots[slot]
        self._serving = False
        self._arm()
