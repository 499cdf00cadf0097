"""Precedence: what a request is answered with when several things ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inference_lab.echo import Echo
from inference_lab.faults.directive import Fault

if TYPE_CHECKING:
    from collections.abc import Callable


class Trigger(msgspec.Struct, frozen=True):
    """What answers a request: a fault, an echo, or (neither) the engine. `source` says who asked for it."""

    source: str
    fault: Fault | None = None
    echo: Echo | None = None


def choose(header: Fault | None, configured: Fault | None, find_echo: Callable[[], Echo | None]) -> Trigger:
    """The first that is there: the header's fault, the model's own `[fault]`, an echo-directive, the engine.

    The echo is looked for only if nothing stands above it.
    """
    if header is not None:
        return Trigger("header", fault=header)
    if configured is not None:
        return Trigger("[fault]", fault=configured)
    echo = find_echo()
    if echo is not None:
        return Trigger("echo", echo=echo)
    return Trigger("engine")
