"""The query of a `DELETE` below `/lab`: what it names is forgotten, and everything only when that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.errors import invalid_request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from re import Pattern

    from inference_lab.wire.http import LabRequest


def deletion_filters(request: LabRequest, known: Mapping[str, tuple[Pattern[str], str]]) -> dict[str, str]:
    """The filters of a request, of which `known` says what each may be; none of them for `?all=true`.

    Raises:
        ApiError: 400 for an unknown or malformed filter, one given twice, none at all, or one beside `all`.
    """
    filters: dict[str, str] = {}
    everything = False
    for raw, values in (request.args or {}).items():
        name, text = raw.decode(errors="backslashreplace"), values[0].decode(errors="backslashreplace")
        if name != "all" and name not in known:
            raise invalid_request(
                f"no filter {name!r:.80}, expected {', '.join(known)}, or all=true", "query"
            )
        if len(values) > 1:
            raise invalid_request(f"{name} is given {len(values)} times, expected once", name)
        if name == "all":
            if text != "true":
                raise invalid_request(f"all is {text!r:.80}, expected true", name)
            everything = True
            continue
        pattern, expected = known[name]
        if not pattern.fullmatch(text):
            raise invalid_request(f"{name} is {text!r:.80}, expected {expected}", name)
        filters[name] = text
    if everything == bool(filters):
        what = "both filters and all=true" if everything else "no filter"
        raise invalid_request(f"{what}, expected {' or '.join(known)}, or all=true for everything", "query")
    return filters
