"""The checks a request passes before anything answers it, in the order of the contract."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from inference_lab.core.apis.request import Common, convert, read_values, unknown_field
from inference_lab.core.errors import bad_directive, body_too_large, encoded_body, invalid_test_id, not_found
from inference_lab.core.faults.applies import NEEDS_STREAM, applies
from inference_lab.core.faults.directive import not_utf8
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.plan import FaultPlan, plan_from_header
from inference_lab.core.identity import TEST_ID
from inference_lab.web.recorded import tell_of_body
from inference_lab.web.served import Served

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api
    from inference_lab.web.served import ServedModels
    from inference_lab.wire.request import LabRequest

_PLANS: Final = 256
FAULT_HEADER: Final = b"x-inference-lab-fault"
TEST_HEADER: Final = b"x-test-id"

_R = TypeVar("_R", bound=Common)


class Accepted(msgspec.Struct, Generic[_R], frozen=True):
    """A request for a completion that has passed every check but those of the prompt and the engine."""

    raw: bytes
    body: _R
    served: Served
    header_plan: FaultPlan | None
    request_id: bytes
    test: str | None = None
    """What the header `x-test-id` says."""
    unknown: str | None = None
    """A field that a strict server would refuse."""


class Checks:
    """The checks of a server.

    `directives` admits what clients may ask for themselves, `incidents` are modes beside the built-in ones.
    """

    def __init__(
        self, models: ServedModels, *, directives: bool, incidents: Incidents = NO_INCIDENTS
    ) -> None:
        self._models = models
        self._directives = directives
        self._incidents = incidents
        # Reading one takes longer than all other checks together, and a suite sends the same few again and again.
        self._plan = lru_cache(maxsize=_PLANS)(lambda text: plan_from_header(text, incidents))

    def accept(self, request: LabRequest, api: Api[_R]) -> Accepted[_R]:
        """Check a request for a completion.

        Raises:
            ApiError: the first check that fails.
        """
        header_plan = self._header_plan(request)
        test = header_test_id(request)
        raw = whole_body(request)
        values = read_values(raw)
        tell_of_body(request, values, api.body)
        body = convert(values, api.body)
        body.check()
        if header_plan is not None and not applies(header_plan, streaming=bool(body.stream)):
            raise bad_directive(NEEDS_STREAM)
        served = self._models.find(body.model or "")
        request.model = served.tally
        request_id = b", ".join(request.requestHeaders.getRawHeaders(b"x-request-id") or ())
        unknown = unknown_field(values, api.body)
        return Accepted(raw, body, served, header_plan, request_id, test, unknown)

    def accept_listing(self, request: LabRequest) -> Incidents:
        """Let a client look at the faults it may ask for; answers the incidents among them.

        Raises:
            ApiError: 404 where clients may ask for none.
        """
        self.accept_look(request)
        return self._incidents

    def accept_look(self, request: LabRequest) -> None:
        """Let a client look behind the scenes, at `/lab/…`.

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


def refuse_leg_keys(header: FaultPlan | None, progress: int) -> None:
    """Refuse a header's key that only a later leg can show, on a request that has passed on no word.

    Raises:
        ApiError: 400 `invalid_fault_directive`.
    """
    key = None if header is None or progress else header.leg_key
    if key is not None:
        raise bad_directive(f"{key} goes with a later leg: this prompt holds no word of an answer")


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
