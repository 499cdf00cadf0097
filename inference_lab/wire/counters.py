"""What the server has done, in plain numbers that cost a frame next to nothing; whoever shows them adds them up.

A `Log2Histogram` counts by powers of two of a microsecond: a duration is counted at its number of bits, found without a
search.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES: Final = 64
"""So many places a spread has: no process lives for 2^63 us."""


class Log2Histogram:
    """Durations: `counts[k]` of those below 2^k us and not below 2^(k-1), `sum_us` of all of them."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * PLACES
        self.sum_us = 0

    def add(self, us: int) -> None:
        """Count one."""
        self.counts[us.bit_length()] += 1
        self.sum_us += us


class ModelCounters:
    """The streams of one model: `ttft_us` to their first content frame, `itl_us` from each to the next."""

    __slots__ = ("body_bytes", "frames", "itl_us", "name", "ttft_us")

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames = 0
        self.body_bytes = 0
        self.ttft_us = Log2Histogram()
        self.itl_us = Log2Histogram()


NO_MODEL: Final = ModelCounters("")
"""Of requests that were refused before a model was found for them."""


class RequestCounters:
    """All requests of a server. `route_of` names a path's route, of which there are few."""

    def __init__(self, route_of: Callable[[bytes], str] = lambda _: "") -> None:
        self._route_of = route_of
        self.connections = 0
        self.requests: Counter[tuple[str, str, str, str]] = Counter()
        """By route, model, trigger and ending."""

    def count(self, path: bytes, model: str, trigger: str, ending: str) -> None:
        """A request is over."""
        self.requests[self._route_of(path), model, trigger, ending] += 1
