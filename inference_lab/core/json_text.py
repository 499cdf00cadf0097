"""JSON as text: the two ways it is written into prompts, and a scanner for values that may break off."""

import json
import re
from enum import Enum
from typing import Final

import msgspec

DEPTH_LIMIT: Final = 500
"""Deepest nesting the scanner follows, well inside what the parsers take without a RecursionError."""

_TOKEN: Final = re.compile(r'[ \t\n\r]*(?:([\[{])|([\]}])|(")|([-+.0-9A-Za-z]+)|([:,]))')
_STRING_STOP: Final = re.compile(r'["\\]')
_TORN_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\(|u[0-9A-Fa-f]{0,3})\Z")


def compact(value: object) -> str:
    """JSON without blanks, as tools stand in a prompt.

    Raises:
        ValueError: nested too deeply to be written.
    """
    return _dump(value, (",", ":"))


def spaced(value: object) -> str:
    """JSON with a blank after `,` and `:`, as models write arguments.

    Raises:
        ValueError: nested too deeply to be written.
    """
    return _dump(value, (", ", ": "))


def quoted(text: str) -> str:
    """A text as it stands between the quotes of a JSON string, what is not ASCII unescaped."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _dump(value: object, separators: tuple[str, str]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=separators)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def escape_rest(text: str) -> str:
    """What closes an escape that the text of a JSON string breaks off in; '' where it breaks off in none."""
    found = _TORN_ESCAPE.search(text)
    return "" if not found else "\\" if found[1] == "" else "0" * (5 - len(found[1]))


def without_surrogates(text: str) -> str:
    """JSON escapes can make lone surrogates, which are no text: U+FFFD instead."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unquoted(text: str) -> str:
    """The text that stands for itself between the quotes of a JSON string; a lone surrogate is U+FFFD.

    Raises:
        ValueError: a broken escape.
    """
    return without_surrogates(json.loads(f'"{text}"', strict=False))


class Ends(Enum):
    """How a scanned text ends."""

    WHOLE = "the value is complete"
    IN_KEY = "inside an object's key"
    IN_VALUE = "inside a string that is a value"
    OPEN = "elsewhere inside the value, or before it"
    BROKEN = "something that is no JSON"


class Scan(msgspec.Struct, frozen=True):
    """How a scan ended, the index after what was read, and where the open string's text begins."""

    ends: Ends
    end: int
    string: int = -1


def scan(text: str, start: int = 0) -> Scan:
    """Read one JSON value from `start` by its outline of strings and brackets, its grammar left to a parser.

    Stops at the first character that cannot stand outside a string, so scans that start inside one another's
    strings do not all run to the end. A number or word at top level is whole where its characters end.
    """
    brackets: list[str] = []
    before = ""
    place = start
    while found := _TOKEN.match(text, place):
        opening, closing, quote, scalar, mark = found.groups()
        place = found.end()
        if opening:
            if len(brackets) == DEPTH_LIMIT:
                return Scan(Ends.BROKEN, place)
            brackets.append(opening)
        elif closing:
            if not brackets or (brackets.pop() == "{") != (closing == "}"):
                return Scan(Ends.BROKEN, place)
        elif quote:
            end = string_end(text, place)
            if end < 0:
                key = before == "{" or (before == "," and brackets[-1:] == ["{"])
                return Scan(Ends.IN_KEY if key else Ends.IN_VALUE, len(text), place)
            place = end
        elif mark and not brackets:
            return Scan(Ends.BROKEN, place)
        if not brackets:
            return Scan(Ends.WHOLE, place)
        before = opening or closing or quote or scalar or mark
    rest = text[place : place + 8]
    return Scan(
        Ends.OPEN if not rest.strip(" \t\n\r") and place + len(rest) == len(text) else Ends.BROKEN, place
    )


def is_whole(text: str) -> bool:
    """Whether a text is one JSON value, blanks around it allowed, and nothing else."""
    found = scan(text)
    return found.ends is Ends.WHOLE and not text[found.end :].strip(" \t\n\r")


def string_end(text: str, place: int) -> int:
    """Index after the closing quote of the string whose text begins at `place`; -1 if it does not close."""
    while found := _STRING_STOP.search(text, place):
        place = found.end()
        if found[0] == '"':
            return place
        place += 1
    return -1
