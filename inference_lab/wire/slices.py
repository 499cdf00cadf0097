"""Work that takes long, in slices: as much in a turn of the reactor as there is time for, and the others in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from twisted.internet.defer import Deferred

from inference_lab.wire.pacer import TURN_US

if TYPE_CHECKING:
    from collections.abc import Generator

    from inference_lab.wire.pacer import Pacer

_T = TypeVar("_T")


def in_slices(pacer: Pacer, work: Generator[object, None, _T]) -> Deferred[_T]:
    """What `work` returns, which yields wherever the others may have their turn; what it raises is the failure.

    What it does up to its first `yield` is done at once, the rest in turns to come. To cancel is to close it.
    """
    slices = _Slices(pacer, work)
    slices.begin()
    return slices.done


class _Slices(Generic[_T]):
    def __init__(self, pacer: Pacer, work: Generator[object, None, _T]) -> None:
        self._pacer = pacer
        self._work = work
        self.done: Deferred[_T] = Deferred(self._cancel)

    def begin(self) -> None:
        if self._advance():
            self._pacer.soon(self._go_on)

    def _go_on(self) -> None:
        begun_us = self._pacer.now_us()
        while self._advance():
            if self._pacer.now_us() - begun_us >= TURN_US:
                self._pacer.soon(self._go_on)
                return

    def _advance(self) -> bool:
        """Do a part; whether there is more to do."""
        try:
            next(self._work)
        except StopIteration as end:
            self.done.callback(end.value)
        except Exception:  # noqa: BLE001 - whoever waits hears of it
            self.done.errback()
        else:
            return True
        return False

    def _cancel(self, _: object) -> None:
        self._pacer.forget_soon(self._go_on)
        self._work.close()
