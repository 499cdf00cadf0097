"""Whether a fault can act on a request at all: on one without a stream, on an endpoint, on a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.faults.death import HEALTHY
from inference_lab.core.stream.http_1_0 import needs_http_1_1

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api
    from inference_lab.core.faults.death import Death
    from inference_lab.core.faults.incident import Incident
    from inference_lab.core.faults.plan import FaultPlan

NEEDS_STREAM: Final = 'this fault needs a streaming request: set "stream": true'


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


def why_invisible(
    death: Death,
    incident: Incident | None = None,
    *,
    api: Api[Any],
    secure: bool,
    counts: bool,
    kept: bool = True,
    has_chunks: bool = True,
) -> str | None:
    """Why an API or a connection cannot show a death, or the incident that it stands for; None if it can.

    `counts`: usage is asked for, or it does not matter; `kept`: the client has not asked to close the connection;
    `has_chunks`: it speaks HTTP/1.1.
    """
    for (key, value), needed in api.lacks.items():
        given = getattr(death, key)
        if getattr(given, "word", given) == value:
            return f"{key}={value} is for {needed}"
    for key, known in (("dialect", api.dialects), ("error", api.errors)):
        if (given := getattr(death, key)) not in {None, "none", *known}:
            return f"{key}={given} is no spelling of {api.name}, expected {', '.join(known)}"
    miscounts = death.bos_shift or death.usage_off_by != HEALTHY.usage_off_by
    if miscounts and death.usage == HEALTHY.usage and not counts:
        return "bos_shift and usage_off_by need usage: ask for it with stream_options.include_usage"
    if death.close == "tls_raw" and not secure:
        return "close=tls_raw needs TLS"
    if not has_chunks and (reason := needs_http_1_1(death, incident)) is not None:
        return reason
    if death.close in {"idle_close", "stale"} and not kept:
        return f"close={death.close} needs a connection that is kept: the request says connection: close"
    return None
