"""The checks a request passes before anything answers it, in the order of the contract."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from inference_lab.errors import bad_directive, body_too_large
from inference_lab.faults.constraints import acts_without_stream
from inference_lab.faults.death import HEALTHY
from inference_lab.faults.directive import DirectiveError
from inference_lab.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.faults.plan import FaultPlan, plan_from_header
from inference_lab.web.requests import Common, read_body
from inference_lab.web.served import Served

if TYPE_CHECKING:
    from inference_lab.faults.directive import Fault
    from inference_lab.web.endpoints import Endpoint
    from inference_lab.web.served import ServedModels
    from inference_lab.wire.http import LabRequest

_PLANS_KEPT: Final = 256
FAULT_HEADER: Final = b"x-inference-lab-fault"
NEEDS_STREAM: Final = 'this fault needs a streaming request: set "stream": true'

_R = TypeVar("_R", bound=Common)


class Accepted(msgspec.Struct, Generic[_R], frozen=True):
    """A request for a completion that has passed every check but those of the prompt and the engine."""

    raw: bytes
    body: _R
    served: Served
    header_plan: FaultPlan | None
    request_id: bytes


class Checks:
    """`directives` admits what clients may ask for themselves, `incidents` are modes beside the built-in ones."""

    def __init__(
        self, models: ServedModels, *, directives: bool, incidents: Incidents = NO_INCIDENTS
    ) -> None:
        self._models = models
        self._directives = directives
        # A client says the same thing again and again, and a plan never changes.
        self._plan_of = lru_cache(_PLANS_KEPT)(partial(plan_from_header, incidents=incidents))

    def accept(self, request: LabRequest, endpoint: Endpoint[_R]) -> Accepted[_R]:
        """Check a request for a completion.

        Raises:
            ApiError: the first check that fails.
        """
        header_plan = self._header_plan(request)
        raw = whole_body(request)
        body = read_body(raw, endpoint.kind)
        endpoint.check(body)
        if header_plan is not None and not acts(header_plan, streaming=bool(body.stream)):
            raise bad_directive(NEEDS_STREAM)
        served = self._models.find(body.model or "")
        request_id = b", ".join(request.requestHeaders.getRawHeaders(b"x-request-id") or ())
        return Accepted(raw, body, served, header_plan, request_id)

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
        try:
            # Two header lines are one with a comma (RFC 9110 section 5.3). Bytes that are no UTF-8 become escapes,
            # which the grammar refuses where they stand.
            plan = self._plan_of(b",".join(lines).decode(errors="backslashreplace"))
        except DirectiveError as error:
            raise bad_directive(str(error)) from None
        require_chunks(request)
        return plan

    def _require_directives(self) -> None:
        if not self._directives:
            raise bad_directive("fault headers are off; start the server with --enable-directives")


def acts(plan: FaultPlan, *, streaming: bool) -> bool:
    """Whether every element of a plan has an effect on a request, streaming or not."""
    return streaming or all(
        element is not None and _acts_without_stream(element) for element in plan.elements
    )


def _acts_without_stream(fault: Fault) -> bool:
    incident = fault.incident
    return acts_without_stream(fault.death) if incident is None else not incident.needs_stream


def acting(plan: FaultPlan | None, *, streaming: bool) -> FaultPlan | None:
    """A model's own plan, if it applies to the request: what needs a stream leaves the others alone."""
    return plan if plan is not None and acts(plan, streaming=streaming) else None


def refuse_leg_keys(header: FaultPlan | None, progress: int) -> None:
    """Refuse a header's key that only a later leg can show, on a request that has passed on no word.

    Raises:
        ApiError: 400 `invalid_fault_directive`.
    """
    key = None if header is None or progress else header.leg_key
    if key is not None:
        raise bad_directive(f"{key} goes with a later leg: this prompt holds no word of an answer")


def refuse_without_effect(fault: Fault, request: LabRequest, *, chat: bool, counts: bool) -> None:
    """Refuse what this endpoint or connection cannot show; `counts`: usage is asked for, or it does not matter.

    Raises:
        ApiError: 400 `invalid_fault_directive`.
    """
    death = fault.death
    if not chat and (death.at == "role" or death.reasoning_key != HEALTHY.reasoning_key):
        raise bad_directive(
            f"{fault.mode}: at=role and reasoning_key are for chat, which has a role frame and deltas"
        )
    miscounts = death.bos_shift or death.usage_off_by != HEALTHY.usage_off_by
    if miscounts and death.usage == HEALTHY.usage and not counts:
        raise bad_directive(
            f"{fault.mode}: bos_shift and usage_off_by need usage: ask for it with stream_options.include_usage"
        )
    if death.close == "tls_raw" and not request.isSecure():
        raise bad_directive(f"{fault.mode}: close=tls_raw needs TLS")


def whole_body(request: LabRequest) -> bytes:
    """The request's body.

    Raises:
        ApiError: 413 for a chunked one that grew past the limit.
    """
    if request.body_too_large:
        raise body_too_large(request.channel.site.max_body_bytes)
    return request.body()


def require_chunks(request: LabRequest) -> None:
    """A fault needs chunked framing.

    Raises:
        ApiError: 400 on HTTP/1.0.
    """
    if request.clientproto != b"HTTP/1.1":
        raise bad_directive("a fault needs HTTP/1.1: without chunks a cut would look like a normal end")
