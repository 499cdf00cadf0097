"""Which rows are meant: the filters of `GET` and `DELETE /lab/journal`, and of `inference-lab journal`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from inference_lab.core.faults.death import CLOSES, Close
from inference_lab.core.identity import TEST_ID, TEST_ID_EXPECTED
from inference_lab.core.journal.row import Unplanned, cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILTERS: Final = ("prompt", "tag", "request_id", "test", "trigger", "ending", "since")
MOST_WAIT_S: Final = 60.0
_MOST_COUNT: Final = 1_000_000
_PLACE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,2})?)-([0-9]{1,18})", re.ASCII)
_TRIGGERS: Final = ("header", "prompt", "config", "echo", "engine")
_ENDINGS: Final = (
    *dict.fromkeys([*CLOSES, *(close.value for close in Close)]),
    *(ending.value for ending in Unplanned),
)
_FORMS: Final = {
    "prompt": (re.compile("[0-9a-f]{16}"), "16 hex digits in lower case"),
    "tag": (re.compile("[a-z]{2}"), "two lower-case letters"),
    "test": (TEST_ID, TEST_ID_EXPECTED),
    "trigger": (re.compile("|".join(_TRIGGERS)), ", ".join(_TRIGGERS)),
    "ending": (re.compile("|".join(_ENDINGS)), ", ".join(_ENDINGS)),
}
"""What no row can have would be waited for in vain: how a value must look, and how that is said."""


class Filter(msgspec.Struct, frozen=True):
    """What a row must be; None admits any. `since` is Unix seconds, the earliest time of the request."""

    prompt: str | None = None
    tag: str | None = None
    request_id: str | None = None
    test: str | None = None
    trigger: str | None = None
    ending: str | None = None
    since: float | None = None


EVERYTHING: Final = Filter()


class Cursor(NamedTuple):
    """Where a row stands among the others: rows are told in this order."""

    time: float
    id: int

    def __str__(self) -> str:
        """As `after` takes it."""
        return f"{self.time!r}-{self.id}"


class Part(msgspec.Struct, frozen=True):
    """Of the rows that match, at most `limit`, after the one at `after`; None is no bound."""

    limit: int | None = None
    after: Cursor | None = None


class Wait(msgspec.Struct, frozen=True):
    """Answer once `count` rows that match have ended, after `seconds` at the latest."""

    seconds: float
    count: int


def filter_of(query: Mapping[str, str], allowed: Sequence[str] = FILTERS) -> Filter:
    """A filter from a query's values, each key one of `allowed`.

    Raises:
        ValueError: a sentence that begins with the key.
    """
    for key, (form, expected) in _FORMS.items():
        if key in query and not form.fullmatch(query[key]):
            raise ValueError(f"{key}: is {query[key]!r:.60}, expected {expected}")
    values: dict[str, str | float] = {}
    for key, value in query.items():
        if key not in allowed:
            raise ValueError(f"{key:.60}: no such filter, expected {', '.join(allowed)}")
        values[key] = _number(key, value, most=math.inf) if key == "since" else cut(value)
    return msgspec.convert(values, Filter)


def wait_of(seconds: str | None, count: str | None) -> Wait | None:
    """The wait that `wait=S&count=N` asks for, if it does.

    Raises:
        ValueError: a sentence that begins with the key.
    """
    if seconds is None:
        if count is not None:
            raise ValueError("count: goes with wait, as in wait=10&count=2")
        return None
    wanted = 1 if count is None else int(_number("count", count, most=_MOST_COUNT, whole=True))
    return Wait(_number("wait", seconds, most=MOST_WAIT_S), wanted)


def part_of(limit: str | None, after: str | None) -> Part:
    """The part that `limit=N&after=PLACE` asks for.

    Raises:
        ValueError: a sentence that begins with the key.
    """
    most = None if limit is None else int(_number("limit", limit, most=_MOST_COUNT, least=1, whole=True))
    if after is None:
        return Part(most)
    found = _PLACE.fullmatch(after)
    if found is None:
        raise ValueError(f"after: is {after!r:.60}, expected what an answer has as its next")
    return Part(most, Cursor(float(found[1]), int(found[2])))


def _number(key: str, text: str, *, most: float, least: int = 0, whole: bool = False) -> float:
    try:
        value = float(text) if len(text) <= 30 and text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not (least <= value <= most and value < math.inf) or (whole and not text.isdigit()):
        limit = "" if most == math.inf else f" to {most:.0f}"
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{key}: is {text!r:.60}, expected {kind} from {least}{limit}")
    return value
