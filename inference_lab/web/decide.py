"""What answers a request: a fault, an echo, or the engine. The order is that of docs/wire.md."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.errors import attempts_unavailable, bad_directive
from inference_lab.core.faults.applies import NEEDS_STREAM, applies
from inference_lab.core.faults.directive import Fault
from inference_lab.core.prompts.echo import Echo
from inference_lab.storage.attempts import AttemptsError
from inference_lab.web.turn import bad_in_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.errors import ApiError
    from inference_lab.storage.attempts import Attempts
    from inference_lab.web.turn import Turn

CONFIGURED: Final = "config"
"""The source of what a model's file asks for."""


class Decision(msgspec.Struct, frozen=True):
    """What answers a request: a fault, an echo, or (neither) the engine.

    `source` is who asked for it, in a word, `leg` which leg of a list it is, where there is one; `counted` is the place
    in the list of the element that was counted as met.
    """

    source: str
    fault: Fault | None = None
    echo: Echo | None = None
    leg: int | None = None
    counted: int | None = None


def decide(turn: Turn, attempts: Attempts) -> Decision:
    """The first that is there: the header's faults, the prompt's, the model's own, an echo-directive, the engine.

    A list of faults decides even where it says that this leg is healthy. Its elements with `times` are counted in
    `attempts`; what stands below the first that is there is not looked for.

    Raises:
        ApiError: 400 for a directive that cannot be read, or not act here, 503 where attempts cannot be counted.
    """
    progress = turn.asked.prompt.position.place.progress
    if turn.header is not None:
        key = None if progress else turn.header.leg_key
        if key is not None:
            raise bad_directive(f"{key} goes with a later leg: this prompt holds no word of an answer")
        source, plan = "header", turn.header
    elif (in_prompt := turn.in_prompt) is not None:
        if not applies(in_prompt, streaming=bool(turn.asked.body.stream)):
            raise bad_in_prompt(NEEDS_STREAM, turn.asked.api)
        source, plan = "prompt", in_prompt
    elif (configured := turn.configured) is not None:
        source, plan = CONFIGURED, configured
    elif (echo := turn.echo) is not None:
        return Decision("echo", echo=echo)
    else:
        return Decision("engine")
    counted = None

    def take(place: int, times: int) -> bool:
        nonlocal counted
        key = turn.asked.prompt.position.key
        with counting():
            is_taken = attempts.take(turn.test, key, place, times)
        counted = place if is_taken else counted
        return is_taken

    fault = plan.fault_for(progress, take)
    if fault is not None and turn.asked.body.stream:
        fault = fault.in_stream
    return Decision(source, fault, leg=None if plan.every_leg else plan.leg_for(progress), counted=counted)


def give_back(turn: Turn, decision: Decision, attempts: Attempts) -> None:
    """Count what was decided as not met: the request is refused."""
    if decision.counted is not None:
        with counting():
            attempts.give_back(turn.test, turn.asked.prompt.position.key, decision.counted)


def refused(turn: Turn, decision: Decision, error: BaseException | None) -> ApiError:
    """400 for a fault that this request cannot meet; whose it is is named."""
    reason = f"{decision.fault.mode if decision.fault is not None else ''}: {error}"
    if decision.source == CONFIGURED:
        return bad_directive(f"{turn.served.config.source}: [fault] {reason}", param=None)
    return bad_in_prompt(reason, turn.asked.api) if decision.source == "prompt" else bad_directive(reason)


@contextmanager
def counting() -> Iterator[None]:
    """Where attempts cannot be counted, raises ApiError, 503 `attempts_unavailable`."""
    try:
        yield
    except AttemptsError as error:
        raise attempts_unavailable(str(error)) from None
