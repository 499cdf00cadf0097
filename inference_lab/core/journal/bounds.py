"""How much of a text is kept: one rule for rows and for the log's lines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEXT_BYTES: Final = 1024
"""Of a text in a row."""
NAME_BYTES: Final = 64
"""Of a header's or a field's name."""
MOST_NAMES: Final = 64
LINE_BYTES: Final = 4096
"""Of a line in the log."""
TRACEBACK_BYTES: Final = 65_536
"""Of a line in the log with the traceback behind it."""

_MARK: Final = "…"
_MARK_BYTES: Final = len(_MARK.encode())


def cut(text: str, most_bytes: int = TEXT_BYTES) -> str:
    """The text, or as much of it as comes to `most_bytes` of UTF-8 together with the `…` that says so.

    What has been cut is not cut again.
    """
    if len(text) <= most_bytes and (text.isascii() or len(_encoded(text)) <= most_bytes):
        return text
    return _encoded(text[:most_bytes])[: most_bytes - _MARK_BYTES].decode(errors="ignore") + _MARK


def cut_texts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row's fields, those that are texts cut; lists and tables are bounded where they are made."""
    return {name: cut(value) if type(value) is str else value for name, value in facts.items()}


def cut_names(names: Sequence[str]) -> tuple[str, ...]:
    """The first names, each cut, and how many there are beside them."""
    kept = [cut(name, NAME_BYTES) for name in names[:MOST_NAMES]]
    return tuple(kept) if len(names) <= MOST_NAMES else (*kept, and_more(len(names) - MOST_NAMES))


def and_more(count: int) -> str:
    """The mark of a list that goes on."""
    return f"{_MARK} and {count} more"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
