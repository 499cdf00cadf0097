"""The wait of a shutdown for the answers that will come to a regular end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.streams import Streams

_LOOK_EVERY_S: Final = 0.02


class Farewell:
    """`done` fires once no healthy answer is unfinished any more, at `until_us`, or when told to `hurry`.

    Stalls and dying streams are not waited for: they would never end, or end as badly later as now.
    """

    def __init__(self, pacer: Pacer, streams: Streams, *, until_us: int) -> None:
        self.done: Deferred[None] = Deferred()
        self._pacer = pacer
        self._streams = streams
        self._until_us = until_us
        self._timer: IDelayedCall | None = None
        self._look()

    def hurry(self) -> None:
        """Wait no longer."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if not self.done.called:
            self.done.callback(None)

    def _look(self) -> None:
        if self._pacer.now_us() >= self._until_us or not self._streams.are_unfinished():
            self.done.callback(None)
        else:
            self._timer = self._pacer.clock.callLater(_LOOK_EVERY_S, self._look)
