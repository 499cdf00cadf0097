"""The live streams of a server: started here, swept for readers that take nothing, reported when they end.

A shutdown waits for those that will come to a regular end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from inference_lab.core.journal.row import Unplanned, cut
from inference_lab.wire.player import Player

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.core.stream.events import Event
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.response import Outcome, Response

_SWEEPS_PER_TIMEOUT: Final = 60
_LEAVING: Final = 16
_LOOK_EVERY_S: Final = 0.02

_log: Final = Logger()


class Streams:
    """Plays scripts as responses.

    A reader that takes nothing for `reader_timeout_us` although there is something for it is reset: one sweep over
    all streams looks for such readers, not a timer per stream.
    """

    def __init__(self, pacer: Pacer, *, reader_timeout_us: int) -> None:
        self._pacer = pacer
        self._timeout_us = reader_timeout_us
        self._live: dict[Player, tuple[str, Callable[[], None]]] = {}
        self._healthy: set[Player | Deferred[Any]] = set()
        self._leaving: list[Response] = []  # which still hold the end of a healthy answer
        self._most_leaving = _LEAVING
        self._sweep: IDelayedCall | None = None

    def play(
        self,
        request: LabRequest,
        script: Iterator[Event],
        trigger: str,
        on_gone: Callable[[], None] = lambda: None,
        *,
        healthy: bool = False,
    ) -> Player:
        """Answer `request` with `script`; `trigger` names its cause in the log, `on_gone` is called when it is over.

        `healthy` says that the script comes to a regular end by itself, for which a shutdown may wait.
        """
        player = Player(request, script, pacer=self._pacer, on_end=self._ended)
        self._live[player] = (cut(trigger), on_gone)
        if healthy:
            self._healthy.add(player)
        if self._sweep is None:
            self._arm()
        request.streaming = True
        request.let_go()  # a stall may last for hours
        if request.recording is not None:
            request.recording.plays(player)
        player.start()
        return player

    @property
    def count(self) -> int:
        """Streams that are open, whatever they are doing."""
        return len(self._live)

    def hold(self, answer: Deferred[Any]) -> None:
        """Count an answer that is written whole, once `answer` fires, among the healthy ones."""

        def release(result: object) -> object:
            self._healthy.discard(answer)
            return result

        self._healthy.add(answer)
        answer.addBoth(release)

    def are_unfinished(self) -> bool:
        """Whether a healthy answer is still being made, or lies in this process for its reader."""
        self._leaving = [response for response in self._leaving if response.held_bytes()]
        return bool(self._healthy or self._leaving)

    def live(self) -> Iterator[Player]:
        """Those that are open."""
        return iter(self._live)

    def end_all(self, cause: str) -> None:
        """Report every live stream as ended by `cause`, which is about to end the process."""
        for player in list(self._live):
            player.end_now(cause)

    def _ended(self, player: Player, outcome: Outcome) -> None:
        trigger, on_gone = self._live.pop(player)
        if player in self._healthy:
            self._healthy.discard(player)
            response = player.request.response
            if response.held_bytes():
                self._leaving.append(response)
                if len(self._leaving) > self._most_leaving:  # not each time: many may leave at once
                    self._leaving = [leaving for leaving in self._leaving if leaving.held_bytes()]
                    self._most_leaving = 2 * len(self._leaving) + _LEAVING
        request = player.request
        request.model.frames += player.frames
        request.model.body_bytes += player.body_bytes
        made = player.close
        request.count(outcome.ending or ("" if made is None else made.ending))
        status = request.code if request.startedWriting else None  # a death may come before a head
        recording = request.recording
        if recording is not None:
            recording.end(status, outcome.ending, outcome.lost)
        _log.info(
            "{request} {status} {trigger}: {frames} frames, {bytes} bytes, ended: {outcome}",
            request=request,
            status="no status" if status is None else status,
            trigger=trigger,
            frames=player.frames,
            bytes=player.body_bytes,
            outcome=outcome.text,
            recording=recording,
        )
        if not self._live and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        on_gone()

    def _arm(self) -> None:
        self._sweep = self._pacer.clock.callLater(self._timeout_us / _SWEEPS_PER_TIMEOUT / 1e6, self._look)

    def _look(self) -> None:
        self._sweep = None
        now_us = self._pacer.now_us()
        for player in list(self._live):
            if player.stuck_us(now_us) >= self._timeout_us:
                lost = player.request.response.unsent_bytes()
                player.cut(
                    Unplanned.READER_TIMEOUT,
                    f"reader made no progress for {self._timeout_us / 1e6:g} s: reset, {lost} bytes lost",
                )
        if self._live:
            self._arm()


class GracefulShutdown:
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
