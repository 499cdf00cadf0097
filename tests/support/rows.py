"""A journal's row that says little."""

from __future__ import annotations

from typing import Any

from inference_lab.core.journal.row import Row

NOW = 1_000_000.0


def row(time: float = NOW, **more: Any) -> Row:
    base: dict[str, Any] = {
        "state": "ended",
        "method": "POST",
        "path": "/",
        "headers": {},
        "other_headers": (),
        "request_id": None,
    }
    return Row(time=time, **{**base, **more})
