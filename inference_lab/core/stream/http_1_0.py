"""What HTTP/1.0 cannot show: it has no chunks to break, and its connection ends with the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.core.faults.death import HEALTHY

if TYPE_CHECKING:
    from inference_lab.core.faults.death import Death
    from inference_lab.core.faults.incident import Incident

_NO_CHUNKS: Final = "needs HTTP/1.1: HTTP/1.0 has no chunks"
_NOT_KEPT: Final = "needs HTTP/1.1: an HTTP/1.0 connection ends with its response"

UNSEEN: Final = (
    ("chunk_error", ("bad_size", "no_crlf", "response_inside", "trailer"), _NO_CHUNKS),
    ("close", ("partial_terminator", "torn_chunk"), _NO_CHUNKS),
    ("close", ("stale", "idle_close"), _NOT_KEPT),
    ("length", ("both",), _NO_CHUNKS),
)
"""Keys, the values of theirs that need HTTP/1.1, and what for."""


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
