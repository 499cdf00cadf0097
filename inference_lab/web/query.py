"""A query's values by their keys: what cannot be understood is refused rather than passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from inference_lab.errors import invalid_request

if TYPE_CHECKING:
    from inference_lab.wire.request import LabRequest


def query_of(request: LabRequest) -> dict[str, str]:
    """The query's values.

    Not Twisted's `args`: those leave out a key without `=`, and what follows a semicolon.

    Raises:
        ApiError: 400 for a key without a value or given twice, and for what is not UTF-8.
    """
    found: dict[str, str] = {}
    for part in filter(None, request.uri.partition(b"?")[2].split(b"&")):
        raw_key, equals, raw_value = part.partition(b"=")
        try:
            key, value = (unquote_to_bytes(raw.replace(b"+", b" ")).decode() for raw in (raw_key, raw_value))
        except UnicodeDecodeError:
            raise invalid_request("the query is not UTF-8") from None
        if not equals:
            raise invalid_request(f"{key:.60}: without a value, expected {key:.60}=…", key[:60])
        if key in found:
            raise invalid_request(f"{key:.60}: given more than once", key[:60])
        found[key] = value
    return found
