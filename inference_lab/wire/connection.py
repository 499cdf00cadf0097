"""What a request, its ending and its recording know of the connection they are on, and of the site it came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from inference_lab.wire.bodies import Bodies
    from inference_lab.wire.origins import Origins
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.tally import Tally
    from inference_lab.wire.transport import SendQueueDrain
    from inference_lab.wire.turns import Line


class Site(Protocol):
    """What requests share: limits, counts, and who records them."""

    max_body_bytes: int
    bodies: Bodies
    line: Line
    origins: Origins
    tally: Tally
    recorder: Any  # a `Recorder`, whose recordings know their connection

    @property
    def pacer(self) -> Pacer:
        """The site's deadlines."""

    def watch(self, transport: Any) -> SendQueueDrain:  # noqa: ANN401 - Twisted types it as ITransport only
        """Reset a reader that takes nothing of what is there for it."""

    def seconds_left(self) -> int | None:
        """Until the server is gone, rounded up and at least 1; None while nothing is planned."""


class Connection(Protocol):
    """A connection; `written_bytes` are of all its responses so far, their heads included."""

    transport: Any
    written_bytes: int
    _command: bytes
    _path: bytes
    _version: bytes

    @property
    def site(self) -> Site:
        """The site that it came to."""

    def write(self, data: bytes) -> None:
        """Bytes of a response."""

    def reset_on_data(self) -> None:
        """Meet whatever comes next with a reset."""

    def arrives_too_slowly(self) -> None:
        """A request has had its time."""

    def getHost(self) -> Any:  # noqa: ANN401, N802 - Twisted's
        """The address that the connection came to."""
