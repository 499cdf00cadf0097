"""A healthy answer: each frame with its tokens, and those that are due together in one write."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.answer import healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import HERMES, LAB
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.completions.writer import CompletionsWriter
from inference_lab.core.apis.contract import Completion, Counts, Form, StreamWriter
from inference_lab.core.stream.events import Await, Burst, Event, Frame, single
from inference_lab.core.stream.healthy import healthy_script
from tests.support.memory import GET, Stage, body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.answer.answer import Plan

COMPLETION = Completion("chatcmpl-0", 1, "m")
TELLING = Form(prompt_ids=[1, 2])
CHAT: Callable[[], StreamWriter] = partial(ChatWriter, COMPLETION)
WRITERS = [
    CHAT,
    partial(CompletionsWriter, COMPLETION),
    partial(ChatWriter, COMPLETION, form=TELLING),
    partial(CompletionsWriter, COMPLETION, form=TELLING),
]


def plan(words: int, reasoning: int = 0) -> Plan:
    return healthy(
        HERMES if reasoning else LAB,
        locate(HERMES if reasoning else LAB, "p266"),
        reasoning_words=reasoning,
        max_tokens=words,
    )


def script(new_writer: Callable[[], StreamWriter], asked: Plan) -> Iterator[Event]:
    return healthy_script(new_writer(), asked.pieces, asked.finish, lambda: Counts(5, 7), include_usage=True)


@pytest.mark.parametrize("new_writer", WRITERS)
@pytest.mark.parametrize("reasoning", [0, 5, 40])
def test_each_piece_is_a_frame_that_waits_for_its_tokens(
    new_writer: Callable[[], StreamWriter], reasoning: int
) -> None:
    asked = plan(50, reasoning)
    _, *events = single(script(new_writer, asked))
    writer = new_writer()
    expected: list[tuple[int, bytes]] = [
        (piece.token_count, writer.content(piece)[0].data) for piece in asked.pieces
    ]
    opening = [frame.data for frame in writer.opening()]
    waits = [event.tokens for event in events if isinstance(event, Await)]
    if opening and expected[0][0] > 1:  # which comes with the first of the first piece's tokens
        waits[:2] = [sum(waits[:2])]
    assert waits == [tokens for tokens, _ in expected]
    frames = [event.data for event in events if isinstance(event, Frame)]
    assert frames[: len(opening) + len(expected)] == [*opening, *(data for _, data in expected)]
    assert isinstance(events[0], Await), "the opening comes with the first token"
    for before, after in pairwise(events):
        assert not (isinstance(before, Await) and isinstance(after, Await))


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 120), st.integers(0, 11))
def test_tokens_in_any_portions_bring_the_same_frames_each_portion_in_one_write(
    portions: list[int], words: int, paused_at: int
) -> None:
    asked = plan(words)
    stage = Stage(lambda: islice(script(CHAT, asked), 1, None))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == b""
    (player,) = stage.players
    writes: list[bytes] = []
    transport.write = writes.append  # type: ignore[method-assign] # which is what counts here
    writer = CHAT()
    written = [*writer.opening(), *chain.from_iterable(map(writer.content, asked.pieces))]
    frames = [b"%x\r\n%b\r\n" % (len(frame.data), frame.data) for frame in written]
    given_so_far = 0
    for place, portion in enumerate(portions):
        count = min(portion, words - given_so_far)
        if not count:
            break
        if place == paused_at:
            channel.pauseProducing()
        player.on_tokens(count)
        if place == paused_at:
            assert writes == []
            channel.resumeProducing()
        begin = given_so_far + 1 if given_so_far else 0
        given_so_far += count
        (sent,) = writes
        writes.clear()
        expected = b"".join(frames[begin : given_so_far + 1])
        assert sent[: len(expected)] == expected
        assert (sent == expected) == (given_so_far < words), "the end comes with the last of them"
    transport.loseConnection()


def test_two_hundred_thousand_tokens_that_are_due_at_once_take_many_turns() -> None:
    asked = plan(200_000)
    stage = Stage(lambda: islice(script(CHAT, asked), 1, None))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    (player,) = stage.players
    player.on_tokens(200_000)
    turns = 0
    while not stage.gone:
        assert len(transport.value()) <= 65_536 + 16 * 300
        transport.clear()
        stage.clock.turn()
        turns += 1
    assert turns > 400
    assert player.content_frames == 200_000


def test_a_burst_that_waits_for_tokens_stands_for_frames_that_do() -> None:
    burst = Burst([b"a", b"b", b"c"], awaited=True)
    frames = [event for event in single([burst]) if isinstance(event, Frame)]
    assert [frame.data for frame in frames] == [b"a", b"b", b"c"]
    assert [*single([burst])][1::2] == [Await(1), Await(1)]
