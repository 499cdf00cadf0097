"""Requests that are on their way in: how long each may take."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.wire.connection import Connection
    from inference_lab.wire.pacer import Pacer

BODY_RATE: Final = 500
"""The least bytes of a body per second: Apache's default, `RequestReadTimeout body=20,MinRate=500` (mod_reqtimeout)."""
_AT_ONCE: Final = 16
"""So many are told in a turn of the reactor."""


class Arrivals:
    """The connections that a request is expected on, each with its deadline.

    All have the same time, so they stand in the order of their deadlines, and one timer waits for the first.
    """

    def __init__(self, pacer: Pacer, timeout_us: int) -> None:
        self._pacer = pacer
        self.timeout_us: Final = timeout_us
        self.body_bytes: Final = BODY_RATE * timeout_us // 1_000_000
        """What a body must bring in that time, to be given the same again."""
        self._due_us: dict[Connection, int] = {}
        self._timer: IDelayedCall | None = None

    def begin(self, channel: Connection) -> None:
        """The time of a request begins, unless it has."""
        if channel not in self._due_us:
            self._due_us[channel] = self._pacer.now_us() + self.timeout_us
            if self._timer is None:
                self._arm()

    def renew(self, channel: Connection) -> None:
        """The time begins anew."""
        self._due_us.pop(channel, None)
        self.begin(channel)

    def end(self, channel: Connection) -> None:
        """The request is there, or nothing is expected any more."""
        self._due_us.pop(channel, None)

    def stop(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due_us = next(iter(self._due_us.values()))
        wait_us = max(0, due_us - self._pacer.now_us())
        self._timer = self._pacer.clock.callLater(wait_us / 1e6, self._look)

    def _look(self) -> None:
        self._timer = None
        now_us = self._pacer.now_us()
        for channel, due_us in list(islice(self._due_us.items(), _AT_ONCE)):
            if due_us > now_us:
                break
            del self._due_us[channel]
            channel.arrives_too_slowly()
        if self._due_us and self._timer is None:
            self._arm()
