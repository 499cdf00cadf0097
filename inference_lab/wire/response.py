"""A response on its way, for those who play, record and end it: without channel, transport or version of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from twisted.internet.interfaces import IPushProducer
    from twisted.python.failure import Failure

    from inference_lab.core.faults.death import Close
    from inference_lab.core.journal.row import Peer
    from inference_lab.core.stream.chunks import Spelled
    from inference_lab.core.stream.events import Head, Special
    from inference_lab.wire.transport import SendQueueDrain


class Outcome(NamedTuple):
    """How a response ended.

    `text` is for the log, `ending` its word, None for the one that the script asked for. `lost` is why the connection
    ended, where it was not the server that ended it.
    """

    text: str
    ending: str | None = None
    lost: Failure | None = None


class Response(Protocol):
    """What goes out for a request, and what has become of it."""

    spell: Callable[[bytes], bytes]
    """Makes of a frame what goes out for it; once there is a head."""
    write: Callable[[bytes], None]
    """Sends what has been spelled, once `send` has sent the head."""
    close: Close | None
    """The ending that is really made, once it has begun."""
    carried_out: bool
    """Whether the connection has been told to end."""
    lost_bytes: int
    """What was lost because its reader was given up instead."""

    @property
    def connection(self) -> Hashable:
        """What it shares with the responses before and after it."""

    # -- in its order

    def begin(self, reader: IPushProducer) -> None:
        """Tell `reader` from now on when to pause and resume."""

    def head(self, head: Head) -> None:
        """Its head, which goes out with what is sent first, in this turn."""

    def spell_all(self, frames: Sequence[bytes]) -> list[bytes]:
        """As `spell`, of many at once, ahead of their time."""

    def special(self, event: Special) -> Iterator[Spelled]:
        """What goes out for one of these, in pieces."""

    def end_before(self, close: Close) -> bytes:
        """The end of the body, once, if it is to go out before this close by itself."""

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Send what has been spelled, after the head if that waits; `last`: with the end of the body."""

    def end(self, close: Close) -> None:
        """Begin its ending; nothing more is sent."""

    def over(self) -> None:
        """It has been written, or never will be: what goes out from now on is another's, and no timer is left."""

    # -- whatever it has come to

    def cut(self) -> None:
        """Drop it at once, and everything unsent with it."""

    def watch_reader(self) -> SendQueueDrain:
        """Cut it, with a line in the log, if its reader takes nothing of what is there for it."""

    @property
    def body_bytes(self) -> int:
        """What has been sent of its body, framing included, but for its ordinary end."""

    def unsent_bytes(self) -> int:
        """What the peer has not acknowledged."""

    def held_bytes(self) -> int:
        """What this process still holds."""

    # -- for its row

    def peer(self, reason: Failure) -> Peer:
        """What the peer did to the connection that is gone, `none` if we dropped it; `reason` is what we were told."""

    def facts(self) -> dict[str, int]:
        """Its bytes on the wire so far, as a row's fields."""

    def is_gone(self) -> bool:
        """Whether its connection has ended, so that nothing of it will change any more."""

    def watch_unsent(self, *, wanted: bool) -> None:
        """Keep what is unsent in sight, should we close the connection, until `facts` are asked for; or let go."""
