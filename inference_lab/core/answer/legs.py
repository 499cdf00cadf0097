"""Which leg of an answer a request is, by the words already passed on; and a prompt's directive."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import Final

import msgspec

from inference_lab.core.answer.pieces import Channel
from inference_lab.core.json_text import string_end

_DIRECTIVE: Final = "<<fault:"
_STOP: Final = re.compile('"|>>')


class LegSpan(msgspec.Struct, frozen=True):
    """What one element of a list does to its leg, as far as words go.

    `words` it has frames for, a call's announcement counted as one; None for a leg that runs to the end of the answer.
    What only a later leg does: `overlap` repeats so many words of the leg before, `skip` leaves so many out, `silent`
    says none. `counted`: it is passed over after some requests, so that the next element need not be told from it by
    words.
    """

    channel: Channel
    words: int | None
    overlap: int = 0
    skip: int = 0
    silent: bool = False
    counted: bool = False


class LegError(ValueError):
    """A list whose legs cannot be told apart: the place of the element at fault, and what is wrong with it."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(f"element {place} of the list {reason}")
        self.place = place
        self.reason = reason


def words_per_leg(spans: Sequence[LegSpan]) -> list[int | None]:
    """The words each leg adds, None without end: those it has frames for, but for the call's announcement.

    A call is announced once, by the first leg that is in it; later legs of a list continue its argument. A counted
    element that has no end, or adds no word, adds 0: it shares its place with the next.
    """
    added: list[int | None] = []
    announced = later = False
    for span in spans:
        silent = later and span.silent
        announces = span.channel == "call" and not (announced or silent)
        announced = announced or announces
        words: int | None = 0
        if not silent:
            words = None if span.words is None else max(0, span.words - announces)
            words = words - span.overlap + span.skip if words is not None and later else words
        words = max(0, words or 0) if span.counted else words
        later = later or words != 0
        added.append(words)
    return added


def check(added: Sequence[int | None], counted: AbstractSet[int] = frozenset()) -> None:
    """Refuse a list whose legs cannot be told apart, by words or because the element of a place is `counted`.

    A list of one has no next leg and always passes.

    Raises:
        LegError: in a list of two or more an element adds no word, or one that is not the last has no end.
    """
    for place, words in enumerate(added if len(added) > 1 else ()):
        if place in counted:
            continue
        if words is None and place < len(added) - 1:
            raise LegError(place, "never ends: only the last may be without a death")
        if words is not None and words < 1:
            raise LegError(place, "adds no word: the next leg could not be told from it without times=N")


def leg_of(progress: int, added: Sequence[int | None]) -> int:
    """Which leg a request with so many words after it is: 0 only for none, else how many elements' words are there.

    An element that adds none makes no leg of its own.
    """
    if progress == 0:
        return 0
    ended = added.index(None) if None in added else len(added)
    boundaries = accumulate(words for words in added[:ended] if words)
    return max(1, sum(boundary <= progress for boundary in boundaries))


def element_index(leg: int, added: Sequence[int | None]) -> int:
    """The place in the list of the first element that is a leg's fate; past the list, its length."""
    for place, words in enumerate(added):
        if leg == 0:
            return place
        leg -= words != 0
    return len(added)


def directive_in(proper: str) -> str | None:
    """The text of the last `<<fault:…>>` of a prompt proper, or None. `>>` in quotes does not end it.

    Raises:
        ValueError: the last one does not close.
    """
    start = proper.rfind(_DIRECTIVE)
    if start < 0:
        return None
    place = start = start + len(_DIRECTIVE)
    while found := _STOP.search(proper, place):
        if found[0] == ">>":
            return proper[start : found.start()]
        place = string_end(proper, found.end())
        if place < 0:
            break
    raise ValueError("<<fault: without its >>")
