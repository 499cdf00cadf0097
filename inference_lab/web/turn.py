"""A request for a completion, read: what it asks for, once it has passed the checks that need no answer."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from inference_lab.core.answer.legs import directive_in
from inference_lab.core.apis.request import convert, fields_of, read_values, unknown_field
from inference_lab.core.errors import (
    ApiError,
    bad_directive,
    body_too_large,
    encoded_body,
    invalid_test_id,
    not_found,
    overloaded,
)
from inference_lab.core.faults.applies import NEEDS_STREAM, Connection, applies, as_it_applies
from inference_lab.core.faults.directive import DirectiveError, MalformedError, not_utf8
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.plan import FaultPlan, plan_from_header, plan_from_prompt
from inference_lab.core.identity import TEST_ID
from inference_lab.core.journal.row import ignored_in, parameters_of
from inference_lab.core.journal.sent import calls_in
from inference_lab.core.stream.assemble import Asked
from inference_lab.web.served import Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inference_lab.core.apis.contract import Api
    from inference_lab.core.apis.request import Common
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.web.served import ServedModels
    from inference_lab.wire.recording import Recording
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.streams import Streams

_T = TypeVar("_T")
_PLANS: Final = 256
FAULT_HEADER: Final = b"x-inference-lab-fault"
TEST_HEADER: Final = b"x-test-id"


class Turn(msgspec.Struct, frozen=True, dict=True):
    """What a request is. What its prompt says beside the conversation is looked for when somebody asks, once.

    `header` is the fault header's plan, `header_test` the test id that a header says, `unknown` a field that a strict
    server would refuse. `admits` says whether clients may have directives, `incidents` are modes beside the built-in
    ones.
    """

    asked: Asked
    served: Served
    raw: bytes
    request_id: bytes
    header: FaultPlan | None
    header_test: str | None
    unknown: str | None
    admits: bool
    incidents: Incidents

    @property
    def progress(self) -> int:
        """Whole words of the answer that have been passed on."""
        return self.asked.prompt.position.place.progress

    @property
    def configured(self) -> FaultPlan | None:
        """The model's own faults, as far as they apply."""
        return as_it_applies(self.served.config.fault, streaming=bool(self.asked.body.stream))

    @property
    def in_prompt(self) -> FaultPlan | None:
        """The faults of the prompt's directive.

        Raises:
            ApiError: 400 for what cannot be read.
        """
        return _found(self._in_prompt)

    @property
    def echo(self) -> Echo | None:
        """The echo-directive.

        Raises:
            ApiError: 400 for one of another shape.
        """
        return _found(self._echo)

    @cached_property
    def echo_tokens(self) -> int:
        """The ids of the echo, for the usage."""
        return 0 if self.echo is None else self.echo.completion_tokens(self.asked.model.template)

    @cached_property
    def has_plain_directive(self) -> bool:
        """Whether the prompt has a fault-directive that is plain text, since clients may have none."""
        if self.admits:
            return False
        try:
            return directive_in(self.asked.prompt.position.proper) is not None
        except ValueError:
            return False

    @cached_property
    def test(self) -> str | None:
        """The id of the test that the request belongs to.

        It is the header `x-test-id`, else what a directive says: the fault header's, the prompt's, the echo's, the
        model's own. A directive that does not decide is not refused here, whatever is wrong with it.
        """
        if self.header_test is not None:
            return self.header_test
        if self.header is not None and self.header.test is not None:
            return self.header.test
        if self.admits and "<<" in self.asked.prompt.position.proper:  # as both kinds of directives begin
            for found in (self._in_prompt, self._echo):
                if found is not None and not isinstance(found, ApiError) and found.test is not None:
                    return found.test
        return None if self.configured is None else self.configured.test

    def look_ahead(self) -> None:
        """Look for what takes long to find in a long prompt, while there is time for it."""
        _ = self._in_prompt, self.has_plain_directive
        with suppress(ApiError):  # raised again by whoever asks
            _ = self.echo_tokens

    # Read once, also where it is refused: each time takes as long.

    @cached_property
    def _in_prompt(self) -> FaultPlan | ApiError | None:
        if not self.admits:
            return None
        try:
            text = directive_in(self.asked.prompt.position.proper)
            return None if text is None else plan_from_prompt(text, self.incidents)
        except ValueError as error:
            known = error if isinstance(error, DirectiveError) else MalformedError(str(error))
            return bad_in_prompt(str(known), self.asked.api)

    @cached_property
    def _echo(self) -> Echo | ApiError | None:
        try:
            return self.asked.api.echo(self.asked.body) if self.admits else None
        except ApiError as error:
            return error


def _found(value: _T | ApiError) -> _T:
    if isinstance(value, ApiError):
        raise value
    return value


def bad_in_prompt(reason: str, api: Api[Any]) -> ApiError:
    """400 for a prompt's directive."""
    return bad_directive(f"in the prompt: {reason}", param=api.prompt_field)


class Turns:
    """Reads requests.

    `directives` admits what clients may ask for themselves, `incidents` are modes beside the built-in ones;
    `max_streams` is how many of `streams` may be open at once.
    """

    def __init__(
        self,
        models: ServedModels,
        streams: Streams,
        *,
        directives: bool,
        max_streams: int | None = None,
        incidents: Incidents = NO_INCIDENTS,
    ) -> None:
        self.models = models
        self.incidents = incidents
        self._streams = streams
        self._directives = directives
        self._max_streams = max_streams
        # Reading one takes longer than all other checks together, and a suite sends the same few again and again.
        self._plan = lru_cache(maxsize=_PLANS)(lambda text: plan_from_header(text, incidents))

    def read(self, request: LabRequest, api: Api[Any]) -> Turn:
        """A request for a completion, checked in the order of docs/wire.md, from the fault header to the prompt.

        Raises:
            ApiError: the first check that fails.
        """
        header = self._header_plan(request)
        header_test = header_test_id(request)
        raw = request.seen = whole_body(request)
        values = read_values(raw)
        if request.recording is not None:
            _record_body(request.recording, values, api.body)
        body = convert(values, api.body)
        body.check()
        if header is not None and not applies(header, streaming=bool(body.stream)):
            raise bad_directive(NEEDS_STREAM)
        served = self.models.find(body.model or "")
        request.model = served.counters
        model, streams = served.model, self._streams
        if body.stream and self._max_streams is not None and streams.count >= self._max_streams:
            raise overloaded(self._max_streams)
        prompt = api.prompt(body, model.template, reasons=model.reasoning_words > 0)
        return Turn(
            Asked(api, body, prompt, model, _connection_of(request)),
            served,
            raw,
            b", ".join(request.requestHeaders.getRawHeaders(b"x-request-id") or ()),
            header,
            header_test,
            unknown_field(values, api.body),
            self._directives,
            self.incidents,
        )

    def accept_look(self, request: LabRequest) -> None:
        """Let a client look after the scenes, at `/lab/…`.

        Raises:
            ApiError: 404 where clients may not direct the server either.
        """
        self.refuse_fault(request)
        if not self._directives:
            raise not_found(request.path.decode(errors="backslashreplace"))

    def refuse_fault(self, request: LabRequest) -> None:
        """On a route that cannot die, refuse a fault header rather than ignore it.

        Raises:
            ApiError: 400 `invalid_fault_directive`.
        """
        if request.requestHeaders.hasHeader(FAULT_HEADER):
            self._require_directives()
            raise bad_directive("this route has no faults; send the header to a streaming completion")

    def _header_plan(self, request: LabRequest) -> FaultPlan | None:
        lines = request.requestHeaders.getRawHeaders(FAULT_HEADER)
        if lines is None:
            return None
        self._require_directives()
        raw = b",".join(lines)  # two header lines are one with a comma (RFC 9110 section 5.3)
        try:
            return self._plan(raw.decode())
        except UnicodeDecodeError:
            raise bad_directive(str(not_utf8(raw))) from None
        except ValueError as error:
            raise bad_directive(str(error)) from None

    def _require_directives(self) -> None:
        if not self._directives:
            raise bad_directive("fault headers are off; start the server with --enable-directives")


def header_test_id(request: LabRequest) -> str | None:
    """The test id that a request's header says.

    Raises:
        ApiError: 400 `invalid_test_id`; two lines are no id either.
    """
    lines = request.requestHeaders.getRawHeaders(TEST_HEADER)
    if lines is None:
        return None
    text = b",".join(lines).decode(errors="backslashreplace")
    if not TEST_ID.fullmatch(text):
        raise invalid_test_id(text)
    return text


def whole_body(request: LabRequest) -> bytes:
    """The request's body.

    Raises:
        ApiError: 415 for one with a content coding, 413 for a chunked one that grew past the limit.
    """
    lines = request.requestHeaders.getRawHeaders(b"content-encoding")
    if lines is not None:
        codings = b",".join(lines).decode(errors="backslashreplace")
        if any(coding.strip().lower() not in {"", "identity"} for coding in codings.split(",")):
            raise encoded_body(codings)
    if request.body_too_large:
        raise body_too_large(request.site.max_body_bytes)
    raw = request.body()
    if request.recording is not None:
        request.recording.tell_body(raw)
    return raw


def _record_body(recording: Recording, values: Mapping[str, Any], kind: type[Common]) -> None:
    """What was asked for, before it is judged: `values` are the body's members."""
    model = values.get("model")
    recording.add(
        model=model if isinstance(model, str) else None,
        stream=values.get("stream") is True,
        parameters=parameters_of(values),
        history_calls=calls_in(values.get("messages")),
        ignored=ignored_in(values, fields_of(kind)),
    )


def _connection_of(request: LabRequest) -> Connection:
    # Twisted has answered a request's `connection: close` there.
    is_kept = not request.responseHeaders.hasHeader(b"connection")
    return Connection(request.isSecure(), is_kept, request.has_chunks)
