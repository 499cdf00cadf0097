"""Answers: an accepted request turned into a script and played, or into one JSON object."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.core.answer.position import restarted
from inference_lab.core.apis.chat.api import CHAT, whole_message
from inference_lab.core.apis.chat.echo import echo_frames, echo_message, said_by_echo
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.contract import Completion, Counts
from inference_lab.core.apis.dialects import DIALECTS, LAB
from inference_lab.core.apis.request import Common, unrecognized
from inference_lab.core.errors import ApiError, bad_directive, overloaded
from inference_lab.core.faults.applies import why_invisible
from inference_lab.core.faults.incident import NO_INCIDENTS, Incident, Incidents, incident_script
from inference_lab.core.faults.trigger import CONFIGURED, choose
from inference_lab.core.identity import FIXED_CREATED, response_digits
from inference_lab.core.stream.events import Turn, finished, said_of_whole
from inference_lab.core.stream.script import echo_script, fault_script, from_head_on, healthy_script
from inference_lab.core.stream.source import pieces_made
from inference_lab.storage.attempts import Attempt, Attempts
from inference_lab.web.answer import Answer, Stream
from inference_lab.web.answer_plans import (
    context_exceeded,
    engine_plan,
    fault_plan,
    require_ids,
    source_of,
)
from inference_lab.web.checks import refuse_leg_keys
from inference_lab.web.directives import Directives
from inference_lab.web.recorded import tell_of_answer, tell_of_engine, tell_of_id
from inference_lab.wire.engine_driver import Job
from inference_lab.wire.turns import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from inference_lab.core.apis.contract import Api, Prompt
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.faults.trigger import Trigger
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.core.stream.events import Event, Said
    from inference_lab.web.checks import Accepted
    from inference_lab.wire.engine_driver import Ticket
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.streams import Streams

_log: Final = Logger()
_R = TypeVar("_R", bound=Common)


class Answers:
    """Answers accepted requests.

    `attempts` counts for elements with `times`; `directives` admits directives in prompts, `incidents` are modes beside
    the built-in ones; `wall_seconds` gives `created` and `random_digits` the id on the engine path; `max_streams` is
    how many streams may be open at once.
    """

    def __init__(
        self,
        streams: Streams,
        attempts: Attempts,
        *,
        directives: bool,
        wall_seconds: Callable[[], float],
        random_digits: Callable[[], str],
        max_streams: int | None = None,
        incidents: Incidents = NO_INCIDENTS,
    ) -> None:
        self._streams = streams
        self._attempts = attempts
        self._directives = directives
        self._incidents = incidents
        self._wall_seconds = wall_seconds
        self._random_digits = random_digits
        self._max_streams = max_streams

    def read(self, request: LabRequest, api: Api[_R], accepted: Accepted[_R]) -> Directives:
        """What an accepted request's prompt says. Of a large one it is done beside the reactor.

        Raises:
            ApiError: 503 for one stream too many, 400 for a prompt that cannot be rendered.
        """
        body, served = accepted.body, accepted.served
        if body.stream and self._max_streams is not None and self._streams.count >= self._max_streams:
            raise overloaded(self._max_streams)
        prompt = api.prompt(body, served.style, reasons=served.config.answer.reasoning > 0)
        return Directives(
            request, api, accepted, prompt, admitted=self._directives, incidents=self._incidents
        )

    def answer(self, request: LabRequest, api: Api[_R], accepted: Accepted[_R], asked: Directives) -> Answer:
        """Choose what answers, and let it.

        Raises:
            ApiError: 503 for attempts that cannot be counted; 400 for what only the prompt or the engine can tell.
        """
        body, served, prompt = accepted.body, accepted.served, asked.prompt
        refuse_leg_keys(accepted.header_plan, prompt.position.progress)

        def test() -> str | None:
            return asked.test  # looked for where somebody asks

        attempt = Attempt(self._attempts, test, prompt.position.key)
        trigger = choose(
            prompt.position.progress,
            asked.in_header,
            asked.acting_in_prompt,
            asked.configured,
            lambda: asked.echo,
            attempt.take,
        )
        if body.stream and trigger.fault is not None:
            trigger = msgspec.structs.replace(trigger, fault=trigger.fault.in_stream())
        request.trigger = trigger.word
        tell_of_answer(request, served.style, prompt.position, trigger, test)

        def give_back(failure: Failure) -> Failure:
            if failure.check(ApiError):
                attempt.give_back()
            return failure

        try:
            answer = self._chosen(request, api, accepted, asked, trigger)
        except ApiError:
            attempt.give_back()
            raise
        if isinstance(answer, Deferred):
            answer.addErrback(give_back)
        if trigger.fault is not None and trigger.fault.death.strict_params and accepted.unknown is not None:
            if isinstance(answer, Deferred):  # nobody waits for it
                answer.addErrback(lambda _: None).cancel()
            raise unrecognized(accepted.unknown)
        return answer

    def _chosen(
        self,
        request: LabRequest,
        api: Api[_R],
        accepted: Accepted[_R],
        asked: Directives,
        trigger: Trigger,
    ) -> Answer:
        """What the trigger comes to.

        Raises:
            ApiError: 400 for what this request cannot meet, or the engine never answer.
        """
        prompt = asked.prompt
        if trigger.fault is not None:
            refused = partial(_refused, trigger, accepted.served.config.source, api.prompt_field)
            try:
                answer = self._dying(request, api, accepted, prompt, trigger.fault, trigger.source)
            except ValueError as error:
                raise refused(error) from None
            if isinstance(answer, Deferred):

                def refuse(failure: Failure) -> Failure:
                    return Failure(refused(failure.value)) if failure.check(ValueError) else failure

                answer.addErrback(refuse)
            return answer
        if trigger.echo is not None:
            return self._echo(request, accepted, asked, trigger.echo)
        return self._engine(request, api, accepted, prompt)

    def _dying(
        self,
        request: LabRequest,
        api: Api[_R],
        accepted: Accepted[_R],
        prompt: Prompt,
        fault: Fault,
        origin: str,
    ) -> Stream | Deferred[Stream]:
        """What a fault answers.

        Raises:
            ApiError: 400 for words without ids.
            ValueError: this request cannot meet the fault.
        """
        counts = accepted.body.include_usage or origin == CONFIGURED
        reason = why_invisible(
            fault.death,
            fault.incident,
            api=api,
            secure=request.isSecure(),
            counts=counts,
            # Twisted has answered a request's `connection: close` there.
            kept=not request.responseHeaders.hasHeader(b"connection"),
            has_chunks=request.has_chunks,
        )
        if reason is not None:
            raise ValueError(reason)
        if fault.incident is not None:
            script = self._replay(request, api, accepted, prompt, fault, fault.incident)
        else:
            script = self._fault(request, api, accepted, prompt, fault)
        trigger = f"{origin} {fault.canonical()}"

        def play(script: Iterator[Event]) -> Stream:
            return Stream(lambda request: self._streams.play(request, script, trigger))

        first = next(script)
        if not isinstance(first, Turn):
            return play(chain((first,), script))
        return in_slices(request.site.pacer, from_head_on(script)).addCallback(play)

    def _fault(
        self,
        request: LabRequest,
        api: Api[_R],
        accepted: Accepted[_R],
        prompt: Prompt,
        fault: Fault,
    ) -> Iterator[Event]:
        body, death = accepted.body, fault.death
        dialect = accepted.served.dialect if death.dialect is None else DIALECTS[death.dialect]
        completion = self._fixed_completion(request, api, accepted, fault.canonical(), dialect)
        if death.restart:
            prompt = msgspec.structs.replace(
                prompt, position=restarted(accepted.served.style, prompt.position)
            )
        answer = fault_plan(accepted, prompt, death)
        source = source_of(accepted, prompt, answer, death)
        counts = Counts(len(prompt.ids), answer.completion_tokens)

        def whole() -> Generator[Turn, None, tuple[bytes, Said]]:
            data = yield from api.whole(body, completion, prompt, answer, counts)
            return data, said_of_whole(answer.pieces, answer.finish, counts.json())

        script = fault_script(
            death,
            partial(api.writer, completion, dialect),
            source,
            form=api.form(body, prompt),
            whole=whole,
            streaming=bool(body.stream),
        )
        require_ids(body, source.endless(death.content), pieces_made(death, source))
        return script

    def _replay(
        self,
        request: LabRequest,
        api: Api[_R],
        accepted: Accepted[_R],
        prompt: Prompt,
        fault: Fault,
        incident: Incident,
    ) -> Iterator[Event]:
        answer = fault_plan(accepted, prompt, fault.death)
        source = source_of(accepted, prompt, answer, fault.death)
        return incident_script(
            incident,
            self._fixed_completion(request, api, accepted, fault.canonical(), accepted.served.dialect),
            map(api.text_of, source.endless("text") if incident.words else ()),
            delay_ms=fault.given_delay_ms,
        )

    def _echo(self, request: LabRequest, accepted: Accepted[_R], asked: Directives, echo: Echo) -> Answer:
        completion = self._fixed_completion(request, CHAT, accepted, "", LAB)
        counts = Counts(len(asked.prompt.ids), asked.echo_tokens)
        writer = ChatWriter(completion)
        if not accepted.body.stream:

            def made() -> Generator[Turn, None, bytes]:
                said = yield from said_by_echo(writer, echo)
                if request.recording is not None:
                    request.recording.says(said + finished(echo.finish_reason, counts.json()))
                message = yield from echo_message(echo, completion)
                whole = whole_message(completion, message, echo.finish_reason, counts)
                return request.prepare_json(200, whole)

            return in_slices(request.site.pacer, made())
        script = echo_script(
            writer,
            echo_frames(writer, echo),
            echo.finish_reason,
            counts,
            include_usage=accepted.body.include_usage,
        )
        return Stream(lambda request: self._streams.play(request, script, "echo", healthy=True))

    def _engine(self, request: LabRequest, api: Api[_R], accepted: Accepted[_R], prompt: Prompt) -> Answer:
        plan = engine_plan(api, accepted, prompt)
        engine = accepted.served.engine
        job = Job(prompt.ids, max(1, plan.completion_tokens), accepted.body.engine_priority)
        refusal = engine.refusal(job)
        if refusal is not None:
            raise context_exceeded(f"this request can never run: {refusal}", api)
        dialect = accepted.served.dialect
        completion = Completion(
            (dialect.id_prefix or api.id_prefix) + self._random_digits(),
            int(self._wall_seconds()),
            accepted.served.config.name,
        )
        tell_of_id(request, api, completion.id)

        def counts(ticket: Ticket) -> Counts:
            return Counts(len(prompt.ids), plan.completion_tokens, ticket.cached_tokens)

        if accepted.body.stream:
            writer = api.writer(completion, dialect, api.form(accepted.body, prompt))

            def start(request: LabRequest) -> None:
                # `player` is bound in time: an engine calls back only after `submit` has returned.
                ticket = engine.submit(job, lambda count: player.on_tokens(count))  # noqa: PLW0108
                tell_of_engine(request, ticket)
                script = healthy_script(
                    writer,
                    plan.pieces,
                    plan.finish,
                    lambda: counts(ticket),
                    include_usage=accepted.body.include_usage,
                    unseen_tokens=plan.unseen_tokens,
                )
                player = self._streams.play(request, script, "engine", on_gone=ticket.cancel, healthy=True)

            return Stream(start)

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
            tell_of_engine(request, ticket)
            request.recording.open()

        def write(_: None) -> Deferred[bytes]:
            told = counts(ticket)
            if request.recording is not None:
                request.recording.says(said_of_whole(plan.pieces, plan.finish, told.json()))
            whole = api.whole(accepted.body, completion, prompt, plan, told)
            written = in_slices(request.site.pacer, whole)
            return written.addCallback(lambda data: request.prepare_json(200, data))

        written = answer.addCallback(write)
        self._streams.hold(written)
        return written

    @staticmethod
    def _fixed_completion(
        request: LabRequest, api: Api[Any], accepted: Accepted[Any], fault: str, dialect: Dialect
    ) -> Completion:
        digits = response_digits(api.path, accepted.raw, fault, accepted.request_id)
        name = (dialect.id_prefix or api.id_prefix) + digits
        tell_of_id(request, api, name)
        return Completion(name, FIXED_CREATED, accepted.served.config.name)


def _refused(trigger: Trigger, source: str, prompt_field: str, error: BaseException | None) -> ApiError:
    """400 for a fault that this request cannot meet; whose it is is named."""
    mode = trigger.fault.mode if trigger.fault is not None else ""
    if trigger.source == CONFIGURED:
        return bad_directive(f"{source}: [fault] {mode}: {error}", param=None)
    if trigger.source == "prompt":
        return bad_directive(f"in the prompt: {mode}: {error}", param=prompt_field)
    return bad_directive(f"{mode}: {error}")
