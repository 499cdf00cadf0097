"""What comes behind the fault point where the answer goes on: at which pace, and of which words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.oracle import verify
from inference_lab.core.stream.events import Pause
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.axes_scripts import WORDS, served
from tests.support.lab import FAMILIES, REASONING, MemoryLab, files, write

if TYPE_CHECKING:
    from tests.support.rawclient import Received


def pauses(fault: str, path: str = CHAT) -> list[int]:
    settings = tuple(part.partition("=")[::2] for part in fault.split(";")[1:])
    events = served(settings, path)
    assert events is not None, fault
    return [event.ms for event in events if isinstance(event, Pause)]


PACES = {
    "ok;after_chunks=2;then=rest;rest_delay_ms=40": [10] * 2 + [40] * (WORDS - 2 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=40;pause_ms=500": [10] * 2 + [500] + [40] * (WORDS - 2 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=0": [10] * 2,
    "ok;after_chunks=2;delay_ms=0;then=rest;rest_delay_ms=7;usage=never": [7] * (WORDS - 2 + 1),
    "ok;after_chunks=3;then=rest;rest_delay_ms=40;sequence=dup:2": [10] * 3 + [40] * (2 + WORDS - 3 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=40;tokens_per_frame=4": [10] * 2 + [40] * (1 + 2),
    "ok;after_chunks=20;then=rest;rest_delay_ms=40": [10] * 20 + [40] * 2,
    "ok;after_chunks=2;then=rest;rest_delay_ms=10": [10] * (WORDS + 2),
    "ok;after_chunks=2;then=rest;delay_ms=3;rest_delay_ms=3": [3] * (WORDS + 2),
}


@pytest.mark.parametrize("fault", PACES)
def test_the_rest_has_a_pace_of_its_own(fault: str) -> None:
    assert pauses(fault) == PACES[fault]


def test_the_pace_before_is_that_of_the_healthy_stream_and_heartbeats_keep_theirs() -> None:
    beats = ";heartbeat=ping;heartbeat_ms=30;beats=2"
    assert (
        pauses(f"ok;after_chunks=1;then=rest;rest_delay_ms=5{beats}", COMPLETIONS)
        == [30] * 2 + [5] * (WORDS - 1) + [5] * 2
    )


def test_the_pace_that_it_has_anyway_is_no_setting() -> None:
    plain = parse_directive("ok;after_chunks=2;then=rest;delay_ms=3")
    assert (
        parse_directive("ok;after_chunks=2;then=rest;delay_ms=3;rest_delay_ms=3").canonical()
        == plain.canonical()
    )
    assert parse_directive("ok;rest_delay_ms=10").death.rest_delay_ms is None
    crawl = "crawl;after_chunks=8;delay_ms=10;utf8=false"
    assert parse_directive("crawl;rest_delay_ms=1000").canonical() == crawl
    assert parse_directive("crawl;rest_delay_ms=10").canonical() == f"{crawl};rest_delay_ms=10"


REFUSED = {
    "ok;rest_delay_ms=5": "rest_delay_ms needs then=rest",
    "crawl;then=end": "rest_delay_ms needs then=rest",
    "crawl;status=503": "after_chunks goes with a stream",
    "crawl;at=head": "after_chunks needs at=frames",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_pace_of_nothing_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[fault]):
        parse_directive(fault)


def test_a_rest_without_a_frame_has_no_pace() -> None:
    for more, is_served in (
        ("", False),
        (";usage=always", True),
        (";error=vllm", True),
        (";malformed=true", True),
    ):
        settings = f"after_chunks={WORDS};then=rest;finish=none;rest_delay_ms=5{more}"
        events = served(tuple(part.partition("=")[::2] for part in settings.split(";")), CHAT)
        assert (events is not None) == is_served, more


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """A model of each format that thinks and one that does not."""
    return MemoryLab(write(tmp_path_factory.mktemp("then_rest"), files()))


THOUGHTS = "ok;delay_ms=0;content=reasoning"
OWN: dict[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "p266"},
}


def ask(lab: MemoryLab, model: str, path: str, fault: str | None = None, **more: Any) -> Received:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **OWN[path], **more}
    got = lab.exchange(path, body, {"x-inference-lab-fault": fault} if fault else {})
    assert got.status == 200, got.raw
    return got


def told(got: Received) -> tuple[list[tuple[str, str]], str | None, int]:
    """The words of a stream with their channels, how it finished, and what it counted."""
    words: list[tuple[str, str]] = []
    finish, tokens = None, -1
    for event in got.body.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        frame = json.loads(event[6:])
        tokens = frame["usage"]["completion_tokens"] if frame.get("usage") else tokens
        for choice in frame["choices"]:
            said = choice["delta"] if "delta" in choice else {"text": choice["text"]}
            words += [(key, text) for key, text in said.items() if key != "role" and text]
            finish = choice["finish_reason"] or finish
    return words, finish, tokens


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frames", [1, 5, REASONING, REASONING + 3])
def test_behind_some_thoughts_comes_what_a_leg_behind_them_would_be_given(
    lab: MemoryLab, family: str, path: str, frames: int, *, thinks: bool
) -> None:
    model = f"{family}-thinks" if thinks else family
    cut = f"mid_reasoning;delay_ms=0;usage=always;after_chunks={frames}"
    for limit in (None, 12, 20):
        limited: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
        before, _, said_ids = told(ask(lab, model, path, cut, **limited))
        got = ask(lab, model, path, f"{THOUGHTS};after_chunks={frames};then=rest;pause_ms=5", **limited)
        words, finish, ids = told(got)
        assert words[:frames] == before
        text = "".join(word for _, word in before)
        own = (
            {"messages": [*OWN[CHAT]["messages"], {"role": "assistant", "reasoning_content": text}]}
            if path == CHAT
            else {"prompt": OWN[COMPLETIONS]["prompt"] + text}
        )
        if limit is not None and limit <= said_ids:
            assert (words[frames:], finish, ids) == ([], "length", said_ids)
            continue
        left = {} if limit is None else {"max_tokens": limit - said_ids}
        rest, leg_finish, leg_ids = told(ask(lab, model, path, None, **own, **left))
        if not any(char.isdigit() for _, text in rest for char in text):
            # A leg with no room for a word still gets the first ids of its markup: here the words before stand for it.
            rest, leg_ids = [], 0
        assert words[frames:] == rest
        assert (finish, ids) == (leg_finish, said_ids + leg_ids)
        if path == CHAT:
            channels = [channel for channel, _ in words]
            assert channels == sorted(channels, reverse=True), "reasoning first, then content"
            thoughts = channels.count("reasoning_content")
            assert thoughts == max(frames, REASONING * thinks) or finish == "length"
        verdict = verify(got.body, ended="clean")
        assert verdict.outcome == "whole" or len(rest) == 0, verdict


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_goes_on_thinking_and_then_says_the_rest(
    lab: MemoryLab, dialect: str, path: str
) -> None:
    for more in ("", ";tokens_per_frame=varied", ";tokens_per_frame=4;usage=every_chunk", ";sequence=dup:2"):
        got = ask(lab, "lab-thinks", path, f"{THOUGHTS};after_chunks=2;then=rest;dialect={dialect}{more}")
        verdict = verify(got.body)
        if "dup" in more:
            assert verdict.outcome == "wrong"
        else:
            assert verdict.outcome == "whole", verdict
            assert verdict.words == {"reasoning": max(REASONING, 6 * ("=4" in more) + 2), "text": 40}


def test_a_frame_holds_words_of_one_channel_only(lab: MemoryLab) -> None:
    fault = f"{THOUGHTS};after_chunks=1;then=rest;tokens_per_frame=3"
    for path in (CHAT, COMPLETIONS):
        words, _, _ = told(ask(lab, "lab-thinks", path, fault, max_tokens=20))
        sizes = [len(text.split()) for _, text in words]
        assert sizes[:4] == [3, 3, 2, 3]
        assert words[2][1].isupper()
        assert words[3][1].removeprefix("</think>").islower()


def test_a_pause_in_the_thoughts_has_heartbeats_and_a_pace_behind_it() -> None:
    beats = "heartbeat=ping;heartbeat_ms=30;pause_ms=70"
    fault = f"ok;content=reasoning;after_chunks=2;then=rest;rest_delay_ms=5;{beats}"
    assert pauses(fault)[:6] == [10, 10, 30, 30, 10, 5]


def test_where_the_limit_is_passed_already_nothing_is_left_to_say(lab: MemoryLab) -> None:
    words, finish, ids = told(
        ask(lab, "lab-thinks", CHAT, f"{THOUGHTS};after_chunks=9;then=rest", max_tokens=6)
    )
    assert len(words) == 9
    assert finish == "length"
    assert ids > 9


def test_a_leg_in_its_thoughts_goes_on_there_and_one_behind_them_is_refused(lab: MemoryLab) -> None:
    fault = f"{THOUGHTS};after_chunks=2;then=rest"
    text = "".join(word for _, word in told(ask(lab, "lab-thinks", COMPLETIONS, fault))[0])
    head = text[: text.index("0003")]
    on = "".join(
        word for _, word in told(ask(lab, "lab-thinks", COMPLETIONS, fault, prompt=f"p266{head}"))[0]
    )
    assert head + on == text
    body = {"model": "lab-thinks", "stream": True, "prompt": f"p266{text[: text.rindex('0003')]}"}
    refused = lab.exchange(COMPLETIONS, body, {"x-inference-lab-fault": fault})
    assert "the answer has already left its reasoning" in refused.error["message"]


def test_every_word_that_is_told_by_ids_has_one(lab: MemoryLab) -> None:
    fault = f"{THOUGHTS};after_chunks=2;then=rest"
    got = ask(lab, "lab-thinks", COMPLETIONS, fault, return_token_ids=True)
    ids = [
        number
        for event in got.body.split(b"\n\n")
        if event.startswith(b"data: {")
        for choice in json.loads(event[6:])["choices"]
        for number in choice.get("token_ids") or ()
    ]
    assert len(ids) == told(got)[2]
