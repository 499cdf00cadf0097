"""Whether a fault can act on a request at all: on one without a stream, on an endpoint, on a connection."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.faults.death import HEALTHY

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api
    from inference_lab.core.faults.death import Death
    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.faults.incident import Incident
    from inference_lab.core.faults.plan import FaultPlan

_NO_CHUNKS: Final = "needs HTTP/1.1: HTTP/1.0 has no chunks"
_NOT_KEPT: Final = "needs HTTP/1.1: an HTTP/1.0 connection ends with its response"

UNSEEN: Final = (
    ("chunk_error", ("bad_size", "no_crlf", "response_inside", "trailer"), _NO_CHUNKS),
    ("close", ("partial_terminator", "torn_chunk"), _NO_CHUNKS),
    ("close", ("stale", "idle_close"), _NOT_KEPT),
    ("length", ("both",), _NO_CHUNKS),
)
"""Keys, the values of theirs that need HTTP/1.1, and what for."""


class Connection(msgspec.Struct, frozen=True):
    """What a connection can show: whether it has TLS, goes on after the response, and speaks HTTP/1.1."""

    is_secure: bool = True
    is_kept: bool = True
    has_chunks: bool = True


ANY_CONNECTION: Final = Connection()
NEEDS_STREAM: Final = 'this fault needs a streaming request: set "stream": true'


@lru_cache(maxsize=256)
def applies(plan: FaultPlan, *, streaming: bool) -> bool:
    """Whether every element of a plan has an effect on a request, streaming or not.

    The engine, as the fate of some leg of a list, answers either kind; and a plan that is nothing else, but says whose
    test it is, has done its work.
    """
    faults = [element for element in plan.elements if not element.is_engine]
    has_effect = bool(faults) or plan.test is not None
    return streaming or (has_effect and all(fault.acts_without_stream for fault in faults))


def as_it_applies(plan: FaultPlan | None, *, streaming: bool) -> FaultPlan | None:
    """A model's own plan, if any of it applies to the request: what needs a stream leaves the others alone."""
    if plan is None or applies(plan, streaming=streaming):
        return plan
    if any(fault.acts_without_stream and not fault.is_engine for fault in plan.elements):
        return msgspec.structs.replace(plan, whole=True)
    return None


@lru_cache(maxsize=256)
def why_invisible(
    fault: Fault,
    *,
    api: Api[Any],
    counts: bool,
    connection: Connection = ANY_CONNECTION,
) -> str | None:
    """Why an API or a connection cannot show a fault, or the incident that it stands for; None if it can.

    `counts`: usage is asked for, or it does not matter.
    """
    death = fault.death
    for (key, value), needed in api.lacks.items():
        given = getattr(death, key)
        if getattr(given, "word", given) == value:
            return f"{key}={str(value).lower() if isinstance(value, bool) else value} is for {needed}"
    for key, known in (("dialect", api.dialects), ("error", api.errors)):
        if (given := getattr(death, key)) not in {None, "none", *known}:
            return f"{key}={given} is no spelling of {api.name}, expected {', '.join(known)}"
    miscounts = death.bos_shift or death.usage_off_by != HEALTHY.usage_off_by
    if miscounts and death.usage == HEALTHY.usage and not counts:
        return "bos_shift and usage_off_by need usage: ask for it with stream_options.include_usage"
    if death.close == "tls_raw" and not connection.is_secure:
        return "close=tls_raw needs TLS"
    if not connection.has_chunks and (reason := needs_http_1_1(death, fault.incident)) is not None:
        return reason
    if death.close in {"idle_close", "stale"} and not connection.is_kept:
        return f"close={death.close} needs a connection that is kept: the request says connection: close"
    return None


def needs_http_1_1(death: Death, incident: Incident | None = None) -> str | None:
    """Why a death, or the incident that it stands for, cannot be shown on HTTP/1.0; None if it can."""
    for key, words, reason in UNSEEN:
        value = getattr(death, key)
        if value != getattr(HEALTHY, key) and value in words:
            return f"{key}={value} {reason}"
    if incident is None:
        return None
    if incident.framing == "both":
        return f"head.framing=both {_NO_CHUNKS}"
    if incident.framing == "chunked" and incident.has_raw:
        return f"raw {_NO_CHUNKS}"
    return None
