"""Precedence: what a request is answered with when several things ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.faults.directive import Fault
from inference_lab.prompts.echo import Echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.faults.plan import FaultPlan, Take


CONFIGURED: Final = "[fault]"
"""The source of what a model's file asks for."""


class Trigger(msgspec.Struct, frozen=True):
    """What answers a request: a fault, an echo, or (neither) the engine. `source` says who asked for it."""

    source: str
    fault: Fault | None = None
    echo: Echo | None = None


def choose(
    progress: int,
    header: FaultPlan | None,
    find_in_prompt: Callable[[], FaultPlan | None],
    configured: FaultPlan | None,
    find_echo: Callable[[], Echo | None],
    take: Take,
) -> Trigger:
    """The first that is there: the header's plan, the prompt's, the model's own, an echo-directive, the engine.

    A plan decides even where it says that this leg, `progress` words into the answer, is healthy; `take` counts for
    its elements with `times`. What stands below the first that is there is not looked for.
    """
    if header is not None:
        return Trigger("header", fault=header.fault_for(progress, take))
    in_prompt = find_in_prompt()
    if in_prompt is not None:
        return Trigger("prompt", fault=in_prompt.fault_for(progress, take))
    if configured is not None:
        return Trigger(CONFIGURED, fault=configured.fault_for(progress, take))
    echo = find_echo()
    if echo is not None:
        return Trigger("echo", echo=echo)
    return Trigger("engine")
