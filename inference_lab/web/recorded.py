"""What the web layer tells the journal of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inference_lab.core.faults.death import HEALTHY
from inference_lab.core.identity import key_text
from inference_lab.core.journal.row import Engine
from inference_lab.core.journal.sent import Leg, arguments_so_far
from inference_lab.web.decide import CONFIGURED

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api
    from inference_lab.core.faults.directive import Fault
    from inference_lab.web.decide import Decision
    from inference_lab.web.turn import Turn
    from inference_lab.wire.engine_driver import Ticket
    from inference_lab.wire.recording import Recording


def record_answer(recording: Recording, turn: Turn, decision: Decision) -> None:
    """What answers it, and from which place of the answer on."""
    position, progress, fault = turn.asked.prompt.position, turn.progress, decision.fault
    planned = decision.source in {"header", "prompt", CONFIGURED}
    recording.add(
        test=turn.test,
        prompt=key_text(position.key),
        tag=position.tag,
        progress=progress,
        trigger=decision.source,
        fault=("ok" if fault is None else fault.canonical()) if planned else None,
        leg=decision.leg if decision.leg is not None else (None if progress else 0),
        ending_asked=HEALTHY.close if fault is None else fault.death.close,
    )
    incident = None if fault is None else fault.incident
    heard = None if incident is None else incident.heard
    index = position.place.index if progress else 0
    recording.answers(
        Leg(
            start=None if decision.echo is not None else _start(progress, fault),
            progress=progress,
            arguments_before=arguments_so_far(turn.asked.model.template, position.region),
            are_words_known=heard is None or heard.are_words_of(position.tag, index),
            is_end_known=heard is None or heard.is_readable,
        )
    )


def record_id(recording: Recording, api: Api[Any], completion_id: str) -> None:
    """What ids of the answer's calls are made of; raw text has none."""
    if not api.is_raw:
        recording.identifies(completion_id)


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


def record_engine(recording: Recording, ticket: Ticket) -> None:
    """Have the engine asked for its times when the response is over."""
    begun_us = recording.begun_us
    recording.reads(lambda: {"engine": _engine(ticket, begun_us)})


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
