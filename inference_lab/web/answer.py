"""What a route returns: bytes, a stream that is yet to be played, or either of them later."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.wire.request import LabRequest


class Stream(Resource):
    """What a route returns for a stream: Klein renders it, and goes its way without finishing the response.

    `start` begins it; nobody takes what that returns.
    """

    isLeaf = True

    def __init__(self, start: Callable[[LabRequest], object]) -> None:
        super().__init__()
        self._start = start

    def render(self, request: LabRequest) -> int:
        """Start playing."""
        self._start(request)
        return NOT_DONE_YET


# Klein writes bytes and finishes, renders a resource, waits for a Deferred.
Answer: TypeAlias = bytes | Stream | Deferred[bytes] | Deferred[Stream]
