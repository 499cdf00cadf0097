"""A large answer in pieces: each is made when the reader has taken those before it, whoever makes them.

What a reader that takes nothing holds is a piece or two, however long the answer is, and it is reset in the end.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from inference_lab.core.errors import too_many_answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.transport import SendQueueDrain

PIECE_BYTES: Final = 32_768
MOST_ANSWERS: Final = 256
"""Large answers under way at once: some 25 MB where nobody reads."""
MOST_HELD_BYTES: Final = 33_554_432
"""Of answers that cannot be made in pieces, what may lie here for their readers."""


@implementer(IPushProducer)
class Pieces:
    """The response of `request`, piece by piece."""

    def __init__(self, request: LabRequest) -> None:
        self._request = request
        self._is_paused = False
        self._room: Deferred[None] | None = None
        self._watch: SendQueueDrain | None = None
        request.registerProducer(self, True)

    async def send(self, piece: bytes) -> None:
        """Write a piece that is not the last; returns when there is room for the next."""
        self._request.write(piece)
        if self._is_paused:
            self._room = Deferred()
            await self._room

    def stop(self) -> None:
        """The last piece is the caller's to write, or the client has left."""
        self._stop_watching()
        if not self._request.has_left:
            self._request.unregisterProducer()

    def pauseProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader is slow, and from now on is expected to take something."""
        self._is_paused = True
        if self._watch is None:
            self._watch = self._request.response.watch_reader()

    def resumeProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader has caught up."""
        self._is_paused = False
        self._stop_watching()
        room, self._room = self._room, None
        if room is not None:
            room.callback(None)

    def stopProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The connection is gone; who makes the pieces is cancelled."""

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


class LargeAnswers:
    """Those under way in this process, so that there are not too many."""

    def __init__(self) -> None:
        self._sizes: dict[LabRequest, int] = {}

    def refuse_further(self, size: int = 0) -> None:
        """Make sure that there is room for one more, of which `size` bytes lie here until it is over.

        Raises:
            ApiError: 503, to be asked for again a second later.
        """
        held = sum(self._sizes.values())
        if len(self._sizes) >= MOST_ANSWERS or (held and held + size > MOST_HELD_BYTES):
            raise too_many_answers(len(self._sizes))

    @contextmanager
    def begin(self, request: LabRequest, size: int = 0) -> Iterator[Pieces]:
        """Send an answer; its last piece is written afterwards.

        Raises:
            ApiError: see `refuse_further`.
        """
        self.refuse_further(size)
        self._sizes[request] = size
        pieces = Pieces(request)
        try:
            yield pieces
        finally:
            del self._sizes[request]
            pieces.stop()

    def reset_all(self) -> None:
        """Their readers have had their time."""
        for request in list(self._sizes):
            request.response.cut()
