"""Precedence: what a request is answered with when several things ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.faults.directive import Fault
from inference_lab.core.prompts.echo import Echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.faults.plan import FaultPlan, Take


CONFIGURED: Final = "[fault]"
"""The source of what a model's file asks for."""


class Trigger(msgspec.Struct, frozen=True):
    """What answers a request: a fault, an echo, or (neither) the engine.

    `source` says who asked for it, `leg` which leg of a list it is, where there is one.
    """

    source: str
    fault: Fault | None = None
    echo: Echo | None = None
    leg: int | None = None

    @property
    def word(self) -> str:
        """Who asked for it, in a word."""
        return "config" if self.source == CONFIGURED else self.source


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
        return Trigger("header", fault=header.fault_for(progress, take), leg=header.leg_for(progress))
    in_prompt = find_in_prompt()
    if in_prompt is not None:
        return Trigger("prompt", fault=in_prompt.fault_for(progress, take), leg=in_prompt.leg_for(progress))
    if configured is not None:
        return Trigger(
            CONFIGURED, fault=configured.fault_for(progress, take), leg=configured.leg_for(progress)
        )
    echo = find_echo()
    if echo is not None:
        return Trigger("echo", echo=echo)
    return Trigger("engine")
