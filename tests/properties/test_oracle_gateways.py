"""No right rewrite of an answer is wrong to the oracle, and no wrong splice whole: samples of `support/gateways.py`."""

from __future__ import annotations

import random

import pytest

from inference_lab.core.oracle import verify
from tests.support.gateway_rewrites import REWRITES
from tests.support.gateway_splices import SPLICES
from tests.support.gateways import answer, case_of, main, search

SAMPLE = 600
TRIES = 400


def test_healthy_answers_of_every_shape_are_whole() -> None:
    shapes = set()
    for seed in range(TRIES):
        body = answer(random.Random(seed))
        shapes.add((body.is_chat, body.is_stream, *sorted(body.channels)))
        verdict = verify(body.bytes(), tokens=body.words(), ended="clean")
        assert verdict.outcome == "whole", verdict
    assert len(shapes) == 2 * 2 * 3


def test_a_sample_of_rewrites_and_splices_is_judged_right() -> None:
    assert list(search(SAMPLE, seed=1)) == []


@pytest.mark.parametrize("name", [*REWRITES, *SPLICES])
def test_every_move_finds_something_to_work_on(name: str) -> None:
    move = {**REWRITES, **SPLICES}[name]
    for seed in range(TRIES):
        rng = random.Random(seed)
        if move(rng, answer(rng)):
            return
    raise AssertionError(name)


def test_a_case_is_the_same_each_time_and_is_shown_where_it_fails() -> None:
    assert case_of(7) == case_of(7)
    failing = case_of(7)._replace(outcomes={"no such outcome"})
    assert failing.name in (failing.failure() or "")


def test_the_search_says_how_many_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "3", "--seed", "5"]) == 0
    assert capsys.readouterr().out == "3 cases, 0 found\n"
