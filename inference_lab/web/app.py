"""The routes: what each path answers."""

from __future__ import annotations

# werkzeug's router encodes a host with it, in the first request: without descriptors that import would fail.
import encodings.idna  # noqa: F401
from typing import TYPE_CHECKING, Any, Final

import msgspec
from klein import Klein
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from inference_lab import __version__
from inference_lab.core.apis.table import APIS
from inference_lab.core.errors import ApiError, not_found
from inference_lab.web.attempt_pages import forget_attempts
from inference_lab.web.embeddings import Embeddings
from inference_lab.web.fault_pages import fault_list, fault_page
from inference_lab.web.helpers import Helpers
from inference_lab.web.turn import whole_body
from inference_lab.wire.turns import LARGE_BYTES, at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.apis.contract import Api
    from inference_lab.core.faults.incident import Incidents
    from inference_lab.web.answers import Answer, Answers
    from inference_lab.web.journal_pages import JournalPages
    from inference_lab.web.metrics_page import MetricsPage
    from inference_lab.web.turn import Turn, Turns
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.turns import Aside

_ASKED_WITH: Final = (
    "x-inference-lab-fault",
    "authorization",
    "content-type",
    "x-request-id",
    "x-test-id",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
)
"""What pages may send, Anthropic's SDK included."""
_PREFLIGHT: Final = (
    (
        "access-control-allow-headers",
        ", ".join(_ASKED_WITH),
    ),
    ("access-control-max-age", "86400"),
)

_log: Final = Logger()


class Lab:
    """The application."""

    app = Klein()
    app.url_map.merge_slashes = False  # `/v1//models` is no route, rather than a redirect

    def __init__(
        self,
        turns: Turns,
        answers: Answers,
        metrics: MetricsPage,
        journal: JournalPages | None = None,
        aside: Aside = at_once,
    ) -> None:
        self._aside = aside
        self._models = models = turns.models
        self._metrics = metrics
        self._journal = journal
        self._helpers = Helpers(models)
        self._turns = turns
        self._answers = answers

    def resource(self) -> Resource:
        """What the site asks: all routes."""
        return _Entrance(self)

    # -- routes

    def complete(self, request: LabRequest, api: Api[Any]) -> Answer:
        """Answer a request of an API.

        Raises:
            ApiError: a check that failed.
        """
        if request.body_bytes <= LARGE_BYTES or request.early:  # refused, and not held
            return self._answers.answer(request, self._turns.read(request, api))

        def read() -> Turn:
            turn = self._turns.read(request, api)
            turn.look_ahead()
            return turn

        return self._aside(read).addCallback(lambda turn: self._answers.answer(request, turn))

    @app.route("/v1/embeddings", methods=["POST"])
    async def embeddings(self, request: LabRequest) -> bytes:
        """Answer a request for embeddings."""
        self._turns.refuse_fault(request)
        raw = whole_body(request)
        if len(raw) <= LARGE_BYTES:
            asked = Embeddings(raw, self._models)
        else:
            asked = await self._aside(lambda: Embeddings(raw, self._models))
        return _json(request, await asked.answer(request.site.pacer.clock))

    @app.route("/tokenize", methods=["POST"])
    def tokenize(self, request: LabRequest) -> bytes | Deferred[bytes]:
        """Tell a prompt's ids."""
        return self._help(request, self._helpers.tokenize)

    @app.route("/detokenize", methods=["POST"])
    def detokenize(self, request: LabRequest) -> bytes | Deferred[bytes]:
        """Tell what ids say."""
        return self._help(request, self._helpers.detokenize)

    @app.route("/v1/render", methods=["POST"])
    def render(self, request: LabRequest) -> bytes | Deferred[bytes]:
        """Render a conversation and the answer so far."""
        return self._help(request, self._helpers.render)

    @app.route("/v1/messages/count_tokens", methods=["POST"])
    def count_tokens(self, request: LabRequest) -> bytes | Deferred[bytes]:
        """Count the tokens of a message's prompt."""
        return self._help(request, self._helpers.count_tokens)

    @app.route("/v1/responses/input_tokens", methods=["POST"])
    def input_tokens(self, request: LabRequest) -> bytes | Deferred[bytes]:
        """Count the tokens of a response's input."""
        return self._help(request, self._helpers.input_tokens)

    def _help(
        self, request: LabRequest, answer: Callable[[bytes], dict[str, object]]
    ) -> bytes | Deferred[bytes]:
        self._turns.refuse_fault(request)
        raw = request.seen = whole_body(request)

        def written(payload: bytes) -> bytes:
            return request.prepare_json(200, payload, request.api_headers())

        if len(raw) <= LARGE_BYTES:
            return written(msgspec.json.encode(answer(raw)))
        return self._aside(lambda: msgspec.json.encode(answer(raw))).addCallback(written)

    @app.route("/v1/models", methods=["GET"])
    def models(self, request: LabRequest) -> bytes:
        """List the models."""
        self._turns.refuse_fault(request)
        return _json(request, {"object": "list", "data": self._models.cards()})

    @app.route("/v1/models/<path:name>", methods=["GET"])
    def model(self, request: LabRequest, name: str) -> bytes:
        """Describe one model; its id may hold slashes."""
        self._turns.refuse_fault(request)
        return _json(request, self._models.find(name).card())

    @app.route("/", methods=["GET"])
    def root(self, request: LabRequest) -> bytes:
        """Say what is here, to whoever looks with curl."""
        self._turns.refuse_fault(request)
        models = [card["id"] for card in self._models.cards()]
        return _json(
            request,
            {"name": "inference-lab", "version": __version__, "models": models, "routes": _routes()},
        )

    @app.route("/health", methods=["GET"])
    def health(self, request: LabRequest) -> bytes:
        """Say that the server is up."""
        self._turns.refuse_fault(request)
        return _json(request, {"status": "ok"})

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: LabRequest) -> bytes:
        """Tell what has been counted, to Prometheus."""
        self._turns.refuse_fault(request)
        return self._metrics.page(request)

    @app.route("/lab/faults", methods=["GET"])
    def faults(self, request: LabRequest) -> bytes:
        """List the ways to die."""
        return _json(request, fault_list(self._listing(request)))

    @app.route("/lab/faults/<path:directive>", methods=["GET"])
    async def fault(self, request: LabRequest, directive: str) -> bytes:
        """Show what a directive does, on chat, or with `?endpoint=completions` there."""
        return _json(request, await fault_page(request, directive, self._listing(request)))

    def _listing(self, request: LabRequest) -> Incidents:
        """The incidents among the faults that a client may look at."""
        self._turns.accept_look(request)
        return self._turns.incidents

    @app.route("/lab/attempts", methods=["DELETE"])
    def attempts(self, request: LabRequest) -> bytes:
        """Forget how often elements with `times` have been met."""
        self._turns.accept_look(request)
        return _json(request, forget_attempts(request, self._answers.attempts))

    @app.route("/lab/journal", methods=["GET"])
    async def journal(self, request: LabRequest) -> bytes:
        """Tell what has become of requests."""
        return await self._pages(request).rows(request)

    @app.route("/lab/verdict", methods=["GET"])
    async def verdict(self, request: LabRequest) -> bytes:
        """Judge what a gateway asked for, leg by leg."""
        return await self._pages(request).verdict(request)

    @app.route("/lab/journal", methods=["DELETE"])
    async def forget(self, request: LabRequest) -> bytes:
        """Remove rows of the journal."""
        return await self._pages(request).delete(request)

    def _pages(self, request: LabRequest) -> JournalPages:
        self._turns.accept_look(request)
        assert self._journal is not None  # noqa: S101 - where clients may look, requests are recorded
        return self._journal

    # -- errors; each handler's own error goes to those below it

    @app.handle_errors(HTTPException)  # type: ignore[arg-type] # Klein types the request as IRequest
    def unroutable(self, request: LabRequest, failure: Failure) -> bytes:
        """Answer what the router refused: no such path, or not with this method.

        A preflight is one of those: it asks which methods the path has, and the router says so here.
        """
        if not isinstance(failure.value, MethodNotAllowed):
            raise not_found(request.path.decode(errors="backslashreplace"))
        allowed = ", ".join((*sorted(failure.value.valid_methods or ()), "OPTIONS"))
        if request.method == b"OPTIONS":
            self._turns.refuse_fault(request)
            return request.prepare_json(204, b"", (("access-control-allow-methods", allowed), *_PREFLIGHT))
        method = request.method.decode(errors="backslashreplace")
        message = f"{method} is not allowed here, expected {allowed}"
        raise ApiError(405, "method_not_allowed", message, headers=(("allow", allowed),))

    @app.handle_errors(ApiError)  # type: ignore[arg-type] # Klein types the request as IRequest
    def refused(self, request: LabRequest, failure: Failure) -> bytes:
        """Answer what a check refused."""
        error = failure.value
        assert isinstance(error, ApiError)  # noqa: S101 - what Klein was told to hand over
        return request.refuse(error)

    @app.handle_errors(CancelledError)  # type: ignore[arg-type] # Klein types the request as IRequest
    def client_left(self, request: LabRequest, failure: Failure) -> None:
        """The connection is gone, and nobody is there to answer."""

    @app.handle_errors(Exception)  # type: ignore[arg-type] # Klein types the request as IRequest
    def internal_error(self, request: LabRequest, failure: Failure) -> bytes | Deferred[None]:
        """A defect of ours: log it whole, and tell the client no more than that."""
        _log.failure("{request} failed", failure=failure, request=request)
        if request.startedWriting:
            request.response.cut()
            return Deferred()
        return request.refuse(ApiError(500, "internal_error", "the server has a defect; its log says more"))


class _Entrance(Resource):
    """The way in: to Klein, past which the APIs' own paths go, since its routing takes as long as all checks."""

    isLeaf = True

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab
        self._klein = lab.app.resource()

    def render(self, request: LabRequest) -> Any:  # noqa: ANN401 - what Klein says
        """Answer."""
        api = _APIS_BY_PATH.get(request.path) if request.method == b"POST" else None
        if api is None:
            return self._klein.render(request)
        try:
            answer: Any = self._lab.complete(request, api)
        except Exception:  # noqa: BLE001 - whatever it is, it is answered
            answer = self._failed(request, Failure())
        if isinstance(answer, Deferred):
            self._wait(request, answer)
        elif answer is not None:
            request.write(answer)
            request.finish()
        return NOT_DONE_YET

    def _wait(self, request: LabRequest, answer: Deferred[Any]) -> None:
        is_over = False

        def end(failure: Failure | None) -> None:
            nonlocal is_over
            is_over = True
            if failure is not None:
                answer.cancel()

        def write(data: bytes | None) -> None:
            if data is not None and not is_over:
                request.write(data)
                request.finish()

        request.notifyFinish().addBoth(end)
        failed: Deferred[Any] = answer.addErrback(lambda failure: self._failed(request, failure))
        failed.addCallback(write)

    def _failed(self, request: LabRequest, failure: Failure) -> Any:  # noqa: ANN401 - what Klein makes of them
        if failure.check(ApiError):
            return self._lab.refused(request, failure)
        if failure.check(CancelledError):
            return self._lab.client_left(request, failure)
        return self._lab.internal_error(request, failure)


def _for_klein(answer: Answer) -> bytes | Deferred[Any]:
    """An answer that Klein does not finish where a script is being played."""
    if isinstance(answer, Deferred):
        return answer.addCallback(_for_klein)
    return Deferred() if answer is None else answer


def _json(request: LabRequest, payload: object) -> bytes:
    return request.prepare_json(200, msgspec.json.encode(payload))


def add_api(api: Api[Any]) -> None:
    """Serve an API: its row in the table, and its route."""

    def answer(lab: Lab, request: LabRequest) -> bytes | Deferred[Any]:
        return _for_klein(lab.complete(request, api))

    APIS[api.name] = api
    _APIS_BY_PATH[api.path.encode()] = api
    Lab.app.route(api.path, methods=["POST"], endpoint=api.name)(answer)
    _WHOLE.add(api.path.encode())


def _routes() -> list[str]:
    """Every route with its method, as the table of docs/wire.md has them."""
    rules = sorted(Lab.app.url_map.iter_rules(), key=lambda rule: rule.rule)
    return [
        f"{method} {rule.rule.replace('<path:', '{').replace('>', '}')}"
        for rule in rules
        for method in sorted(set(rule.methods or ()) - {"HEAD", "OPTIONS"})
    ]


_PREFIXES: Final = {
    rule.rule.partition("<")[0].encode(): rule.rule
    for rule in Lab.app.url_map.iter_rules()
    if "<" in rule.rule
}
_APIS_BY_PATH: Final[dict[bytes, Api[Any]]] = {}
_WHOLE = {rule.rule.encode() for rule in Lab.app.url_map.iter_rules() if "<" not in rule.rule}


def route_of(path: bytes) -> str:
    """The route that a path is on, `other` for all that are on none: few names, whatever clients ask for."""
    if path in _WHOLE:
        return path.decode()
    return next((route for prefix, route in _PREFIXES.items() if path.startswith(prefix)), "other")


for _api in list(APIS.values()):
    add_api(_api)
