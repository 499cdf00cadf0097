"""Lists of fates: which leg a request is, which lists are refused, and the directive in a prompt."""

import pytest
from msgspec.structs import replace

from inference_lab.core.answer.legs import LegSpan, check, directive_in, element_index, leg_of, words_per_leg

OK = LegSpan("text", None)


def test_a_leg_adds_its_frames_words() -> None:
    assert words_per_leg(
        [LegSpan("text", 5), LegSpan("text", 6), LegSpan("text", 4, overlap=3, skip=1), OK]
    ) == [
        5,
        6,
        2,
        None,
    ]


def test_a_call_is_announced_once() -> None:
    assert words_per_leg([LegSpan("text", 5), LegSpan("call", 5), LegSpan("call", 5)]) == [5, 4, 5]


@pytest.mark.parametrize(
    ("progress", "leg"), [(0, 0), (1, 1), (4, 1), (5, 1), (7, 1), (8, 2), (9, 2), (10, 3), (1000, 3)]
)
def test_the_leg_is_the_number_of_boundaries_passed_and_never_again_the_first(
    progress: int, leg: int
) -> None:
    assert leg_of(progress, [5, 3, 2]) == leg


def test_a_leg_without_end_is_the_last() -> None:
    assert [leg_of(progress, [5, 3, None]) for progress in (0, 5, 8, 10_000)] == [0, 1, 2, 2]
    assert [leg_of(progress, [None]) for progress in (0, 1)] == [0, 1]


def test_what_is_counted_adds_its_words_and_shares_its_place_without_any() -> None:
    spans = [
        LegSpan("text", 0),
        OK,
        LegSpan("text", 5),
        LegSpan("text", 2, overlap=4),
        LegSpan("text", 9, silent=True),
    ]
    counted = [replace(span, counted=True) for span in spans]
    assert words_per_leg(counted) == [0, 0, 5, 0, 0]
    check(words_per_leg([*counted, OK]), range(5))
    with pytest.raises(ValueError, match=r"element 1 .* never ends"):
        check([0, None, 5], [0, 2])


def test_what_only_a_later_leg_does_counts_from_the_first_words_on() -> None:
    busy = LegSpan("text", 0, counted=True)
    late = LegSpan("text", 4, overlap=3)
    assert words_per_leg([busy, late, busy, late]) == [0, 4, 0, 1]
    assert words_per_leg(
        [LegSpan("call", 3, silent=True), LegSpan("call", 3, silent=True), LegSpan("call", 3)]
    ) == [
        2,
        0,
        3,
    ]


@pytest.mark.parametrize(
    ("added", "places"),
    [
        ([0, 5, 0, 0, 3, None], {0: 0, 1: 2, 5: 2, 7: 2, 8: 5, 99: 5}),
        ([5, 0], {0: 0, 5: 1, 9: 1}),
        ([0, 0, None], {0: 0, 1: 3}),
        ([0], {0: 0, 1: 1}),
        ([2, 3], {0: 0, 1: 1, 2: 1, 5: 2}),
    ],
)
def test_a_leg_begins_with_the_first_element_behind_its_words(
    added: list[int | None], places: dict[int, int]
) -> None:
    assert {progress: element_index(leg_of(progress, added), added) for progress in places} == places


@pytest.mark.parametrize("added", [[0], [None], [1, 1], [1, None]])
def test_legs_that_can_be_told_apart_are_accepted(added: list[int | None]) -> None:
    check(added)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([0, 1], "element 0 .* no word"),
        ([1, -1], "element 1 .* no word"),
        ([None, 1], "element 0 .* never ends"),
    ],
)
def test_legs_that_cannot_be_told_apart_are_refused(added: list[int | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(added)


@pytest.mark.parametrize(
    ("proper", "directive"),
    [
        ("hello", None),
        ("hello <<fault:stall>> there", "stall"),
        ("<<fault:reset>><<fault:stall>>", "stall"),
        ('<<fault:ok;name="a>>b\\">>">>', 'ok;name="a>>b\\">>"'),
        ("<<fault:a > b>>>", "a > b"),
    ],
)
def test_the_last_directive_of_a_prompt_counts(proper: str, directive: str | None) -> None:
    assert directive_in(proper) == directive


@pytest.mark.parametrize(
    "proper", ["<<fault:stall", "<<fault:stall>", '<<fault:ok;name=">>', '<<fault:"\\">>']
)
def test_a_directive_that_does_not_close_is_refused(proper: str) -> None:
    with pytest.raises(ValueError, match="<<fault: without its >>"):
        directive_in("<<fault:reset>> " + proper)
