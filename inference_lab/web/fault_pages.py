"""`GET /lab/faults`: what `inference-lab faults` prints, from the server that will do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.apis.table import APIS
from inference_lab.core.errors import bad_directive, invalid_request
from inference_lab.core.faults.listing import listing
from inference_lab.core.stream.preview import preview_in_turns
from inference_lab.web.query import query_of
from inference_lab.wire.turns import in_slices

if TYPE_CHECKING:
    from inference_lab.core.faults.incident import Incidents
    from inference_lab.wire.request import LabRequest


def fault_list(incidents: Incidents) -> object:
    """The modes, axes, error variants and constraints there are."""
    return listing(incidents)


async def fault_page(request: LabRequest, directive: str, incidents: Incidents) -> object:
    """The script of a directive, on chat unless the query says another API by its name: `endpoint=messages`.

    Raises:
        ApiError: 400 for a directive or an endpoint that is none.
    """
    query = query_of(request)
    endpoint = query.pop("endpoint", "chat")
    for key in query:
        raise invalid_request(f"{key:.60}: no such key, expected endpoint", key[:60])
    if endpoint not in APIS:
        raise invalid_request(f"endpoint: no such one, expected {' or '.join(APIS)}", "endpoint")
    try:
        turns = preview_in_turns(directive, api=APIS[endpoint], incidents=incidents)
        return await in_slices(request.site.pacer, turns)
    except ValueError as error:
        raise bad_directive(str(error), param="directive") from None
