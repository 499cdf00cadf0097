"""The way past the router for the paths that carry the load.

Klein takes as long to come to a handler and back as the handler itself takes: it matches the URL, wraps each answer in
several Deferreds and registers for the end of the request. For a path without parameters a dictionary does as well.
Everything else, other methods on the same paths included, goes through Klein.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.web.resource import IResource

    from inference_lab.web.answers import Answer
    from inference_lab.wire.http import LabRequest


class DirectRoutes(Resource):
    """Answers POST on `routes` (path to handler) as Klein would; hands every other request to `others`.

    `on_error` answers for an exception as Klein's error handlers do: bytes, or a Deferred when there is nothing to say.
    """

    isLeaf = True

    def __init__(
        self,
        others: IResource,
        routes: Mapping[bytes, Callable[[LabRequest], Answer]],
        on_error: Callable[[LabRequest, Failure], bytes | Deferred[None] | None],
    ) -> None:
        super().__init__()
        self._others = others
        self._routes = routes
        self._on_error = on_error

    def render(self, request: LabRequest) -> int:
        """Answer a request."""
        route = self._routes.get(request.path) if request.method == b"POST" else None
        if route is None:
            return self._others.render(request)  # type: ignore[no-any-return] # Klein's resource has no types
        try:
            answer = route(request)
            if isinstance(answer, Deferred):
                self._wait(request, answer)
            elif isinstance(answer, bytes):
                _finish(request, answer)
            else:
                answer.render(request)
        except Exception:  # noqa: BLE001 - as Klein does: whatever a handler raises has an answer
            self._refuse(request, Failure())
        return NOT_DONE_YET

    def _wait(self, request: LabRequest, answer: Deferred[bytes]) -> None:
        left = False

        def leave(_: Failure) -> None:
            nonlocal left
            left = True
            answer.cancel()

        request.notifyFinish().addErrback(leave)
        answer.addCallback(lambda body: None if left else _finish(request, body))
        answer.addErrback(lambda failure: None if left else self._refuse(request, failure))

    def _refuse(self, request: LabRequest, failure: Failure) -> None:
        body = self._on_error(request, failure)
        if isinstance(body, bytes):
            _finish(request, body)


def _finish(request: LabRequest, body: bytes) -> None:
    request.write(body)
    request.finish()
