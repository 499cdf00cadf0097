"""How work grows with its input: by the calls that are made, which no clock and no busy machine changes."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SLACK: Final = 1.1
_BLOCK: Final = 100
"""So many calls may come all at once, where what is read in blocks begins another; squares are far more."""


def calls_of(work: Callable[[], object]) -> int:
    """How many calls `work` makes: of functions, of what is built in, of generators for each value they give."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event in {"call", "c_call"}

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what is told of a collection would be counted
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


def assert_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """What `work` makes of a size, at `size`, twice and four times that: the second step costs twice the first."""
    work(size)()  # what is made once, and kept
    few, more, most = (calls_of(work(times * size)) for times in (1, 2, 4))
    assert most - more <= 2 * _SLACK * (more - few) + _BLOCK, (
        f"calls at {size}, twice, four times: {few}, {more}, {most}"
    )
