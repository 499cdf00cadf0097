"""Waiting for a connection's send queue to empty, for as long as the reader makes progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.wire.transport import unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.wire.pacer import Pacer

_SHORTEST_POLL_US: Final = 1_000
_LONGEST_POLL_US: Final = 250_000


class Drain:
    """Polls `transport` until its queue, the kernel's included, is empty; calls exactly one of two functions.

    `on_empty()` once nothing is unsent and `grace_us` has passed; `on_give_up(lost_bytes)` when the queue has not
    shrunk for `linger_us`. There is no notification for either in Twisted or the kernel (TIOCOUTQ must be asked), so
    the pause between two looks is a quarter of the silence so far, within 1 … 250 ms.
    """

    def __init__(
        self,
        pacer: Pacer,
        transport: Any,  # noqa: ANN401 - a transport of any kind, which Twisted does not type
        *,
        grace_us: int,
        linger_us: int,
        on_empty: Callable[[], None],
        on_give_up: Callable[[int], None],
    ) -> None:
        self._pacer = pacer
        self._transport = transport
        self._linger_us = linger_us
        self._on_empty = on_empty
        self._on_give_up = on_give_up
        self._least = unsent_bytes(transport)
        self._progress_us = pacer.now_us()
        self._timer: IDelayedCall | None = pacer.clock.callLater(grace_us / 1e6, self._look)

    @property
    def stopped(self) -> bool:
        """Whether it is over, one way or another."""
        return self._timer is None

    def stop(self) -> None:
        """Call neither function any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        unsent = unsent_bytes(self._transport)
        now_us = self._pacer.now_us()
        if not unsent:
            self._on_empty()
            return
        if unsent < self._least:
            self._least = unsent
            self._progress_us = now_us
        silent_us = now_us - self._progress_us
        if silent_us >= self._linger_us:
            self._on_give_up(unsent)
            return
        wait_us = min(max(silent_us // 4, _SHORTEST_POLL_US), _LONGEST_POLL_US, self._linger_us - silent_us)
        self._timer = self._pacer.clock.callLater(wait_us / 1e6, self._look)
