"""Answers: what has been decided about a request carried out, as a script that is played or as one JSON object."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.core.apis.contract import PLAIN, Completion, Counts
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.request import unrecognized
from inference_lab.core.errors import ApiError
from inference_lab.core.faults.directive import canonical_of
from inference_lab.core.identity import response_digits
from inference_lab.core.stream import events
from inference_lab.core.stream.assemble import completion_of, context_exceeded, healthy_plan, script
from inference_lab.core.stream.healthy import echo_script, headed, healthy_script
from inference_lab.core.stream.script import from_head_on
from inference_lab.web.decide import CONFIGURED, decide, give_back, refused
from inference_lab.web.recorded import record_answer, record_engine, record_id
from inference_lab.wire.engine_driver import Job
from inference_lab.wire.request import texts_of
from inference_lab.wire.turns import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.storage.attempts import Attempts
    from inference_lab.web.decide import Decision
    from inference_lab.web.turn import Turn
    from inference_lab.wire.engine_driver import Ticket
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.streams import Streams

_log: Final = Logger()


Script: TypeAlias = "Iterator[events.Event]"
Answer: TypeAlias = bytes | Deferred[Any] | None
"""What is to be written, at once or later; None where a script is being played, which ends the response itself."""


class Answers:
    """Answers requests that have been read.

    `attempts` counts for elements with `times`; `wall_seconds` gives `created` and `random_digits` the id on the engine
    path.
    """

    def __init__(
        self,
        streams: Streams,
        attempts: Attempts,
        *,
        wall_seconds: Callable[[], float],
        random_digits: Callable[[], str],
    ) -> None:
        self.attempts = attempts
        self._streams = streams
        self._wall_seconds = wall_seconds
        self._random_digits = random_digits

    def answer(self, request: LabRequest, turn: Turn) -> Answer:
        """Decide what answers, and let it.

        Raises:
            ApiError: 503 for attempts that cannot be counted; 400 for what only the prompt or the engine can tell.
        """
        if turn.has_plain_directive:
            _log.info(
                "{request}: a <<fault:…>> in the prompt is plain text, directives are off", request=request
            )
        decision = decide(turn, self.attempts)
        request.trigger = decision.source
        if request.recording is not None:
            record_answer(request.recording, turn, decision)
        fault, answer, script = decision.fault, None, None
        try:
            if fault is not None:
                script = self._script_of(request, turn, decision, fault)
            elif decision.echo is not None:
                answer = self._echo(request, turn, decision.echo)
            else:
                answer = self._engine(request, turn)
        except ApiError:
            give_back(turn, decision, self.attempts)
            raise
        if fault is not None and fault.death.strict_params and turn.unknown is not None:
            if isinstance(script, Deferred):  # nobody waits for it
                script.addErrback(lambda _: None).cancel()
            raise unrecognized(turn.unknown)  # the fault itself, which has been met
        if isinstance(script, Deferred):
            answer = script.addCallback(lambda ready: self._play(request, ready, decision))
        elif script is not None:
            self._play(request, script, decision)
        if isinstance(answer, Deferred) and decision.counted is not None:

            def on_failure(failure: Failure) -> Failure:
                if failure.check(ApiError):
                    give_back(turn, decision, self.attempts)
                return failure

            answer.addErrback(on_failure)
        return answer

    def _script_of(
        self, request: LabRequest, turn: Turn, decision: Decision, fault: Fault
    ) -> Script | Deferred[Script]:
        """What a fault answers; later where it takes long to say whether it can.

        Raises:
            ApiError: 400 for what this request cannot meet.
        """
        completion = self._fixed_completion(request, turn, fault, canonical_of(fault))
        try:
            made = script(turn.asked, fault, completion, is_asked_for=decision.source != CONFIGURED)
            first = next(made)
        except ValueError as error:
            raise refused(turn, decision, error) from None
        made = chain((first,), made)
        if not isinstance(first, events.Turn):
            return made

        def refuse(failure: Failure) -> Failure:
            return Failure(refused(turn, decision, failure.value)) if failure.check(ValueError) else failure

        return in_slices(request.site.pacer, from_head_on(made)).addErrback(refuse)

    def _play(self, request: LabRequest, script: Script, decision: Decision) -> None:
        source = "[fault]" if decision.source == CONFIGURED else decision.source
        assert decision.fault is not None  # noqa: S101 - it is a fault's script
        request.seen = b""
        self._streams.play(request, script, f"{source} {canonical_of(decision.fault)}")

    def _echo(self, request: LabRequest, turn: Turn, echo: Echo) -> Answer:
        request.seen = b""
        completion = self._fixed_completion(request, turn, None, "")
        api, counts = turn.asked.api, Counts(len(turn.asked.prompt.ids), turn.echo_tokens)
        headers = api.headers(completion.id.removeprefix(api.id_prefix))
        if not turn.asked.body.stream:

            def made() -> Generator[events.Turn, None, bytes]:
                whole, said = yield from api.echo_whole(completion, echo, counts)
                if request.recording is not None:
                    request.recording.says(said + events.finished(echo.finish_reason, counts.json()))
                return request.prepare_json(200, whole, texts_of(headers))

            return in_slices(request.site.pacer, made())
        writer = api.writer(completion, LAB, PLAIN)
        script = echo_script(
            writer,
            api.echo_frames(writer, echo),
            echo.finish_reason,
            counts,
            include_usage=turn.asked.body.include_usage,
        )
        self._streams.play(request, headed(script, headers), "echo", healthy=True)
        return None

    def _engine(self, request: LabRequest, turn: Turn) -> Answer:
        asked, engine = turn.asked, turn.served.engine
        api, body, prompt, dialect = asked.api, asked.body, asked.prompt, asked.dialect
        plan = healthy_plan(asked)
        job = Job(prompt.ids, max(1, plan.completion_tokens), body.engine_priority)
        refusal = engine.refusal(job)
        if refusal is not None:
            raise context_exceeded(f"this request can never run: {refusal}", asked)
        digits = self._random_digits()
        headers = api.headers(digits)
        completion = Completion(
            (dialect.id_prefix or api.id_prefix) + digits,
            int(self._wall_seconds()),
            asked.model.name,
        )
        if request.recording is not None:
            record_id(request.recording, api, completion.id)

        def counts(ticket: Ticket) -> Counts:
            return Counts(len(prompt.ids), plan.completion_tokens, ticket.cached_tokens)

        request.seen = b""
        if body.stream:
            writer = api.writer(completion, dialect, api.form(body, prompt))
            # `player` is bound in time: an engine calls back only after `submit` has returned.
            ticket = engine.submit(job, lambda count: player.on_tokens(count))  # noqa: PLW0108
            if request.recording is not None:
                record_engine(request.recording, ticket)
            script = healthy_script(
                writer,
                plan.pieces,
                plan.finish,
                lambda: counts(ticket),
                include_usage=body.include_usage,
                unseen_tokens=plan.unseen_tokens,
            )
            player = self._streams.play(
                request, headed(script, headers), "engine", on_gone=ticket.cancel, healthy=True
            )
            return None

        # Written in a callback: a defect in it is this request's alone, and Klein answers it.
        answer: Deferred[None] = Deferred(lambda _: ticket.cancel())
        awaited = job.output_tokens

        def on_tokens(count: int) -> None:
            nonlocal awaited
            awaited -= count
            if not awaited:
                answer.callback(None)

        ticket = engine.submit(job, on_tokens)
        if request.recording is not None:
            record_engine(request.recording, ticket)
            request.recording.open()

        def write(_: None) -> Deferred[bytes]:
            told = counts(ticket)
            if request.recording is not None:
                request.recording.says(events.said_of_whole(plan.pieces, plan.finish, told.json()))
            whole = api.whole(body, completion, prompt, plan, told)
            written = in_slices(request.site.pacer, whole)
            return written.addCallback(lambda data: request.prepare_json(200, data, texts_of(headers)))

        written = answer.addCallback(write)
        self._streams.hold(written)
        return written

    @staticmethod
    def _fixed_completion(request: LabRequest, turn: Turn, fault: Fault | None, canonical: str) -> Completion:
        api = turn.asked.api
        digits = response_digits(api.path, turn.raw, canonical, turn.request_id)
        completion = completion_of(turn.asked, fault, digits)
        if request.recording is not None:
            record_id(request.recording, api, completion.id)
        return completion
