"""A query's values by their keys: what cannot be understood is refused rather than passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.journal.filters import EVERYTHING, FILTERS, Filter, filter_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def to_remove(request: LabRequest, everything: str, allowed: Sequence[str] = FILTERS) -> Filter:
    """What a DELETE is to remove: all there is only where the query says `all=true`, which `everything` puts in words.

    Raises:
        ApiError: 400 for a query that names nothing, or something else.
    """
    query = query_of(request)
    says_all = query.pop("all", None)
    try:
        wanted = filter_of(query, allowed)
    except ValueError as error:
        raise refused(error) from None
    if says_all not in {None, "true"}:
        raise invalid_request(f"all: is {says_all!r:.60}, expected true", "all")
    if wanted == EVERYTHING and says_all is None:
        raise invalid_request(f"no filter: to {everything} say all=true", "all")
    if wanted != EVERYTHING and says_all is not None:
        raise invalid_request("all: goes without a filter", "all")
    return wanted


def refused(error: ValueError) -> ApiError:
    """A 400 from a sentence that begins with the key it is about."""
    message = str(error)
    return invalid_request(message, message.partition(":")[0])
