"""The waiting queue of a rank, in the order of its policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.engine.request import Request


class WaitingQueue:
    """Requests sorted by `key(request, place)`: arrivals go to the back of the line, returning ones to its front."""

    def __init__(self, key: Callable[[Request, int], tuple[float, ...]]) -> None:
        self._key = key
        self._keys: list[tuple[float, ...]] = []
        self._requests: dict[tuple[float, ...], Request] = {}
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Request]:
        return (self._requests[key] for key in self._keys)

    def append(self, request: Request) -> None:
        """Queue an arrival."""
        self._insert(request, self._back)
        self._back += 1

    def push_front(self, request: Request) -> None:
        """Queue a request that was preempted."""
        self._front -= 1
        self._insert(request, self._front)

    def _insert(self, request: Request, place: int) -> None:
        key = self._key(request, place)
        request.queue_key = key
        self._requests[key] = request
        insort(self._keys, key)

    def first(self) -> Request:
        """The request to admit next; there must be one."""
        return self._requests[self._keys[0]]

    def remove(self, request: Request) -> None:
        """Take out a request that is in the queue."""
        key = request.queue_key
        if key is None:
            raise ValueError(f"request {request.id!r} is not waiting")
        del self._keys[bisect_left(self._keys, key)]
        del self._requests[key]
        request.queue_key = None
