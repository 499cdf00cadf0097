"""Deaths in a second call, and behind a whole one: on both endpoints, in every format, and on the legs behind them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.faults.directive import DirectiveError, parse_directive
from inference_lab.core.faults.plan import plan_from_header
from inference_lab.core.oracle import verify
from tests.support.resuming import events

if TYPE_CHECKING:
    from tests.support.lab import MemoryLab

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OPEN = {
    "lab": '{"name": "NAME", "arguments": {"KEY": "',
    "hermes": '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "',
    "dsv4": '<\uff5cDSML\uff5cinvoke name="NAME">\n<\uff5cDSML\uff5cparameter name="KEY" string="true">',
}
CLOSE = {
    "lab": '"}}',
    "hermes": '"}}\n</tool_call>',
    "dsv4": "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n",
}
BEFORE = {"lab": "", "hermes": "", "dsv4": "\n\n<\uff5cDSML\uff5ctool_calls>\n"}
BETWEEN = {"lab": "", "hermes": "\n", "dsv4": ""}
BEHIND = {"lab": "", "hermes": "", "dsv4": "</\uff5cDSML\uff5ctool_calls>"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "parameters": {"properties": {"q": {"type": "string"}}}},
    }
]


def choices(lab: MemoryLab, path: str, model: str, fault: str | None, **more: Any) -> list[dict[str, Any]]:
    """The choices of a stream's frames."""
    own = {"prompt": "p266"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "p266"}]}
    body = {"model": model, "stream": True, **own, **more}
    got = lab.exchange(path, body, {"x-inference-lab-fault": fault} if fault else None)
    assert got.status == 200, got.raw
    frames = [json.loads(event[6:]) for event in events(got.body) if event.startswith(b"data: {")]
    return [choice for frame in frames for choice in frame["choices"]]


def texts(lab: MemoryLab, model: str, fault: str | None, **more: Any) -> list[str]:
    return [choice["text"] for choice in choices(lab, COMPLETIONS, model, fault, **more)]


def opening(template: str, name: str = "get_current_weather", key: str = "location") -> str:
    return OPEN[template].replace("NAME", name).replace("KEY", key)


@pytest.mark.parametrize("template", FORMATS)
def test_the_raw_text_of_a_second_call_that_dies_open(lab: MemoryLab, template: str) -> None:
    got = texts(lab, template, "cut_between_frames;after_chunks=8;content=tool_call_parallel")
    assert got == [
        BEFORE[template] + opening(template),
        *("qu0000", " qu0001", " qu0002" + CLOSE[template]),
        BETWEEN[template] + opening(template),
        *("qu0000", " qu0001", " qu0002"),
    ]


@pytest.mark.parametrize("template", FORMATS)
@pytest.mark.parametrize("frames", [3, 4])
def test_the_raw_text_of_a_call_that_the_last_frame_closes(
    lab: MemoryLab, template: str, frames: int
) -> None:
    got = texts(lab, template, f"cut_between_frames;after_chunks={frames};content=tool_call_complete")
    words = ["qu0000", " qu0001", " qu0002"][: frames - 1]
    words[-1] += CLOSE[template] + BEHIND[template]
    assert got == [BEFORE[template] + opening(template), *words]


def call(index: int, **function: str) -> dict[str, Any]:
    return {"index": index, "function": function}


@pytest.mark.parametrize("model", [*FORMATS, *(f"{template}-thinks" for template in FORMATS)])
@pytest.mark.parametrize("frames", [5, 6])
def test_the_deltas_of_a_second_call_that_dies_open(lab: MemoryLab, model: str, frames: int) -> None:
    fault = f"cut_between_frames;after_chunks={frames};content=tool_call_parallel"
    _, *spoken = choices(lab, CHAT, model, fault, tools=TOOLS)
    calls = [spoke["delta"]["tool_calls"][0] for spoke in spoken]
    first, second = calls[0].pop("id"), calls[3].pop("id")
    assert second == f"{first}_1"
    tag = calls[1]["function"]["arguments"][-6:-4]
    announced = {"type": "function", "function": {"name": "find", "arguments": ""}}
    assert calls == [
        {"index": 0, **announced},
        call(0, arguments=f'{{"q": "{tag}0000'),
        call(0, arguments=f' {tag}0001"}}'),
        {"index": 1, **announced},
        *(call(1, arguments=f'{{"q": "{tag}0000'), call(1, arguments=f" {tag}0001"))[: frames - 4],
    ]


@pytest.mark.parametrize("template", FORMATS)
def test_a_frame_torn_behind_them_is_the_second_calls(lab: MemoryLab, template: str) -> None:
    got = lab.exchange(
        CHAT,
        {"model": template, "stream": True, "messages": [{"role": "user", "content": "p266"}]},
        {"x-inference-lab-fault": "cut_mid_frame;utf8=true;after_chunks=5;content=tool_call_parallel"},
    )
    assert b'"tool_calls":[{"index":1,' in got.body.rpartition(b"data: ")[2]
    assert got.body.endswith(b"0001\xc3")


@pytest.mark.parametrize("template", FORMATS)
def test_a_leg_behind_a_second_call_ends_it_and_the_splice_is_right(lab: MemoryLab, template: str) -> None:
    died = "".join(texts(lab, template, "cut_between_frames;after_chunks=8;content=tool_call_parallel"))
    rest = texts(lab, template, None, prompt="p266" + died)
    assert rest[0] == " qu0003"
    assert rest[-2] == " qu0015é" + CLOSE[template] + BEHIND[template]
    verdict = verify(
        json.dumps({"choices": [{"text": died + "".join(rest), "finish_reason": "stop"}]}).encode()
    )
    assert (verdict.outcome, verdict.words) == ("whole", {"call": 19}), verdict


@pytest.mark.parametrize("template", FORMATS)
def test_a_leg_inside_a_call_closes_it_and_opens_the_next(lab: MemoryLab, template: str) -> None:
    begun = "p266" + BEFORE[template] + opening(template) + "qu0000 qu0001"
    got = texts(lab, template, "reset;after_chunks=5;content=tool_call_parallel", prompt=begun)
    second = BETWEEN[template] + opening(template)
    assert got == [" qu0002", " qu0003", " qu0004" + CLOSE[template], second, "qu0000"]
    whole = texts(lab, template, "reset;after_chunks=3;content=tool_call_complete", prompt=begun)
    assert whole == [" qu0002", " qu0003", " qu0004" + CLOSE[template] + BEHIND[template]]


def test_the_legs_of_a_list_begin_behind_the_words_of_both_calls() -> None:
    plan = plan_from_header(
        "reset;after_chunks=7;content=tool_call_parallel, reset;after_chunks=3;content=tool_call_complete, ok"
    )
    legs = [plan.fault_for(progress) for progress in (0, 4, 5, 7, 8)]
    assert [leg and leg.death.content for leg in legs] == [
        "tool_call_parallel",
        *["tool_call_complete"] * 3,
        None,
    ]


@pytest.mark.parametrize("dialect", ["openai", "vllm", "dynamo", "openrouter"])
def test_whole_calls_are_whole_to_the_oracle_in_every_dialect(lab: MemoryLab, dialect: str) -> None:
    for template in FORMATS:
        for path in (CHAT, COMPLETIONS):
            own = (
                {"prompt": "p266"}
                if path == COMPLETIONS
                else {"messages": [{"role": "user", "content": "p266"}]}
            )
            fault = (
                f"ok;after_chunks=5;content=tool_call_complete;finish=tool_calls;dialect={dialect};delay_ms=0"
            )
            body = {"model": template, "stream": True, "stream_options": {"include_usage": True}, **own}
            verdict = verify(lab.exchange(path, body, {"x-inference-lab-fault": fault}).body, tokens=4)
            assert (verdict.outcome, verdict.finish) == ("whole", "tool_calls"), verdict


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "reset;content=tool_call_parallel;after_chunks=4",
            "reset: content=tool_call_parallel needs after_chunks",
        ),
        (
            "reset;content=tool_call_complete;after_chunks=2",
            "reset: content=tool_call_parallel needs after_chunks",
        ),
        ("ok;content=tool_call_complete", "ok: content needs a number"),
        (
            "cut_mid_frame;content=tool_call_complete",
            "cut_mid_frame: content=tool_call_complete has no frame",
        ),
        ("reset;content=tool_call_parallel;after_chunks=5;overlap=1", "reset: overlap goes with"),
    ],
)
def test_what_such_a_call_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        parse_directive(text)
    assert str(refused.value).startswith(reason)


def test_a_call_that_has_come_to_its_end_is_not_called_again(lab: MemoryLab) -> None:
    said = "".join(texts(lab, "lab", "reset;content=tool_call_complete"))
    body = {"model": "lab", "stream": True, "prompt": "p266" + said}
    got = lab.exchange(COMPLETIONS, body, {"x-inference-lab-fault": "reset;content=tool_call_complete"})
    assert got.error["message"] == "reset: the tool call is already complete"
