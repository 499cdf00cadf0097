"""The resume client against the application: chains of deaths, calls and thoughts, and its own mistakes found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.oracle import Kind, Verdict, verify
from tests.support.clients.families import FAMILIES
from tests.support.clients.resume_client import CHAT, COMPLETIONS, RENDER, Bug, ResumeClient
from tests.support.lab import REASONING, WORDS, MemoryLab, files, write
from tests.support.resuming import TOOLS

if TYPE_CHECKING:
    from pathlib import Path

MODELS = pytest.mark.parametrize("model", files())
CHAIN = (
    "cut_between_frames;after_chunks=5;delay_ms=0, cut_mid_frame;after_chunks=4;delay_ms=0, "
    "stall;after_chunks=3;delay_ms=0"
)
LEGS = """
[[fault.legs]]
mode = "cut_between_frames"
after_chunks = 5
delay_ms = 0
[[fault.legs]]
mode = "cut_mid_frame"
after_chunks = 4
delay_ms = 0
[[fault.legs]]
mode = "stall"
after_chunks = 3
delay_ms = 0
"""
HIDDEN = 2
"""Tokens of the `</think>` with which a text answer closes what a dsv4 prompt has opened: no delta shows them."""


def hello(text: str = "") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"hello {text}"}]}


def spliced(lab: MemoryLab, model: str, path: str = CHAT, bug: Bug | None = None, **body: Any) -> bytes:
    client = ResumeClient(lab, FAMILIES[model.partition("-")[0]], model.endswith("-thinks"), bug)
    asked = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **body}
    return b"".join(client.answer(path, asked))


def judge(data: bytes, model: str, words: int) -> Verdict:
    """The verdict on an answer that was killed by text faults first."""
    hidden = HIDDEN if model == "dsv4-thinks" else 0
    return verify(data, tokens=words, ended="clean", hidden_tokens=hidden)


def content_words(model: str) -> int:
    return WORDS - REASONING * model.endswith("-thinks")


def legs_of(lab: MemoryLab) -> list[dict[str, Any]]:
    return [body for path, _, body in lab.asked if path == COMPLETIONS]


@MODELS
def test_a_chain_of_deaths_from_the_prompt_ends_whole(lab: MemoryLab, model: str) -> None:
    data = spliced(
        lab, model, **hello(f"<<fault:{CHAIN}>>"), max_tokens=50, temperature=0.5, stop=["x"], user="u"
    )
    verdict = judge(data, model, content_words(model))
    assert (verdict.outcome, verdict.findings, verdict.finish) == ("whole", (), "stop")
    _check_legs(lab, hidden=HIDDEN if model == "dsv4-thinks" else 0)


@MODELS
def test_a_chain_of_deaths_from_the_model_s_file_ends_whole(tmp_path: Path, model: str) -> None:
    lab = MemoryLab(write(tmp_path, files(LEGS)))
    data = spliced(lab, model, **hello(), max_tokens=50, temperature=0.5, stop=["x"], user="u")
    verdict = judge(data, model, content_words(model))
    assert (verdict.outcome, verdict.findings, verdict.finish) == ("whole", (), "stop")
    _check_legs(lab, hidden=HIDDEN if model == "dsv4-thinks" else 0)


def _check_legs(lab: MemoryLab, hidden: int) -> None:
    """Three legs with what a gateway sends, each over the words that its death let through."""
    legs = legs_of(lab)
    assert [leg["max_tokens"] + hidden for leg in legs] == [50 - 5, 50 - 9, 50 - 12]
    own = {"model", "prompt", "stream", "stream_options", "nvext", "max_tokens", "temperature", "stop"}
    assert all(leg.keys() == own for leg in legs)
    allowed = {"Authorization", "Content-Type", "Accept"}
    assert all(set(headers) == allowed for _, headers, _ in lab.asked)


@MODELS
def test_a_chain_on_completions_ends_whole(lab: MemoryLab, model: str) -> None:
    body = {"prompt": f"hello <<fault:{CHAIN}>>"}
    verdict = verify(spliced(lab, model, COMPLETIONS, **body), tokens=content_words(model), ended="clean")
    assert (verdict.outcome, verdict.findings) == ("whole", ())


@MODELS
@pytest.mark.parametrize(
    "mode",
    [
        *("cut_between_frames", "cut_mid_frame", "cut_mid_frame;utf8=true", "reset"),
        *("stall", "error_envelope_200", "cancelled_499"),
    ],
)
@pytest.mark.parametrize("frames", [1, 7, 8])
def test_every_death_is_survived(lab: MemoryLab, model: str, mode: str, frames: int) -> None:
    text = f"<<fault:{mode};after_chunks={frames};delay_ms=0>>"
    verdict = judge(spliced(lab, model, **hello(text)), model, content_words(model))
    assert (verdict.outcome, verdict.findings) == ("whole", ())
    assert len(legs_of(lab)) == 1


@MODELS
@pytest.mark.parametrize(
    ("mode", "finish"), [("no_done", "stop"), ("no_usage", "stop"), ("error_400_in_sse", None)]
)
def test_what_is_no_death_needs_no_leg(lab: MemoryLab, model: str, mode: str, finish: str | None) -> None:
    data = spliced(lab, model, **hello(f"<<fault:{mode};delay_ms=0>>"))
    verdict = judge(data, model, 3)
    assert verdict.findings == ()
    assert (verdict.outcome, verdict.finish) == ("whole" if finish else "honest prefix", finish)
    assert legs_of(lab) == []


@MODELS
@pytest.mark.parametrize("thought", [1, 7, 8, 11])
def test_a_death_in_reasoning_is_survived(lab: MemoryLab, model: str, thought: int) -> None:
    verdict = verify(
        spliced(lab, model, **hello(f"<<fault:mid_reasoning;after_chunks={thought};delay_ms=0>>")),
        ended="clean",
    )
    most = max(thought, REASONING if model.endswith("-thinks") else 0)
    assert (verdict.outcome, verdict.findings) == ("whole", ())
    assert verdict.words == {"reasoning": most, "text": content_words(model)}


@MODELS
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("faults", "words"), [((1,), 16), ((2,), 16), ((9, 4, 1), 16), ((17,), 16), ((20,), 19)]
)
def test_a_death_in_a_call_is_survived(
    lab: MemoryLab, model: str, path: str, faults: tuple[int, ...], words: int
) -> None:
    text = ", ".join(f"mid_tool_call;after_chunks={frames};delay_ms=0" for frames in faults)
    chat = {"messages": [{"role": "user", "content": f"hello <<fault:{text}>>"}], "tools": TOOLS}
    told = lab.post(RENDER, {"model": model, **chat, "return_rendered": True})
    body = chat if path == CHAT else {"prompt": told["rendered"], "tools": TOOLS}
    data = spliced(lab, model, path, **body)
    verdict = verify(data, tokens=words, ended="clean")
    assert (verdict.outcome, verdict.findings, verdict.words) == ("whole", (), {"call": words})
    assert verdict.finish == ("tool_calls" if path == CHAT else "stop")
    assert data.count(b"find_it") == 1


@MODELS
def test_words_then_a_call_survive_together(lab: MemoryLab, model: str) -> None:
    faults = "cut_between_frames;after_chunks=5;delay_ms=0, mid_tool_call;after_chunks=4;delay_ms=0"
    data = spliced(lab, model, **hello(f"<<fault:{faults}>>"), tools=TOOLS)
    verdict = verify(data, tokens=21, ended="clean")
    assert (verdict.outcome, verdict.findings) == ("whole", ())
    assert verdict.words == {"text": 5, "call": 16}
    # The leg that opens the call has no tools of its own: they stand in its prompt.
    assert data.count(b'"name":"find_it"') == 1
    assert data.count(b'{\\"city\\": \\"') == 1


@pytest.mark.parametrize("asked", [5, 6, 12, 48])
def test_an_answer_whose_tokens_are_used_up_gets_its_trailer_made_up(lab: MemoryLab, asked: int) -> None:
    text = "<<fault:cut_between_frames;after_chunks=5;delay_ms=0>>"
    verdict = verify(spliced(lab, "lab", **hello(text), max_tokens=asked), tokens=asked, ended="clean")
    finish = "stop" if asked == WORDS else "length"
    assert (verdict.outcome, verdict.findings, verdict.finish) == ("whole", (), finish)
    assert verdict.completion_tokens == asked
    assert len(legs_of(lab)) == (asked > 5)


MISTAKES = (
    (Bug.DROPS_A_WORD, Kind.GAP, 5),
    (Bug.REPEATS_A_WORD, Kind.REPEAT, 4),
    (Bug.RESTARTS, Kind.RESTART, 0),
    (Bug.LOSES_A_BLANK, Kind.BLANK, 5),
    (Bug.KEEPS_THE_TORN_HALF, Kind.NOT_JSON, 5),
    (Bug.ADDS_USAGES_WRONGLY, Kind.USAGE_WORDS, WORDS),
)


@pytest.mark.parametrize(("bug", "kind", "word"), MISTAKES, ids=[bug.value for bug, _, _ in MISTAKES])
@pytest.mark.parametrize("model", ["lab", "hermes", "dsv4"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_mistake_of_a_gateway_is_named_with_its_word(
    lab: MemoryLab, path: str, model: str, bug: Bug, kind: Kind, word: int
) -> None:
    text = "hello <<fault:cut_mid_frame;after_chunks=5;delay_ms=0>>"
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    verdict = verify(spliced(lab, model, path, bug, **body), tokens=WORDS)
    assert verdict.outcome == "wrong"
    assert (verdict.findings[0].kind, verdict.findings[0].word) == (kind, word)
    # What stood behind the torn half is lost with it; a leg that restarts is the first again, and dies again.
    also = {Bug.KEEPS_THE_TORN_HALF: {(Kind.GAP, 5)}, Bug.RESTARTS: {(kind, word)}}.get(bug, set())
    assert {(finding.kind, finding.word) for finding in verdict.findings[1:]} == also


@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.value)
def test_each_mistake_shows_in_a_chain_too(lab: MemoryLab, bug: Bug) -> None:
    verdict = judge(spliced(lab, "lab-thinks", bug=bug, **hello(f"<<fault:{CHAIN}>>")), "lab-thinks", 40)
    assert verdict.outcome == "wrong"
    wanted = next((kind, word) for name, kind, word in MISTAKES if name is bug)
    if bug is Bug.ADDS_USAGES_WRONGLY:
        wanted = (Kind.USAGE_WORDS, 40)
    elif bug is Bug.KEEPS_THE_TORN_HALF:
        wanted = (Kind.NOT_JSON, 9)
    assert (verdict.findings[0].kind, verdict.findings[0].word) == wanted
