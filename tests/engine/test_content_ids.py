"""Ids of prompt blocks stand for the whole prompt up to there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.engine.content_ids import block_ids
from inference_lab.engine.scheduler import common_prefix

tokens = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, tokens, tokens, st.integers(1, 9))
def test_two_prompts_share_as_many_ids_as_they_share_whole_blocks(
    start: list[int], one: list[int], other: list[int], block_size: int
) -> None:
    first, second = start + one, start + other
    ids = [block_ids(prompt, block_size) for prompt in (first, second)]
    assert [len(of_one) for of_one in ids] == [len(first) // block_size, len(second) // block_size]
    assert common_prefix(ids) == common_prefix([first, second]) // block_size


def test_an_empty_prompt_has_no_ids() -> None:
    assert block_ids([], 16) == ()
