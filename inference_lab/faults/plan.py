"""A plan: which fault meets which leg of an answer, from a header, a prompt or a model's TOML."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from inference_lab.faults.content import words_in
from inference_lab.faults.death import ALL, HEALTHY
from inference_lab.faults.directive import (
    DirectiveError,
    Fault,
    MalformedError,
    fault_from_element,
    fault_from_table,
)
from inference_lab.faults.grammar import Element, GrammarError, parse
from inference_lab.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.faults.leg_keys import leg_key, on_leg
from inference_lab.faults.modes import OK
from inference_lab.progress.legs import Fate, check, leg_of, words_added

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from inference_lab.answers.pieces import Channel


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
            if element is not None and element.death.restart:
                raise DirectiveError(f"element {place} of the list has restart: only the last may")
        only = self.elements[0] if len(self.elements) == 1 and not self.every_leg else None
        key = only and leg_key(only.death)
        if key:
            raise DirectiveError(f"{key} is for later legs, and the list has the first one only")
        try:
            check(self.words_per_leg())
        except ValueError as error:
            raise DirectiveError(str(error)) from None

    def words_per_leg(self) -> list[int | None]:
        """The words that each leg passes on; None: all the rest."""
        return words_added([_fate(element, place) for place, element in enumerate(self.elements)])

    def fault_for(self, progress: int) -> Fault | None:
        """The fault of the leg that begins `progress` whole words into the answer; None: the engine answers."""
        leg = 0 if self.every_leg else leg_of(progress, self.words_per_leg())
        fault = self.elements[leg] if leg < len(self.elements) else None
        death = fault and on_leg(fault.death, progress)
        if fault is None or death is None or death is fault.death:
            return fault if death else None
        return msgspec.structs.replace(fault, death=death)

    def leg_for(self, progress: int) -> int | None:
        """The number of the leg that begins there; None where the plan meets each request alike."""
        return None if self.every_leg else leg_of(progress, self.words_per_leg())

    @property
    def leg_key(self) -> str | None:
        """The leg-only key of a plan that meets every request, where it has one."""
        fault = self.elements[0] if self.every_leg else None
        return None if fault is None else leg_key(fault.death)


def plan_from_header(text: str, incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a header value: one element meets the request that carries it, a list each leg in its turn.

    `incidents` are modes too, by their names.

    Raises:
        DirectiveError: a malformed element, or a list whose legs cannot be told apart.
    """
    with _listed(incidents):
        elements = _elements(text, incidents)
        return FaultPlan(elements, every_leg=len(elements) == 1)


def plan_from_prompt(text: str, incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a prompt's directive, which comes with every leg: a single element is the fate of leg 0 only.

    Raises:
        DirectiveError: see `plan_from_header`.
    """
    with _listed(incidents):
        return FaultPlan(_elements(text, incidents))


def plan_from_table(table: Mapping[str, object], incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a `[fault]` table: `mode` and its settings meet every request, `legs` (a list of tables) each leg.

    Raises:
        DirectiveError: a malformed table, both forms at once, an empty list, or legs that cannot be told apart.
    """
    with _listed(incidents):
        if "legs" not in table:
            return FaultPlan((fault_from_table(table, incidents),), every_leg=True)
        legs = table["legs"]
        if len(table) > 1:
            raise DirectiveError("legs goes without other keys: give each leg its own")
        if not isinstance(legs, list) or not legs:
            raise DirectiveError("legs is not a list of at least one table")
        return FaultPlan(tuple(_leg_from_table(place, leg, incidents) for place, leg in enumerate(legs)))


@contextmanager
def _listed(incidents: Incidents) -> Iterator[None]:
    """Let a refusal list the incidents among the valid modes."""
    try:
        yield
    except MalformedError as error:
        raise MalformedError(error.reason, incidents) from None


def _elements(text: str, incidents: Incidents) -> tuple[Fault | None, ...]:
    try:
        elements = parse(text)
    except GrammarError as error:
        raise MalformedError(str(error)) from None
    return tuple(
        None if _is_engine(element) else fault_from_element(element, incidents) for element in elements
    )


def _is_engine(element: Element) -> bool:
    """`ok` alone, or with only a name, is the engine; with any other key it is a death like the others."""
    return element.mode == OK and all(key == "name" for key, _ in element.settings)


def _leg_from_table(place: int, leg: object, incidents: Incidents) -> Fault | None:
    if not isinstance(leg, dict):
        raise DirectiveError(f"legs[{place}] is not a table")
    is_engine = leg.get("mode") == OK and leg.keys() <= {"mode", "name"}
    return None if is_engine else fault_from_table(leg, incidents)


def _fate(element: Fault | None, place: int) -> Fate:
    """What an element adds, in words of its channel; without end where it runs to the end of the answer."""
    if element is None:
        return Fate("text", None)
    if element.incident is not None:
        return Fate("text", element.incident.words)
    death = element.death
    if place and (death.instant_stop or death.reject != HEALTHY.reject):
        return Fate("text", 0)
    if death.at != "frames" or death.status != HEALTHY.status or death.answer_as != HEALTHY.answer_as:
        return Fate("text", 0)
    if death.after_chunks == ALL or death.then == "rest":
        return Fate("text", None)
    words = words_in(int(death.after_chunks), death.tokens_per_frame) + death.text_in_finish
    if death.content == "tool_call_parallel":
        words -= 1  # the second announcement
    channel: Channel = "call" if death.content.startswith("tool_call") else "text"
    # On the first leg there is nothing to repeat and nothing to leave out.
    return Fate(channel, words, overlap=death.overlap if place else 0, skip=death.skip if place else 0)
