"""What was said, added up: the sum of its parts, which copies none of them twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.end import SILENCE, Spoken
from inference_lab.core.answer.pieces import Piece, Pieces, Run
from inference_lab.core.stream.events import (
    NOTHING,
    Delivered,
    DeliveredSoFar,
    finished,
    said_of,
    said_of_whole,
)

SAID = st.builds(
    Delivered,
    content_frames=st.integers(0, 2),
    words=st.integers(0, 3),
    done=st.booleans(),
    spoken=st.sampled_from([SILENCE, Spoken(text=True), Spoken(finish="stop"), Spoken(calls_begun=1)]),
    usage=st.sampled_from([None, b"{}", b'{"a":1}']),
    unreadable=st.booleans(),
    calls=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["", "a"])), max_size=2).map(tuple),
)


@given(SAID, st.lists(SAID, max_size=5))
def test_it_is_the_sum_of_its_parts(begin: Delivered, parts: list[Delivered]) -> None:
    told = DeliveredSoFar(begin)
    for part in parts:
        told.add(part)
    assert told.total == sum(parts, begin)


def test_an_answer_of_a_call_says_what_its_pieces_say_one_by_one() -> None:
    pieces = Pieces((Piece("call", "", "{", 1, 0, name="look"), Run("call", "qu", 0, 20)))
    one_by_one = sum(map(said_of, pieces), finished("tool_calls", b"{}"))
    told = said_of_whole(pieces, "tool_calls", b"{}")
    assert (told.words, told.calls, told.spoken) == (20, one_by_one.calls, one_by_one.spoken)
    assert (told.usage, told.content_frames) == (b"{}", NOTHING.content_frames)
