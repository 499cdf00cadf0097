"""A plan: which fault meets which leg of an answer, from a header, a prompt or a model's TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inference_lab.faults.content import words_in
from inference_lab.faults.death import ALL, HEALTHY
from inference_lab.faults.directive import DirectiveError, Fault, fault_from_element, fault_from_table
from inference_lab.faults.grammar import Element, GrammarError, parse
from inference_lab.faults.modes import OK
from inference_lab.legs import Fate, check, leg_of, words_added

if TYPE_CHECKING:
    from collections.abc import Mapping


class FaultPlan(msgspec.Struct, frozen=True):
    """A validated plan: element j is the fate of leg j, None a healthy one; behind the last all legs are healthy.

    With `every_leg` its one element meets every request instead, whatever has been passed on. Raises DirectiveError
    when built from a list whose legs cannot be told apart.
    """

    elements: tuple[Fault | None, ...]
    every_leg: bool = False

    def __post_init__(self) -> None:
        for place, element in enumerate(self.elements[:-1]):
            if element is not None and element.death.sequence.word != "none":
                raise DirectiveError(f"element {place} of the list has a sequence: only the last may")
        try:
            check(self._words_added())
        except ValueError as error:
            raise DirectiveError(str(error)) from None

    def _words_added(self) -> list[int | None]:
        return words_added([_fate(element) for element in self.elements])

    def fault_for(self, progress: int) -> Fault | None:
        """The fault of the leg that begins `progress` whole words into the answer; None: the engine answers."""
        leg = 0 if self.every_leg else leg_of(progress, self._words_added())
        return self.elements[leg] if leg < len(self.elements) else None


def plan_from_header(text: str) -> FaultPlan:
    """Read a header value: one element meets the request that carries it, a list each leg in its turn.

    Raises:
        DirectiveError: a malformed element, or a list whose legs cannot be told apart.
    """
    elements = _elements(text)
    return FaultPlan(elements, every_leg=len(elements) == 1)


def plan_from_prompt(text: str) -> FaultPlan:
    """Read a prompt's directive, which comes with every leg: a single element is the fate of leg 0 only.

    Raises:
        DirectiveError: see `plan_from_header`.
    """
    return FaultPlan(_elements(text))


def plan_from_table(table: Mapping[str, object]) -> FaultPlan:
    """Read a `[fault]` table: `mode` and its settings meet every request, `legs` (a list of tables) each leg.

    Raises:
        DirectiveError: a malformed table, both forms at once, an empty list, or legs that cannot be told apart.
    """
    if "legs" not in table:
        return FaultPlan((fault_from_table(table),), every_leg=True)
    legs = table["legs"]
    if len(table) > 1:
        raise DirectiveError("legs goes without other keys: give each leg its own")
    if not isinstance(legs, list) or not legs:
        raise DirectiveError("legs is not a list of at least one table")
    return FaultPlan(tuple(_leg_from_table(place, leg) for place, leg in enumerate(legs)))


def _elements(text: str) -> tuple[Fault | None, ...]:
    try:
        elements = parse(text)
    except GrammarError as error:
        raise DirectiveError(str(error)) from None
    return tuple(None if _is_engine(element) else fault_from_element(element) for element in elements)


def _is_engine(element: Element) -> bool:
    """`ok` alone, or with only a name, is the engine; with any other key it is a death like the others."""
    return element.mode == OK and all(key == "name" for key, _ in element.settings)


def _leg_from_table(place: int, leg: object) -> Fault | None:
    if not isinstance(leg, dict):
        raise DirectiveError(f"legs[{place}] is not a table")
    is_engine = leg.get("mode") == OK and leg.keys() <= {"mode", "name"}
    return None if is_engine else fault_from_table(leg)


def _fate(element: Fault | None) -> Fate:
    """What an element adds, in words of its channel; without end where it runs to the end of the answer."""
    if element is None:
        return Fate("text", None)
    death = element.death
    if death.at != "frames" or death.status != HEALTHY.status or death.answer_as != HEALTHY.answer_as:
        return Fate("text", 0)
    if death.after_chunks == ALL or death.then == "rest":
        return Fate("text", None)
    words = words_in(int(death.after_chunks), death.tokens_per_frame)
    return Fate("call" if death.content == "tool_call" else "text", words)
