"""What the web layer tells the journal of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference_lab.core.apis.request import fields_of
from inference_lab.core.faults.death import HEALTHY
from inference_lab.core.faults.trigger import CONFIGURED
from inference_lab.core.identity import key_text
from inference_lab.core.journal.calls import arguments_so_far, calls_in
from inference_lab.core.journal.parameters import parameters_of
from inference_lab.core.journal.row import Engine, ignored_in
from inference_lab.core.journal.sent import Leg

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inference_lab.core.answer.position import Position
    from inference_lab.core.answer.templates import Format
    from inference_lab.core.apis.contract import Api
    from inference_lab.core.apis.request import Common
    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.faults.trigger import Trigger
    from inference_lab.wire.engine_driver import Ticket
    from inference_lab.wire.request import LabRequest


def tell_of_body(request: LabRequest, values: Mapping[str, Any], kind: type[Common]) -> None:
    """What was asked for, before it is judged: `values` are the body's members."""
    if request.recording is None:
        return
    model = values.get("model")
    request.recording.tell(
        model=model if isinstance(model, str) else None,
        stream=values.get("stream") is True,
        parameters=parameters_of(values),
        history_calls=calls_in(values.get("messages")),
        ignored=ignored_in(values, fields_of(kind)),
    )


def tell_of_answer(
    request: LabRequest, style: Format, position: Position, trigger: Trigger, test: Callable[[], str | None]
) -> None:
    """What answers it, and from which place of the answer on."""
    if request.recording is None:
        return
    source, progress = trigger.source, position.progress
    planned = source in {"header", "prompt", CONFIGURED}
    fault = trigger.fault
    request.recording.tell(
        test=test(),
        prompt=key_text(position.key),
        tag=position.tag,
        progress=progress,
        trigger=trigger.word,
        fault=("ok" if fault is None else fault.canonical()) if planned else None,
        leg=trigger.leg if trigger.leg is not None else (None if progress else 0),
        ending_asked=HEALTHY.close if fault is None else fault.death.close,
    )
    incident = None if fault is None else fault.incident
    heard = None if incident is None else incident.heard
    index = position.place.index if progress else 0
    request.recording.answers(
        Leg(
            start=None if trigger.echo is not None else _start(progress, fault),
            progress=progress,
            arguments_before=arguments_so_far(style, position.region),
            are_words_known=heard is None or heard.are_words_of(position.tag, index),
            is_end_known=heard is None or heard.is_readable,
        )
    )


def tell_of_id(request: LabRequest, api: Api[Any], completion_id: str) -> None:
    """What ids of the answer's calls are made of; raw text has none."""
    if request.recording is not None and not api.is_raw:
        request.recording.identifies(completion_id)


def _start(progress: int, fault: Fault | None) -> int | None:
    """How many words a client holds before the leg's first, as one counts that goes by the last word it got.

    None where words are left out or turned around on purpose, so that the last word says nothing.
    """
    if fault is None:
        return progress
    death = fault.death
    if death.sequence.word in {"drop", "swap"}:
        return None
    return 0 if death.restart else progress + death.skip - death.overlap


def tell_of_engine(request: LabRequest, ticket: Ticket) -> None:
    """Have the engine asked for its times when the response is over."""
    if request.recording is not None:
        begun_us = request.recording.begun_us
        request.recording.reads(lambda: {"engine": _engine(ticket, begun_us)})


def _engine(ticket: Ticket, begun_us: int) -> Engine:
    submitted_us, *later, lag_us = ticket.timing
    queued, ttft, duration = (None if us is None else us / 1000 for us in later)
    return Engine(
        submitted_ms=(submitted_us - begun_us) / 1000,
        queued_ms=queued,
        ttft_ms=ttft,
        duration_ms=duration,
        cached_tokens=ticket.cached_tokens,
        lag_ms=lag_us / 1000,
    )
