"""The answer: exact pieces of each channel, and the lengths of healthy answers."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces, healthy, word
from inference_lab.core.answer.cursor import Cursor
from inference_lab.core.answer.pieces import Channel, Piece, Run, fit
from inference_lab.core.answer.resume_point import ResumePoint
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.answer.writer import Plan
from inference_lab.core.prompts.messages import CallTarget
from inference_lab.core.tokens import encode

LAB = FORMATS["lab"]
FRESH = ResumePoint(key=0, tag="qu", proper="", region="", place=Cursor("start"))
THINKING = ResumePoint(key=0, tag="qu", proper="", region="", place=Cursor("reasoning"))


def first(
    count: int, channel: Channel, position: ResumePoint = FRESH, call: CallTarget | None = None
) -> list[Piece]:
    return list(islice(fault_pieces(LAB, position, channel, call=call), count))


def test_words_name_their_answer_and_place() -> None:
    assert "".join(word("qu", index) for index in range(9)) == (
        "qu0000 qu0001 qu0002 qu0003 qu0004 qu0005 qu0006 qu0007é qu0008"
    )
    assert "".join(word("qu", index, reasoning=True) for index in (0, 7, 10007)) == "QU0000 QU0007É QU10007É"


def test_a_text_fault_is_words_without_end() -> None:
    assert first(2, "text") == [
        Piece("text", "qu0000", "qu0000", 1, 1),
        Piece("text", " qu0001", " qu0001", 1, 1),
    ]
    assert (
        next(islice(fault_pieces(LAB, replace(FRESH, is_raw=True), "text"), 10_007, None)).raw == " qu10007é"
    )


def test_a_text_fault_closes_the_block_that_the_prompt_opened() -> None:
    assert first(2, "text", THINKING)[0] == Piece("text", "qu0000", "</think>qu0000", 3, 1)


def test_reasoning_opens_its_block_unless_the_prompt_did() -> None:
    assert first(2, "reasoning") == [
        Piece("reasoning", "QU0000", "<think>QU0000", 3, 1),
        Piece("reasoning", " QU0001", " QU0001", 1, 1),
    ]
    assert first(1, "reasoning", THINKING) == [Piece("reasoning", "QU0000", "QU0000", 1, 1)]


def test_a_call_is_announced_first_and_then_filled_with_words() -> None:
    opening = '{"name": "get_current_weather", "arguments": {"location": "'
    assert first(3, "call") == [
        Piece("call", "", opening, len(encode(opening)), 0, "get_current_weather"),
        Piece("call", '{"location": "qu0000', "qu0000", 1, 1),
        Piece("call", " qu0001", " qu0001", 1, 1),
    ]


def test_a_call_names_the_tool_and_key_it_is_given() -> None:
    pieces = first(2, "call", THINKING, CallTarget('f"', "é"))
    assert [piece.raw for piece in pieces] == ['</think>{"name": "f\\"", "arguments": {"é": "', "qu0000"]
    assert [piece.delta for piece in pieces] == ["", '{"é": "qu0000']


def text(plan: Plan) -> str:
    return "".join(piece.raw for piece in plan.pieces) + plan.unseen


@pytest.mark.parametrize(
    ("limits", "raw", "finish", "tokens"),
    [
        ({"max_tokens": 2}, "qu0000 qu0001", "length", 2),
        ({"answer_words": 2}, "qu0000 qu0001", "stop", 2),
        ({"answer_words": 2, "max_tokens": 2}, "qu0000 qu0001", "stop", 2),
        ({"answer_words": 3, "max_tokens": 2}, "qu0000 qu0001", "length", 2),
        ({"answer_words": 3, "context_left": 1}, "qu0000", "length", 1),
        ({"answer_words": 1, "context_left": 1}, "qu0000", "stop", 1),
        ({"max_tokens": 3, "context_left": 1}, "qu0000", "length", 1),
        ({"answer_words": 1, "reasoning_words": 2}, "<think>QU0000 QU0001</think>qu0000", "stop", 7),
        ({"max_tokens": 8, "reasoning_words": 1}, "<think>QU0000</think>qu0000 qu0001 qu0002", "length", 8),
        ({"max_tokens": 5, "reasoning_words": 1}, "<think>QU0000", "length", 3),
        ({"max_tokens": 2, "reasoning_words": 1}, "<think>", "length", 2),
        ({"max_tokens": 1, "reasoning_words": 1}, "<thi", "length", 1),
        ({"context_left": 1, "reasoning_words": 1}, "<thi", "length", 1),
        ({"max_tokens": 4, "reasoning_words": 9}, "<think>QU0000 QU0001", "length", 4),
    ],
)
def test_an_answer_ends_at_the_first_of_its_limits(
    limits: dict[str, int], raw: str, finish: str, tokens: int
) -> None:
    plan = healthy(LAB, FRESH, **limits)
    assert (text(plan), plan.finish, plan.completion_tokens) == (raw, finish, tokens)


def test_an_answer_without_limits_has_256_words() -> None:
    plan = healthy(LAB, FRESH)
    assert (len(list(plan.pieces)), plan.finish, plan.completion_tokens) == (256, "length", 256)
    assert len(list(plan.pieces)) == 256


def test_the_longest_answer_is_planned_at_once() -> None:
    plan = healthy(LAB, FRESH, max_tokens=2**31 - 1)
    assert (plan.finish, plan.completion_tokens) == ("length", 2**31 - 1)
    assert next(iter(plan.pieces)).raw == "qu0000"


@given(
    st.integers(0, 5),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
    st.booleans(),
)
def test_the_tokens_of_an_answer_are_the_ids_of_its_pieces(
    reasoning: int,
    answer: int | None,
    tokens: int | None,
    context: int | None,
    block_open: bool,
) -> None:
    plan = healthy(
        LAB,
        replace(THINKING if block_open else FRESH, is_raw=True),
        reasoning_words=reasoning,
        answer_words=answer,
        max_tokens=tokens,
        context_left=context,
    )
    told = sum(piece.token_count for piece in plan.pieces) + plan.unseen_tokens
    assert plan.completion_tokens == told == len(encode(text(plan)))
    assert plan.completion_tokens


def test_words_past_those_with_an_id_count_one_token_each() -> None:
    cut = fit((Run("text", "qu", 2**20 - 1, None),), 3)
    assert ([piece.raw for part in cut.segments for piece in part], cut.tokens) == (  # type: ignore[union-attr]
        [" qu1048575é", " qu1048576", " qu1048577"],
        3,
    )


def test_an_answer_without_end_and_without_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a limit"):
        fit((Run("text", "qu", 0, None),), None)


@given(st.integers(0, 20_000), st.integers(0, 40), st.sampled_from(["qu", "QU"]))
def test_a_run_in_one_piece_has_the_text_of_its_words(start: int, words: int, letters: str) -> None:
    run = Run("text", letters, start, start + words)
    text = "".join(piece.raw for piece in run)
    assert run.joined() == Piece("text", text, text, words, words)
