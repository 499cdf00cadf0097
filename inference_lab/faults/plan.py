"""A plan: which fault meets which leg of an answer, from a header, a prompt or a model's TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.faults.directive import DirectiveError, Fault, fault_from_table, parse_directive
from inference_lab.legs import Fate, check, leg_of, words_added

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEALTHY_LEG: Final = "ok"
"""The element of a list whose leg the engine answers."""


class FaultPlan(msgspec.Struct, frozen=True):
    """A validated plan: element j is the fate of leg j, None a healthy one; behind the last all legs are healthy.

    With `every_leg` its one element meets every request instead, whatever has been passed on. Raises DirectiveError
    when built from a list whose legs cannot be told apart.
    """

    elements: tuple[Fault | None, ...]
    every_leg: bool = False

    def __post_init__(self) -> None:
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
    parts: Sequence[str] = [part.strip(" \t") for part in text.split(",")]
    return tuple(None if part == HEALTHY_LEG else parse_directive(part) for part in parts)


def _leg_from_table(place: int, leg: object) -> Fault | None:
    if not isinstance(leg, dict):
        raise DirectiveError(f"legs[{place}] is not a table")
    return None if leg == {"mode": HEALTHY_LEG} else fault_from_table(leg)


def _fate(element: Fault | None) -> Fate:
    if element is None:
        return Fate("text", None)
    return Fate(element.row.content.value, element.after_chunks)
