"""`DELETE /lab/attempts`: counts are forgotten by what they belong to, and all of them only when that is said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from inference_lab.errors import invalid_request
from inference_lab.identity import TEST_ID, TEST_ID_EXPECTED
from inference_lab.web.query import query_of

if TYPE_CHECKING:
    from inference_lab.storage.attempts import Attempts
    from inference_lab.wire.request import LabRequest

_FILTERS: Final = {
    "test": (TEST_ID, TEST_ID_EXPECTED),
    "prompt": (re.compile("[0-9a-f]{16}"), "16 hex digits in lower case"),
    "all": (re.compile("true"), "true"),
}


def forget_attempts(request: LabRequest, attempts: Attempts) -> object:
    """Forget what the query names.

    Raises:
        ApiError: 400 for a query that names nothing, or something else; 503 where nothing can be forgotten.
    """
    filters: dict[str, str] = {}
    for name, text in query_of(request).items():
        if name not in _FILTERS:
            raise invalid_request(f"{name[:60]}: no such filter, expected {', '.join(_FILTERS)}", name[:60])
        pattern, expected = _FILTERS[name]
        if not pattern.fullmatch(text):
            raise invalid_request(f"{name}: is {text[:60]!r}, expected {expected}", name)
        filters[name] = text
    if not filters:
        raise invalid_request("no filter: to forget all attempts say all=true", "all")
    if filters.pop("all", None) and filters:
        raise invalid_request("all: goes without a filter", "all")
    return {"deleted": attempts.delete(**filters)}
