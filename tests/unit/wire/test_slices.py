"""Long work in slices: in the budget of a turn, with the others in between, and nothing left when it is given up."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import CancelledError

from inference_lab.core.apis.chat.echo import said_by_echo
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.contract import Completion
from inference_lab.core.faults.plan import FaultPlan, plan_from_prompt
from inference_lab.core.prompts.echo import Echo
from inference_lab.core.prompts.messages import Call
from inference_lab.web import turn
from inference_lab.wire.pacer import TURN_US, Pacer
from inference_lab.wire.turns import LARGE_BYTES, in_slices
from tests.support.growth import calls_of
from tests.support.lab import MemoryLab, files, write
from tests.support.memory import TurnClock
from tests.support.rawclient import request

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from inference_lab.core.faults.incident import Incidents
    from inference_lab.core.stream.events import Delivered, Turn

PARTS = 100


class Work:
    """A hundred parts of a millisecond each."""

    def __init__(self, clock: TurnClock, *, fails: bool = False) -> None:
        self.clock, self.fails = clock, fails
        self.done, self.is_closed = 0, False

    def parts(self) -> Generator[None, None, str]:
        try:
            for _ in range(PARTS):
                self.clock.rightNow += 0.001
                self.done += 1
                yield
        finally:
            self.is_closed = True
        if self.fails:
            raise ValueError("refused")
        return "made"


def test_others_have_their_turn_between_slices_of_a_turn() -> None:
    clock = TurnClock()
    work = Work(clock)
    made: list[str] = []
    in_slices(Pacer(clock, clock.seconds), work.parts()).addCallback(made.append)
    assert work.done == 1, "the first part is made at once"
    turns = 0
    while clock.getDelayedCalls():
        begun = work.done
        clock.turn()
        turns += 1
        assert work.done - begun <= TURN_US // 1000
    assert made == ["made"]
    assert turns >= PARTS * 1000 // TURN_US


def test_work_that_is_short_is_done_at_once() -> None:
    def short() -> Generator[None, None, int]:
        yield from ()
        return 7

    clock = TurnClock()
    made: list[int] = []
    in_slices(Pacer(clock, clock.seconds), short()).addCallback(made.append)
    assert made == [7]
    assert clock.getDelayedCalls() == []


def test_what_the_work_raises_is_the_failure() -> None:
    clock = TurnClock()
    failed = in_slices(Pacer(clock, clock.seconds), Work(clock, fails=True).parts())
    caught: list[str] = []
    failed.addErrback(lambda failure: caught.append(str(failure.value)))
    while clock.getDelayedCalls():
        clock.turn()
    assert caught == ["refused"]


def test_work_that_is_given_up_is_closed_and_waits_for_no_turn() -> None:
    clock = TurnClock()
    work = Work(clock)
    given_up = in_slices(Pacer(clock, clock.seconds), work.parts())
    caught: list[type[BaseException] | None] = []
    given_up.addErrback(lambda failure: caught.append(failure.type))
    given_up.cancel()
    assert caught == [CancelledError]
    assert work.is_closed
    assert clock.getDelayedCalls() == []


@pytest.fixture
def lab(tmp_path: Path) -> MemoryLab:
    return MemoryLab(write(tmp_path, files(families=("lab",))))


def test_a_stream_that_shows_only_once_counted_that_it_is_too_long_is_a_400_that_counts_no_attempt(
    lab: MemoryLab,
) -> None:
    body = {"model": "lab", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    too_long = "ok;segment=whole;after_chunks=2400;tokens_per_frame=1000;times=1,reset;times=1,ok"
    for _ in range(2):
        got = lab.exchange("/v1/chat/completions", body, {"x-inference-lab-fault": too_long})
        assert got.status == 400
        assert "segment=whole takes a stream of at most 16777216 bytes" in got.json["error"]["message"]


def test_a_refused_directive_is_read_once(lab: MemoryLab, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(text: str, incidents: Incidents) -> FaultPlan:
        read.append(text)
        return plan_from_prompt(text, incidents)

    monkeypatch.setattr(turn, "plan_from_prompt", noted)
    content = "<<fault:ok;name=a;name=b>>" + " " * LARGE_BYTES
    body = {"model": "lab", "stream": True, "messages": [{"role": "user", "content": content}]}
    assert lab.exchange("/v1/chat/completions", body).status == 400
    assert len(read) == 1


def test_an_echo_of_many_calls_is_read_back_in_turns_that_do_not_grow() -> None:
    echo = Echo("text", (Call("f", '{"a": 1}'),) * 400, "tool_calls")
    turns = said_by_echo(ChatWriter(Completion("chatcmpl-0", 0, "m")), echo)
    said: list[Delivered] = []

    def take() -> Generator[Turn, None, None]:
        said.append((yield from turns))

    parts = take()
    calls = [calls_of(partial(next, parts, None)) for _ in range(51)]
    assert max(calls[1:]) < 1.1 * calls[0]
    assert said[0].calls == tuple((at, text) for at in range(400) for text in ("", '{"a": 1}'))
    assert said[0].spoken.calls_closed == 400


def test_a_strict_refusal_leaves_no_work_behind(lab: MemoryLab) -> None:
    body = {"model": "lab", "stream": True, "messages": [{"role": "user", "content": "hi"}], "odd": 1}
    fault = {"x-inference-lab-fault": "ok;strict_params=true;length=-1;after_chunks=5000"}
    channel, transport = lab.connect()
    channel.dataReceived(request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers=fault))
    assert transport.value().startswith(b"HTTP/1.1 400 ")
    assert b"supplied: odd" in transport.value()
    assert [call for call in lab.clock.getDelayedCalls() if call.getTime() <= lab.clock.seconds()] == []


def test_a_long_answer_in_one_object_holds_the_same_text_as_its_stream(lab: MemoryLab) -> None:
    asked = {"model": "lab", "max_tokens": 5000, "return_token_ids": True}
    prompt = {**asked, "prompt": "hi"}
    whole = lab.post("/v1/completions", prompt)["choices"][0]
    messages = {**asked, "messages": [{"role": "user", "content": "hi"}]}
    chat = lab.post("/v1/chat/completions", messages)["choices"][0]
    for choice, text in ((whole, whole["text"]), (chat, chat["message"]["content"])):
        words = text.split(" ")
        assert len(choice["token_ids"]) == len(words)
        assert [int(word.rstrip("é")[2:]) for word in words] == list(range(len(words)))
