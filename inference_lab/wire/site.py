"""What all requests of a site share: limits, deadlines and counts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from inference_lab.wire.counters import RequestCounters
from inference_lab.wire.origins import Origins
from inference_lab.wire.turns import Line

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.recording import Recorder

MAX_BODIES_BYTES: Final = 2**28
"""What all bodies may be together, unless one alone may be larger or the options say otherwise."""

BODY_RATE: Final = 500
"""The least bytes of a body per second: Apache's default, `RequestReadTimeout body=20,MinRate=500` (mod_reqtimeout)."""
_AT_ONCE: Final = 16
"""So many are told in a turn of the reactor."""


class Arriving(Protocol):
    """A connection that a request is expected on."""

    def arrives_too_slowly(self) -> None:
        """A request has had its time."""


class Arrivals:
    """The connections that a request is expected on, each with its deadline.

    All have the same time, so they stand in the order of their deadlines, and one timer waits for the first.
    """

    def __init__(self, pacer: Pacer, timeout_us: int) -> None:
        self._pacer = pacer
        self.timeout_us: Final = timeout_us
        self.body_bytes: Final = BODY_RATE * timeout_us // 1_000_000
        """What a body must bring in that time, to be given the same again."""
        self._due_us: dict[Arriving, int] = {}
        self._timer: IDelayedCall | None = None

    def begin(self, channel: Arriving) -> None:
        """The time of a request begins, unless it has."""
        if channel not in self._due_us:
            self._due_us[channel] = self._pacer.now_us() + self.timeout_us
            if self._timer is None:
                self._arm()

    def renew(self, channel: Arriving) -> None:
        """The time begins anew."""
        self._due_us.pop(channel, None)
        self.begin(channel)

    def end(self, channel: Arriving) -> None:
        """The request is there, or nothing is expected any more."""
        self._due_us.pop(channel, None)

    def stop(self) -> None:
        """Leave no timer after."""
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


class Bodies:
    """Counts the bytes of all requests that are not answered yet, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: Final = limit_bytes
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which are counted then."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """So many bytes are held no more."""
        self.held_bytes -= size


class Site:
    """A site: `max_body_bytes` bounds a request's body, `max_bodies_bytes` those of all that are not answered yet."""

    def __init__(
        self,
        pacer: Pacer,
        *,
        max_body_bytes: int,
        max_bodies_bytes: int | None = None,
        request_timeout_us: int = 60_000_000,
        origins: Origins | None = None,
        recorder: Recorder | None = None,
        counters: RequestCounters | None = None,
    ) -> None:
        self.pacer = pacer
        self.max_body_bytes = max_body_bytes
        self.bodies = Bodies(
            max(MAX_BODIES_BYTES, max_body_bytes) if max_bodies_bytes is None else max_bodies_bytes
        )
        self.arrivals = Arrivals(pacer, request_timeout_us)
        self.line = Line(pacer)
        self.origins = Origins() if origins is None else origins
        self.recorder = recorder
        self.counters = RequestCounters() if counters is None else counters
        self.closes_at_us: int | None = None
        """Once set (on the pacer's clock), every new request is refused as one that comes too late."""

    def seconds_left(self) -> int | None:
        """Until the server is gone, rounded up and at least 1; None while nothing is planned."""
        if self.closes_at_us is None:
            return None
        return max(1, -((self.pacer.now_us() - self.closes_at_us) // 1_000_000))
