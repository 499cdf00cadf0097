"""The routes: what each path answers, and the order in which a request can be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
from klein import Klein
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from inference_lab.answer import fault_pieces, healthy
from inference_lab.config import ServedModel
from inference_lab.errors import ApiError, bad_directive, body_too_large, not_found
from inference_lab.faults.directive import DirectiveError, Fault, parse_directive
from inference_lab.faults.script import echo_script, fault_script, healthy_script
from inference_lab.faults.trigger import choose
from inference_lab.formats import FORMATS
from inference_lab.identity import FIXED_CREATED, response_digits
from inference_lab.shapes import ChatShape, Completion, Counts
from inference_lab.web.endpoints import CHAT, COMPLETIONS, Endpoint, call_target_of, echo_frames, echo_message
from inference_lab.web.requests import Common, read_body
from inference_lab.wire.engine_driver import Engine, Job
from inference_lab.wire.transport import abort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twisted.python.failure import Failure

    from inference_lab.answer import Plan
    from inference_lab.echo import Echo
    from inference_lab.faults.events import Event
    from inference_lab.web.endpoints import Prompt
    from inference_lab.wire.engine_driver import Ticket
    from inference_lab.wire.http import LabRequest
    from inference_lab.wire.streams import Streams

FAULT_HEADER: Final = b"x-inference-lab-fault"

_STREAM_HEAD: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_PREFLIGHT: Final = (
    ("access-control-allow-headers", "x-inference-lab-fault, authorization, content-type, x-request-id"),
    ("access-control-max-age", "86400"),
)

_log: Final = Logger()
_R = TypeVar("_R", bound=Common)


class Served(msgspec.Struct, frozen=True):
    """A model that is served: its configuration and its engine."""

    config: ServedModel
    engine: Engine


class Accepted(msgspec.Struct, frozen=True):
    """A request that has passed every check but those of the engine."""

    raw: bytes
    body: Any
    served: Served
    header_fault: Fault | None
    request_id: bytes


class Stream(Resource):
    """What a route returns for a stream: Klein renders it, and goes its way without finishing the response."""

    isLeaf = True

    def __init__(self, start: Callable[[LabRequest], None]) -> None:
        super().__init__()
        self._start = start

    def render(self, request: LabRequest) -> int:
        """Send the head and start playing."""
        for name, value in _STREAM_HEAD:
            request.responseHeaders.setRawHeaders(name, [value])
        self._start(request)
        return NOT_DONE_YET


# Klein writes bytes and finishes, renders a resource, waits for a Deferred.
Answer: TypeAlias = bytes | Stream | Deferred[bytes]


class Lab:
    """The application. `directives` admits what clients may ask for themselves: the fault header and echoes.

    `wall_seconds` gives `created` and `random_digits` the id of answers on the engine path.
    """

    app = Klein()
    app.url_map.merge_slashes = False  # `//v1/models` is no route, rather than a redirect

    def __init__(
        self,
        models: Sequence[Served],
        streams: Streams,
        *,
        directives: bool,
        wall_seconds: Callable[[], float],
        random_digits: Callable[[], str],
    ) -> None:
        self._models = models
        self._by_name: Mapping[str, Served] = {
            name: served for served in models for name in (served.config.name, *served.config.aliases)
        }
        self._streams = streams
        self._directives = directives
        self._wall_seconds = wall_seconds
        self._random_digits = random_digits

    # -- routes

    @app.route("/v1/chat/completions", methods=["POST"])
    def chat(self, request: LabRequest) -> Answer:
        """Answer a chat request."""
        return self._complete(request, CHAT)

    @app.route("/v1/completions", methods=["POST"])
    def completions(self, request: LabRequest) -> Answer:
        """Answer a completions request."""
        return self._complete(request, COMPLETIONS)

    @app.route("/v1/models", methods=["GET"])
    def models(self, request: LabRequest) -> bytes:
        """List the models."""
        self._refuse_fault(request)
        listing = {"object": "list", "data": [_model_card(served) for served in self._models]}
        return request.prepare_json(200, msgspec.json.encode(listing))

    @app.route("/v1/models/<path:name>", methods=["GET"])
    def model(self, request: LabRequest, name: str) -> bytes:
        """Describe one model; its id may hold slashes."""
        self._refuse_fault(request)
        return request.prepare_json(200, msgspec.json.encode(_model_card(self._served(name))))

    @app.route("/health", methods=["GET"])
    def health(self, request: LabRequest) -> bytes:
        """Say that the server is up."""
        self._refuse_fault(request)
        return request.prepare_json(200, b'{"status":"ok"}')

    @app.route("/v1/chat/completions", methods=["OPTIONS"])
    @app.route("/v1/completions", methods=["OPTIONS"])
    def preflight_post(self, request: LabRequest) -> bytes:
        """Allow a browser's cross-origin POST."""
        return self._preflight(request, "POST, OPTIONS")

    @app.route("/v1/models", methods=["OPTIONS"])
    @app.route("/v1/models/<path:name>", methods=["OPTIONS"])
    @app.route("/health", methods=["OPTIONS"])
    def preflight_get(self, request: LabRequest, name: str = "") -> bytes:
        """Allow a browser's cross-origin GET."""
        del name
        return self._preflight(request, "GET, HEAD, OPTIONS")

    def _preflight(self, request: LabRequest, methods: str) -> bytes:
        self._refuse_fault(request)
        return request.prepare_json(204, b"", (("access-control-allow-methods", methods), *_PREFLIGHT))

    # -- errors

    @app.handle_errors(ApiError)  # type: ignore[arg-type] # Klein types the request as IRequest
    def refused(self, request: LabRequest, failure: Failure) -> bytes:
        """Answer what a check refused."""
        error = failure.value
        assert isinstance(error, ApiError)  # noqa: S101 - what Klein was told to hand over
        return request.prepare_json(error.status, error.body(), error.headers)

    @app.handle_errors(HTTPException)  # type: ignore[arg-type] # Klein types the request as IRequest
    def unroutable(self, request: LabRequest, failure: Failure) -> bytes:
        """Answer what the router refused: no such path, or not with this method."""
        error = not_found(request.path.decode(errors="backslashreplace"))
        if isinstance(failure.value, MethodNotAllowed):
            allowed = ", ".join(sorted(failure.value.valid_methods or ()))
            message = (
                f"{request.method.decode(errors='backslashreplace')} is not allowed here, expected {allowed}"
            )
            error = ApiError(405, "method_not_allowed", message, headers=(("allow", allowed),))
        return request.prepare_json(error.status, error.body(), error.headers)

    @app.handle_errors(CancelledError)  # type: ignore[arg-type] # Klein types the request as IRequest
    def client_left(self, request: LabRequest, failure: Failure) -> None:
        """The connection is gone, and nobody is there to answer."""

    @app.handle_errors(Exception)  # type: ignore[arg-type] # Klein types the request as IRequest
    def internal_error(self, request: LabRequest, failure: Failure) -> bytes | Deferred[None]:
        """A defect of ours: log it whole, and tell the client no more than that."""
        _log.failure("{request} failed", failure=failure, request=request)
        if request.startedWriting:
            abort(request.transport)
            return Deferred()
        error = ApiError(500, "internal_error", "the server has a defect; its log says more")
        return request.prepare_json(error.status, error.body())

    # -- a completion, from its checks to its answer

    def _complete(self, request: LabRequest, endpoint: Endpoint[_R]) -> Answer:
        accepted = self._accept(request, endpoint)
        config = accepted.served.config
        trigger = choose(
            accepted.header_fault,
            config.fault if accepted.body.stream else None,
            lambda: endpoint.echo(accepted.body) if self._directives else None,
        )
        prompt = endpoint.prompt(accepted.body, FORMATS[config.format])
        if trigger.fault is not None:
            return self._fault(endpoint, accepted, prompt, trigger.fault, trigger.source)
        if trigger.echo is not None:
            return self._echo(request, accepted, prompt, trigger.echo)
        return self._engine(request, endpoint, accepted, prompt)

    def _accept(self, request: LabRequest, endpoint: Endpoint[_R]) -> Accepted:
        """Check a request in the contract's order; the first check that fails answers."""
        header_fault = self._header_fault(request)
        if request.body_too_large:
            raise body_too_large(request.channel.site.max_body_bytes)
        raw = request.body()
        body = read_body(raw, endpoint.kind)
        endpoint.check(body)
        if header_fault is not None and not body.stream:
            raise bad_directive('a fault needs a streaming request: set "stream": true')
        served = self._served(body.model or "")
        if served.config.fault is not None and body.stream:
            _require_chunked(request)
        request_id = b", ".join(request.requestHeaders.getRawHeaders(b"x-request-id") or ())
        return Accepted(raw, body, served, header_fault, request_id)

    def _header_fault(self, request: LabRequest) -> Fault | None:
        lines = request.requestHeaders.getRawHeaders(FAULT_HEADER)
        if lines is None:
            return None
        self._require_directives()
        try:
            # Bytes that are no UTF-8 become escapes, which the grammar refuses where they stand.
            fault = parse_directive(b",".join(lines).decode(errors="backslashreplace"))
        except DirectiveError as error:
            raise bad_directive(str(error)) from None
        _require_chunked(request)
        return fault

    def _refuse_fault(self, request: LabRequest) -> None:
        """On a route that cannot die, a fault header is refused rather than ignored."""
        if request.requestHeaders.hasHeader(FAULT_HEADER):
            self._require_directives()
            raise bad_directive("this route has no faults; send the header to a streaming completion")

    def _require_directives(self) -> None:
        if not self._directives:
            raise bad_directive("fault headers are off; start the server with --enable-directives")

    def _served(self, name: str) -> Served:
        served = self._by_name.get(name)
        if served is None:
            shown = name if len(name) <= 100 else name[:100] + "…"
            known = ", ".join(served.config.name for served in self._models)
            raise ApiError(404, "model_not_found", f"no model {shown!r}; there are: {known}", param="model")
        return served

    def _fault(
        self, endpoint: Endpoint[_R], accepted: Accepted, prompt: Prompt, fault: Fault, source: str
    ) -> Stream:
        completion = self._fixed_completion(endpoint, accepted, fault.canonical())
        try:
            pieces = fault_pieces(
                FORMATS[accepted.served.config.format],
                prompt.position,
                fault.row.content.value,
                chat=endpoint.is_chat,
                call=call_target_of(accepted.body),
            )
        except ValueError as error:
            raise bad_directive(f"{fault.mode}: {error}") from None
        script = fault_script(
            fault,
            endpoint.shape(accepted.body, completion),
            pieces,
            prompt_tokens=len(prompt.ids),
            include_usage=accepted.body.include_usage,
        )
        return Stream(lambda request: self._play(request, script, f"{source} {fault.canonical()}"))

    def _echo(self, request: LabRequest, accepted: Accepted, prompt: Prompt, echo: Echo) -> Answer:
        completion = self._fixed_completion(CHAT, accepted, "")
        counts = Counts(len(prompt.ids), echo.completion_tokens(FORMATS[accepted.served.config.format]))
        if not accepted.body.stream:
            whole = CHAT.whole_message(completion, echo_message(echo, completion), echo.finish_reason, counts)
            return request.prepare_json(200, whole)
        shape = ChatShape(completion)
        script = echo_script(
            shape,
            echo_frames(shape, echo),
            echo.finish_reason,
            counts,
            include_usage=accepted.body.include_usage,
        )
        return Stream(lambda request: self._play(request, script, "echo"))

    def _engine(
        self, request: LabRequest, endpoint: Endpoint[_R], accepted: Accepted, prompt: Prompt
    ) -> Answer:
        config = accepted.served.config
        plan = self._plan(endpoint, accepted, prompt)
        job = Job(prompt.ids, max(1, plan.completion_tokens), accepted.body.engine_priority)
        engine = accepted.served.engine
        refusal = engine.refusal(job)
        if refusal is not None:
            raise _context_exceeded(f"this request can never run: {refusal}", endpoint)
        completion = Completion(
            endpoint.id_prefix + self._random_digits(), int(self._wall_seconds()), config.name
        )

        def counts(ticket: Ticket) -> Counts:
            return Counts(len(prompt.ids), plan.completion_tokens, ticket.cached_tokens)

        if accepted.body.stream:

            def start(request: LabRequest) -> None:
                # `player` is bound in time: an engine calls back only after `submit` has returned.
                ticket = engine.submit(job, lambda count: player.on_tokens(count))  # noqa: PLW0108
                script = healthy_script(
                    endpoint.shape(accepted.body, completion),
                    plan.pieces,
                    plan.finish,
                    lambda: counts(ticket),
                    include_usage=accepted.body.include_usage,
                )
                player = self._streams.play(request, script, "engine", on_gone=ticket.cancel)

            return Stream(start)

        answer: Deferred[bytes] = Deferred(lambda _: ticket.cancel())
        awaited = job.output_tokens

        def on_tokens(count: int) -> None:
            nonlocal awaited
            awaited -= count
            if not awaited:
                whole = endpoint.whole(completion, plan.pieces, plan.finish, counts(ticket))
                answer.callback(request.prepare_json(200, whole))

        ticket = engine.submit(job, on_tokens)
        return answer

    def _plan(self, endpoint: Endpoint[_R], accepted: Accepted, prompt: Prompt) -> Plan:
        """What the engine is to answer.

        Raises:
            ApiError: 400 `context_length_exceeded`.
        """
        config = accepted.served.config
        asked = accepted.body.token_limit
        left = config.context_limit_tokens - len(prompt.ids)
        if left < max(1, asked or 0):
            wanted = f"{asked} for the answer" if asked else "at least one for the answer"
            raise _context_exceeded(
                f"the model holds {config.context_limit_tokens} tokens; "
                f"the prompt has {len(prompt.ids)}, and {wanted} do not fit",
                endpoint,
            )
        return healthy(
            FORMATS[config.format],
            prompt.position,
            chat=endpoint.is_chat,
            reasoning_words=config.answer.reasoning,
            answer_words=config.answer.tokens,
            max_tokens=asked,
            context_left=left,
        )

    def _play(self, request: LabRequest, script: Iterator[Event], trigger: str) -> None:
        self._streams.play(request, script, trigger)

    def _fixed_completion(self, endpoint: Endpoint[_R], accepted: Accepted, fault: str) -> Completion:
        digits = response_digits(endpoint.path, accepted.raw, fault, accepted.request_id)
        return Completion(endpoint.id_prefix + digits, FIXED_CREATED, accepted.served.config.name)


def _require_chunked(request: LabRequest) -> None:
    if request.clientproto != b"HTTP/1.1":
        raise bad_directive("a fault needs HTTP/1.1: without chunks a cut would look like a normal end")


def _context_exceeded(message: str, endpoint: Endpoint[_R]) -> ApiError:
    param = "messages" if endpoint.is_chat else "prompt"
    return ApiError(400, "context_length_exceeded", message, param=param)


def _model_card(served: Served) -> dict[str, object]:
    return {
        "id": served.config.name,
        "object": "model",
        "created": FIXED_CREATED,
        "owned_by": "inference-lab",
        "max_model_len": served.config.context_limit_tokens,
    }
