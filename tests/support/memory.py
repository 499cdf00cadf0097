"""A connection in memory to a resource of the test's own, on a clock that the test advances."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from inference_lab.core.stream.healthy import STREAM_HEAD
from inference_lab.wire.h1.channel import LabChannel, LabSite
from inference_lab.wire.h1.endings import Endings
from inference_lab.wire.pacer import Pacer
from inference_lab.wire.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.stream.events import Event
    from inference_lab.wire.player import Player
    from inference_lab.wire.request import LabRequest

GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"


class HalfClosing(StringTransportWithDisconnection):
    """A transport that can close its writing side, as TCP does."""

    def loseWriteConnection(self) -> None:  # noqa: N802 - Twisted's name
        """Nothing to do: what was written is in `value()`."""


class TurnClock(Clock):
    """A clock that can also give the reactor exactly one turn, where `advance` would never return."""

    def turn(self) -> None:
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class Stage(Resource):
    """A resource that plays a script for each request, and everything around it in memory."""

    isLeaf = True
    head = STREAM_HEAD

    def __init__(self, script: Callable[[], Iterator[Event]], *, max_body_bytes: int = 1000) -> None:
        super().__init__()
        self.clock = TurnClock()
        self.pacer = Pacer(self.clock, self.clock.seconds)
        endings = Endings(self.pacer, flush_grace_us=25_000, linger_us=30_000_000)
        self.streams = Streams(self.pacer, reader_timeout_us=300_000_000)
        self.site = LabSite(self, endings=endings, max_body_bytes=max_body_bytes, reactor=self.clock)
        self.players: list[Player] = []
        self.gone = 0
        self._script = script

    def render(self, request: LabRequest) -> int:
        def on_gone() -> None:
            self.gone += 1

        script = chain([self.head], self._script())
        self.players.append(self.streams.play(request, script, "test", on_gone))
        return NOT_DONE_YET

    def connect(self) -> tuple[LabChannel, StringTransportWithDisconnection]:
        """A new connection and the transport that holds what was written to it."""
        channel = self.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        assert isinstance(channel, LabChannel)
        channel.callLater = self.clock.callLater
        transport = HalfClosing()
        transport.protocol = channel
        channel.makeConnection(transport)
        return channel, transport


def body_of(transport: StringTransportWithDisconnection) -> bytes:
    """Everything behind the response's head, and forget it."""
    head, _, body = transport.value().partition(b"\r\n\r\n")
    transport.clear()
    return body if head.startswith(b"HTTP/1.1") else head
