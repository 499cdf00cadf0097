"""Killing legs: which element of a list meets which request, what a faulted leg plays, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from twisted.logger import globalLogPublisher

from tests.support.clients.resume_client import CHAT, COMPLETIONS
from tests.support.lab import MemoryLab, files, write
from tests.support.resuming import FORMS, TOOLS, USER, Case, hear

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.clients.families import Delivered

THREE_TABLES = "".join(
    f'[[fault.legs]]\nmode = "{mode}"\nafter_chunks = {count}\ndelay_ms = 0\n'
    for mode, count in (("cut_between_frames", 5), ("stall", 3), ("reset", 2))
)
MODELS = pytest.mark.parametrize("model", files())
TEXT_MODES = (
    "cut_between_frames",
    "cut_mid_frame",
    "reset",
    "stall",
    "error_envelope_200",
    "cancelled_499",
    "no_done",
)
THREE = "cut_between_frames;after_chunks=5;delay_ms=0, stall;after_chunks=3;delay_ms=0, reset;after_chunks=2;delay_ms=0"


def said_of(case: Case, k: int) -> tuple[str, Delivered]:
    """The first k words of a text fault, raw and as deltas."""
    said = case.first(CHAT, f"cut_between_frames;after_chunks={k};delay_ms=0").said()
    return case.family.raw(said, thinking=case.thinking), said


@MODELS
@pytest.mark.parametrize("mode", TEXT_MODES)
def test_a_header_kills_the_leg_that_carries_it_wherever_it_stands(
    lab: MemoryLab, model: str, mode: str
) -> None:
    case = Case(lab, model)
    for k in (0, 1, 7, 8, 12):
        raw, said = said_of(case, k)
        full, whole = said_of(case, k + 4)
        for form in FORMS:
            leg = case.leg(form, raw, said, f"{mode};after_chunks=4;delay_ms=0")
            if form in {"ids", "text"}:
                assert raw + leg.raw() == full
            else:
                assert (said.content + leg.text("text"), leg.text("reasoning")) == (whole.content, "")


@pytest.mark.parametrize(
    ("progress", "end", "words"),
    [
        (0, "fin", 5),
        (1, "open", 3),
        (5, "open", 3),
        (7, "open", 3),
        (8, "fin", 2),
        (9, "fin", 2),
        (10, "whole", 38),
        (40, "whole", 8),
    ],
)
@pytest.mark.parametrize("where", ["header", "two headers", "prompt", "file"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_element_meets_its_leg(
    lab: MemoryLab, tmp_path: Path, path: str, where: str, progress: int, end: str, words: int
) -> None:
    headers: dict[str, str] = {}
    directive = ""
    if where == "file":
        lab = MemoryLab(write(tmp_path, files(THREE_TABLES, ("lab",))))
    elif where == "prompt":
        directive = f" <<fault:{THREE}>>"
    elif where == "header":
        headers = {"x-inference-lab-fault": THREE}
    else:
        first, _, rest = THREE.partition(",")
        headers = {"x-inference-lab-fault": first, "X-Inference-Lab-Fault": rest}
    case = Case(lab, "lab", [{"role": "user", "content": f"hello{directive}"}])
    said = case.first(CHAT, "ok").said(progress)
    form = "prefill" if path == CHAT else "ids"
    path, prompt = case.prompt(form, said.content, said)
    got = lab.exchange(path, {"model": "lab", "stream": True, **prompt}, headers)
    told = "whole" if got.body.endswith(b"data: [DONE]\n\n") else got.end
    assert (told, len(hear(b"".join(got.chunked.chunks)).pieces)) == (end, words)


@MODELS
@pytest.mark.parametrize("form", FORMS)
def test_a_mode_whose_channel_lies_behind_is_refused(lab: MemoryLab, model: str, form: str) -> None:
    case = Case(lab, model, tools=TOOLS)
    raw, said = said_of(case, 3)
    called = case.first(CHAT, "mid_tool_call;delay_ms=0").said()
    raw_call = case.family.raw(called, thinking=case.thinking)
    for text, deltas, mode in (
        (raw, said, "mid_reasoning"),
        (raw_call, called, "mid_reasoning"),
        (raw_call, called, "stall"),
    ):
        path, prompt = case.prompt(form, text, deltas)
        got = lab.exchange(path, {"model": model, "stream": True, **prompt}, {"x-inference-lab-fault": mode})
        assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
        assert "the answer" in got.error["message"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<<fault:explode>>", "unknown mode 'explode'"),
        ("<<fault:stall", "without its >>"),
        ("<<fault:ok, stall>>", "element 0 of the list never ends"),
        ("<<fault:stall;after_chunks=0, stall>>", "element 0 of the list adds no word"),
        ("<<fault:stall>> <<fault:>>", "the fault has no mode"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_malformed_directive_in_a_prompt_is_refused(
    lab: MemoryLab, path: str, text: str, reason: str
) -> None:
    body: dict[str, Any] = {"model": "lab", "stream": True}
    body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    got = lab.exchange(path, body)
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
    assert reason in got.error["message"]
    assert got.error["message"].startswith("in the prompt: ")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_directive_needs_a_stream_and_a_file_s_legs_only_meet_streams(
    lab: MemoryLab, tmp_path: Path, path: str
) -> None:
    text = "hello <<fault:stall>>"
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    got = lab.exchange(path, {"model": "lab", **prompt})
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
    lab = MemoryLab(write(tmp_path, files('[[fault.legs]]\nmode = "stall"\n', ("lab",))))
    plain = {"messages": USER} if path == CHAT else {"prompt": "hello"}
    assert lab.exchange(path, {"model": "lab", **plain}).status == 200


def test_only_the_prompt_proper_is_searched(lab: MemoryLab) -> None:
    """What the answer itself says is no directive."""
    case = Case(lab, "lab")
    _, said = said_of(case, 3)
    prompt = case.rendered("qu0000 qu0001 <<fault:stall>>")["rendered"]
    assert case.ask(COMPLETIONS, prompt=prompt).finish == "stop"
    assert case.leg("prefill", "", said).finish == "stop"


def test_the_order_of_precedence(tmp_path: Path) -> None:
    lab = MemoryLab(write(tmp_path, files('[[fault.legs]]\nmode = "no_usage"\ndelay_ms = 0\n', ("lab",))))
    usage = {"stream_options": {"include_usage": True}}
    body = {"model": "lab", "stream": True, **usage}
    respond = '<<respond:{"text":"echoed"}>>'
    directive = "<<fault:no_done;delay_ms=0>>"
    for text, header, told in (
        (respond + directive, "error_400_in_sse;delay_ms=0", b"BadRequestError"),
        (respond + directive, None, b'"usage"'),
        (respond, None, b"[DONE]"),
    ):
        chat = {**body, "messages": [{"role": "user", "content": text}]}
        got = lab.exchange(CHAT, chat, {"x-inference-lab-fault": header} if header else None).body
        assert told in got
        assert b"echoed" not in got
    # `ok` as an element is the engine too, whatever stands below it.
    chat = {**body, "messages": [{"role": "user", "content": f"{respond}<<fault:ok>>"}]}
    assert b"0047" in lab.exchange(CHAT, chat).body


def test_without_the_flag_a_directive_is_plain_text_and_one_line_in_the_log(models: Path) -> None:
    lab = MemoryLab(models, directives=False)
    lines: list[str] = []

    def observe(event: Any) -> None:
        lines.append(str(event.get("log_format")))

    globalLogPublisher.addObserver(observe)
    try:
        heard = Case(
            lab, "lab", [{"role": "user", "content": "hello <<fault:explode>> <<fault:stall>>"}]
        ).first(CHAT)
    finally:
        globalLogPublisher.removeObserver(observe)
    assert heard.finish == "stop"
    assert sum("directives are off" in line for line in lines) == 1
