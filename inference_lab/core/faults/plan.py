"""A plan: which fault meets which leg of an answer, from a header, a prompt or a model's TOML."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from inference_lab.core.answer.legs import LegError, LegSpan, check, element_index, leg_of, words_per_leg
from inference_lab.core.faults.death import ALL, HEALTHY
from inference_lab.core.faults.directive import (
    DirectiveError,
    Fault,
    MalformedError,
    fault_from_element,
    fault_from_table,
)
from inference_lab.core.faults.grammar import MOST_ELEMENTS, GrammarError, parse
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.leg_keys import leg_key, on_leg, replaced_key
from inference_lab.core.stream.content import words_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from inference_lab.core.answer.pieces import Channel

Take: TypeAlias = Callable[[int, int], bool]
"""Counts a request for the element at a place of the list; False when its `times`, the second number, are used up."""


def first_time(place: int, times: int) -> bool:
    """What the first request of a prompt finds: nothing is used up yet."""
    del place, times
    return True


class FaultPlan(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """A validated plan: element j is the fate of leg j; after the last all legs are healthy.

    An element with `times` is the fate of so many requests, then the next element stands in its place. With
    `every_leg` the one element meets every request instead, whatever has been passed on. With `whole` the request asked
    for no stream, and an element that needs one leaves it to the engine. Raises DirectiveError when built from a list
    whose legs cannot be told apart, or that has two test ids.
    """

    elements: tuple[Fault, ...]
    every_leg: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        for place, element in enumerate(self.elements[:-1]):
            if element.death.sequence.word != "none":
                raise DirectiveError("has a sequence: only the last may", place=place)
            if element.death.restart:
                raise DirectiveError("has restart: only the last may", place=place)
        only = self.elements[0] if len(self.elements) == 1 and not self.every_leg else None
        key = only and leg_key(only.death)
        if key:
            raise DirectiveError(f"{key} is for later legs, and the list has the first one only")
        ids = sorted(set(self._tests()))
        if len(ids) > 1:
            raise DirectiveError(f"the list has the test ids {ids[0]} and {ids[1]}: a request is of one test")
        counted = {place for place, element in enumerate(self.elements) if element.death.times is not None}
        added = self.words_per_leg()
        try:
            check(added, counted)
        except LegError as error:
            raise DirectiveError(error.reason, place=error.place) from None
        # The first leg is met by all elements up to the one that adds words; what only later legs meet stands after it.
        first = next((place for place, words in enumerate(added) if words != 0), len(added))
        for element in self.elements[first + 1 :]:
            _refuse_replaced(element)
        for place, element in enumerate(self.elements[: first + 1] if not self.every_leg else ()):
            if place in counted and on_leg(element.death, is_later=False) is None:
                raise DirectiveError(
                    f"has {leg_key(element.death)}, which the first leg cannot show, so that its times"
                    " would never be used up",
                    place=place,
                )

    def words_per_leg(self) -> list[int | None]:
        """The words that each leg passes on; None: all the rest."""
        return words_per_leg([_span(element) for element in self.elements])

    def fault_for(self, progress: int, take: Take = first_time) -> Fault | None:
        """The fault of the leg that begins `progress` whole words into the answer; None: the engine answers.

        `take` is asked for an element with `times`, and may raise what it likes where it cannot count.
        """
        begin = 0
        if not self.every_leg:
            added = self.words_per_leg()
            begin = element_index(leg_of(progress, added), added)
        for place, fault in enumerate(self.elements[begin:], begin):
            death = on_leg(fault.death, is_later=progress > 0)
            if death is None or (self.whole and not (fault.is_engine or fault.acts_without_stream)):
                return None
            if death.times is None or take(place, death.times):
                if fault.is_engine:
                    return None
                return fault if death is fault.death else msgspec.structs.replace(fault, death=death)
        return None

    def leg_for(self, progress: int) -> int | None:
        """The number of the leg that begins there; None where the plan meets each request alike."""
        return None if self.every_leg else leg_of(progress, self.words_per_leg())

    @cached_property
    def leg_key(self) -> str | None:
        """The leg-only key of a plan that meets every request, where it has one."""
        return leg_key(self.elements[0].death) if self.every_leg else None

    @cached_property
    def test(self) -> str | None:
        """The id of the test that asks, where an element says it."""
        return next(self._tests(), None)

    def _tests(self) -> Iterator[str]:
        return (element.death.test for element in self.elements if element.death.test is not None)


def plan_from_header(text: str, incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a header value: one element meets the request that carries it, a list each leg in its turn.

    `incidents` are modes too, by their names.

    Raises:
        DirectiveError: a malformed element, or a list whose legs cannot be told apart.
    """
    elements = _elements(text, incidents)
    if len(elements) == 1:  # which the first leg refuses, so that it can only meet a later one
        _refuse_replaced(elements[0])
    return FaultPlan(elements, every_leg=len(elements) == 1)


def plan_from_prompt(text: str, incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a prompt's directive, which comes with every leg: a single element is the fate of leg 0 only.

    Raises:
        DirectiveError: see `plan_from_header`.
    """
    return FaultPlan(_elements(text, incidents))


def plan_from_table(table: Mapping[str, object], incidents: Incidents = NO_INCIDENTS) -> FaultPlan:
    """Read a `[fault]` table: `mode` and its settings meet every request, `legs` (a list of tables) each leg.

    Raises:
        DirectiveError: a malformed table, both forms at once, an empty list, or legs that cannot be told apart.
    """
    if "legs" not in table:
        return FaultPlan((fault_from_table(table, incidents),), every_leg=True)
    legs = table["legs"]
    if len(table) > 1:
        raise DirectiveError("legs goes without other keys: give each leg its own")
    if not isinstance(legs, list) or not legs:
        raise DirectiveError("legs is not a list of at least one table")
    if len(legs) > MOST_ELEMENTS:
        raise DirectiveError(f"legs has {len(legs)} tables, expected at most {MOST_ELEMENTS}")
    return FaultPlan(tuple(_leg_from_table(place, leg, incidents) for place, leg in enumerate(legs)))


def _refuse_replaced(fault: Fault) -> None:
    """Refuse a key that no leg can show, where only later ones meet the fault.

    Raises:
        DirectiveError: `instant_stop` or `reject` takes its place.
    """
    key = replaced_key(fault.death, fault.settings)
    if key is not None:
        instead = "instant_stop" if fault.death.instant_stop else f"reject={fault.death.reject}"
        raise DirectiveError(f"{fault.mode}: {key} has no effect: {instead} takes its place")


def _elements(text: str, incidents: Incidents) -> tuple[Fault, ...]:
    try:
        elements = parse(text)
    except GrammarError as error:
        raise MalformedError(str(error)) from None
    return tuple(fault_from_element(element, incidents) for element in elements)


def _leg_from_table(place: int, leg: object, incidents: Incidents) -> Fault:
    if not isinstance(leg, dict):
        raise DirectiveError(f"legs[{place}] is not a table")
    try:
        return fault_from_table(leg, incidents)
    except DirectiveError as error:
        error.leg = place
        raise


def _span(element: Fault) -> LegSpan:
    """What an element adds, in words of its channel; without end where it runs to the end of the answer."""
    death, counted = element.death, element.death.times is not None
    if element.incident is not None:
        return LegSpan("text", element.incident.words, counted=counted)
    silent = death.instant_stop or death.reject != HEALTHY.reject
    if death.at != "frames" or not death.may_stream:
        return LegSpan("text", 0, counted=counted)
    if death.after_chunks == ALL or death.then == "rest":
        return LegSpan("text", None, silent=silent, counted=counted)
    words = words_in(int(death.after_chunks), death.tokens_per_frame) + death.text_in_finish
    if death.content == "tool_call_parallel":
        words -= 1  # the second announcement
    channel: Channel = "call" if death.content.startswith("tool_call") else "text"
    return LegSpan(channel, words, overlap=death.overlap, skip=death.skip, silent=silent, counted=counted)
