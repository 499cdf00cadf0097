"""What a later leg may do wrong: on the wire, in lists, and to the oracle, which names each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.faults.death import AXES, HEALTHY, LEG_KEYS
from inference_lab.core.faults.directive import DirectiveError, parse_directive
from inference_lab.core.faults.leg_keys import REJECTIONS
from inference_lab.core.faults.plan import plan_from_header, plan_from_prompt, plan_from_table
from inference_lab.core.faults.values import Choice
from inference_lab.core.oracle import Kind, verify
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.resuming import events

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rawclient import Received

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SAID = "qu0000 qu0001 qu0002 qu0003 qu0004"
PASSED_ON = 5


def leg(lab: MemoryLab, fault: str | None, *, chat: bool = False, said: str = SAID, **more: Any) -> Received:
    """A leg that continues five words, prefilled on chat."""
    messages = [{"role": "user", "content": "p266"}, {"role": "assistant", "content": said}]
    own: dict[str, Any] = {"messages": messages} if chat else {"prompt": "p266" + said}
    headers = {"x-inference-lab-fault": fault} if fault else None
    path = CHAT if chat else COMPLETIONS
    return lab.exchange(path, {"model": "lab", "max_tokens": 6, **USAGE, **own, **more}, headers)


def words(got: Received) -> list[int]:
    """The indices of the words of a stream."""
    text = "".join(
        choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        for event in events(got.body)
        if event.startswith(b"data: {")
        for choice in json.loads(event[6:])["choices"]
    )
    return [int(word[2:6]) for word in text.split()]


def usage(got: Received) -> dict[str, int]:
    told: dict[str, int] = json.loads(events(got.body)[-2][6:])["usage"]
    return told


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("directive", "expected"),
    [
        ("ok;overlap=3", [2, 3, 4, 5, 6, 7]),
        ("echo_overlap", [2, 3, 4, 5, 6, 7]),
        ("ok;overlap=3;after_chunks=2", [2, 3]),
        ("ok;overlap=99;after_chunks=2", [0, 1]),
        ("ok;skip=2;after_chunks=2", [7, 8]),
        ("ok;restart=true", [0, 1, 2, 3, 4, 5]),
        ("echo_restart", [0, 1, 2, 3, 4, 5]),
        ("cut_between_frames;restart=true", [0, 1, 2]),
        ("ok;overlap=1;after_chunks=1;then=rest", [4, 5, 6, 7, 8, 9]),
        ("ok;instant_stop=true", []),
        ("cut_between_frames;instant_stop=true", []),
        ("ok;role_again=false;bos_shift=true;after_chunks=1", [5]),
    ],
)
def test_a_leg_says_the_wrong_words(
    lab: MemoryLab, directive: str, expected: list[int], *, chat: bool
) -> None:
    got = leg(lab, f"{directive};delay_ms=0", chat=chat)
    assert got.status == 200, got.raw
    assert words(got) == expected


def test_a_torn_word_is_left_torn_by_a_leg_that_goes_on_elsewhere(lab: MemoryLab) -> None:
    assert words(leg(lab, "ok;skip=1;after_chunks=1", said=SAID + " qu00")) == [6]
    assert words(leg(lab, "ok;overlap=1;after_chunks=2", said=SAID + " qu00")) == [4, 5]


def test_a_leg_counts_wrongly(lab: MemoryLab) -> None:
    right = usage(leg(lab, "ok;after_chunks=2"))
    for directive, prompt, completion in (
        ("bos_shift=true", 1, 0),
        ("usage_off_by=+3", 0, 3),
        ("usage_off_by=-1", 0, -1),
        ("usage_off_by=-9", 0, -2),
        ("bos_shift=true;usage_off_by=+1", 1, 1),
    ):
        expected = {
            "prompt_tokens": right["prompt_tokens"] + prompt,
            "completion_tokens": right["completion_tokens"] + completion,
            "total_tokens": right["total_tokens"] + prompt + completion,
        }
        assert usage(leg(lab, f"ok;after_chunks=2;{directive}")) == expected
    stopped = usage(leg(lab, "ok;instant_stop=true;bos_shift=true"))
    assert stopped["prompt_tokens"] == right["prompt_tokens"] + 1
    assert stopped["completion_tokens"] == 1, "the stop token alone"


def test_an_instant_stop_needs_no_counts(lab: MemoryLab) -> None:
    got = leg(lab, "ok;instant_stop=true", stream_options=None)
    assert got.status == 200, got.raw
    finish, done = events(got.body)
    assert b'"text":"","logprobs":null,"finish_reason":"stop"' in finish
    assert done == b"data: [DONE]\n\n"


def test_a_second_role_frame_stands_behind_the_first(lab: MemoryLab) -> None:
    for more in ("", ";instant_stop=true"):
        first, second, third, *_ = events(leg(lab, f"ok;role_again=true{more}", chat=True).body)
        assert first == second
        assert b'"role"' in first
        assert b'"role"' not in third


REJECTED = {
    "prefill": {
        "message": "This model does not support assistant message prefill. "
        "The conversation must end with a user message.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_value",
    },
    "unsupported_param": {
        "message": "Unsupported parameter: 'continue_final_message' is not supported with this model.",
        "type": "invalid_request_error",
        "param": None,
        "code": "unsupported_parameter",
    },
    "context_length": {
        "message": "This model's maximum context length was exceeded",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
}


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("mode", ["ok", "cut_mid_frame", "reset;heartbeat=none;delay_ms=0"])
def test_a_leg_is_rejected_whatever_its_death_would_have_been(
    lab: MemoryLab, mode: str, *, chat: bool
) -> None:
    for name, error in REJECTED.items():
        got = leg(lab, f"{mode};reject={name}", chat=chat)
        assert (got.status, got.end, got.json) == (400, "open", {"error": error})


def test_a_leg_is_rejected_inside_its_stream(lab: MemoryLab) -> None:
    got = leg(lab, "cut_mid_frame;reject=context_length_in_stream", chat=True)
    role, error = events(got.body)
    assert b'"role"' in role
    assert error == (
        b'data: {"object":"error","message":"This model\'s maximum context length was exceeded",'
        b'"type":"BadRequestError","param":null,"code":400}\n\n'
    )
    assert got.chunked.terminated
    crlf = leg(lab, "cut_mid_frame;eol=crlf;reject=context_length_in_stream")
    assert crlf.body.startswith(b"data: {")
    assert crlf.body.endswith(b"}\r\n\r\n")


VALUES = {
    **dict.fromkeys(("restart", "bos_shift", "role_again", "instant_stop"), "true"),
    **dict.fromkeys(("overlap", "skip"), "2"),
    "reject": "prefill",
}


def test_every_key_of_legs_is_in_these_tests() -> None:
    assert sorted(VALUES) == sorted(LEG_KEYS)
    assert sorted(REJECTED) == sorted(set(REJECTIONS) - {"context_length_in_stream"})


@pytest.mark.parametrize(("key", "value"), VALUES.items())
def test_from_a_header_on_the_first_leg_it_is_refused_by_name(lab: MemoryLab, key: str, value: str) -> None:
    body = {"model": "lab", **USAGE, "messages": [{"role": "user", "content": "p266"}]}
    got = lab.exchange(CHAT, body, {"x-inference-lab-fault": f"ok;{key}={value}"})
    assert got.status == 400
    assert got.error["message"].startswith(f"{key} goes with a later leg")
    assert (
        lab.exchange(CHAT, {**body, "stream": False}, {"x-inference-lab-fault": f"ok;{key}={value}"}).status
        == 400
    )


def test_in_a_list_it_acts_on_its_leg_and_changes_where_the_next_one_begins() -> None:
    plan = plan_from_header("cut_between_frames;overlap=2, stall;overlap=1, reset;skip=2, ok")
    modes = {progress: fault and fault.mode for progress in range(12) for fault in [plan.fault_for(progress)]}
    cut, stall, reset = "cut_between_frames", "stall", "reset"
    expected = [cut, stall, stall, stall, stall, *[reset] * 5, None, None]
    assert list(modes.values()) == expected
    first, second = plan.fault_for(0), plan.fault_for(3)
    assert first is not None
    assert second is not None
    assert (first.death.overlap, second.death.overlap) == (0, 1)


def test_on_a_models_first_leg_nothing_is_left_of_a_fault_that_is_for_others() -> None:
    plan = plan_from_table({"mode": "echo_overlap", "name": "mine"})
    assert plan.fault_for(0) is None
    later = plan.fault_for(1)
    assert later is not None
    assert later.death.overlap == 3
    dying = plan_from_table({"mode": "reset", "reject": "prefill"})
    first, later = dying.fault_for(0), dying.fault_for(1)
    assert first is not None
    assert later is not None
    assert (first.death.close, first.death.status) == ("rst", 200)
    assert (later.death.close, later.death.status) == ("terminator", 400)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo_restart;after_chunks=2, ok", "element 0 of the list has restart"),
        ("reset;overlap=3, reset;overlap=3", "element 1 of the list adds no word"),
        ("reset, ok;instant_stop=true", "element 1 of the list adds no word"),
        ("reset, reset;reject=prefill, ok", "element 1 of the list adds no word"),
        ("ok;overlap=1;skip=1", "ok: overlap goes with text"),
        ("ok;reject=prefill;skip=1", "ok: reject excludes"),
        ("ok;instant_stop=true;usage_off_by=+1", "ok: usage_off_by has no effect: instant_stop"),
        ("ok;reject=context_length_in_stream;usage_off_by=+1", "ok: usage_off_by has no effect: reject"),
        ("reset;usage_off_by=+1", "reset: usage_off_by needs counts on the wire"),
        ("overloaded_429;skip=1", "overloaded_429: skip goes with a stream"),
        ("ok;usage_off_by=1", "usage_off_by is '1', expected a number +n or -n or none"),
        ("ok;skip=2;after_chunks=0", "ok: skip needs a word to act on"),
        # what no leg could show
        ("ok;instant_stop=true;close=rst", "ok: close has no effect: instant_stop takes its place"),
        ("ok;instant_stop=true;error=vllm", "ok: error has no effect: instant_stop"),
        ("reset;after_chunks=5;reject=prefill", "reset: after_chunks has no effect: reject=prefill"),
        ("reset;reject=prefill;eol=crlf", "reset: eol has no effect: reject=prefill"),
        ("reset, ok;reject=prefill;times=1;bom=true", "ok: bom has no effect: reject=prefill"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        plan_from_header(text)
    assert str(refused.value).startswith(reason)


def test_what_a_first_leg_may_still_show_is_kept_beside_a_refusal() -> None:
    for table in ({"mode": "reset", "after_chunks": 5}, {"mode": "ok", "eol": "cr", "close": "fin"}):
        plan_from_table({**table, "reject": "prefill"})
        plan_from_table({**table, "instant_stop": True})
    plan_from_header("ok;instant_stop=true;eol=crlf;usage=every_chunk;finish=stop;after_chunks=0;ttft_ms=5")
    plan_from_header("ok;instant_stop=true;after_chunks=all")  # a default asks for nothing
    plan_from_header("reset, ok;reject=context_length_in_stream;times=1;segment=byte;ttft_ms=5")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("ok;overlap=2;content=tool_call", "ok: overlap needs a word that it can repeat"),
        ("ok;skip=1;content=tool_call;after_chunks=1", "ok: skip needs a word to act on"),
        ("ok;usage_off_by=-1;after_chunks=0", "ok: usage_off_by=-1 needs a count above 0"),
    ],
)
def test_what_this_leg_has_no_word_for_is_refused(lab: MemoryLab, fault: str, reason: str) -> None:
    more = "" if "after_chunks" in fault else ";after_chunks=3"
    for chat in (True, False):
        got = leg(lab, fault + more, chat=chat)
        assert got.status == 400
        assert got.error["message"].startswith(reason)


@pytest.mark.parametrize(
    ("model", "fault", "reason"),
    [
        ("lab", "ok;overlap=2", "ok: overlap needs a word to act on"),
        ("lab", "ok;skip=2", "ok: skip needs a word to act on"),
        ("lab", "ok;usage_off_by=-1", "ok: usage_off_by=-1 needs a count above 0"),
        ("configured", None, "configured.toml: [fault] echo_overlap: overlap needs a word to act on"),
    ],
)
def test_where_nothing_is_left_of_the_answer_a_leg_has_no_word_to_do_wrong(
    ended: MemoryLab, model: str, fault: str | None, reason: str
) -> None:
    got = leg(ended, fault, model=model)
    assert got.status == 400, got.raw
    assert reason in got.error["message"]
    assert leg(ended, "ok;restart=true" if fault else "ok;eol=crlf", model=model).status == 200


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """Models whose whole answer is what has been passed on."""
    text = f"[answer]\ntokens = {PASSED_ON}\n"
    fault = '[fault]\nmode = "echo_overlap"\n'
    models = {
        "lab": MODEL.format(name="lab") + text,
        "configured": MODEL.format(name="configured") + text + fault,
    }
    return MemoryLab(write(tmp_path_factory.mktemp("ended"), models))


def test_a_list_of_one_has_no_later_leg() -> None:
    with pytest.raises(DirectiveError, match="overlap is for later legs"):
        plan_from_prompt("echo_overlap")
    with pytest.raises(DirectiveError, match="reject is for later legs"):
        plan_from_table({"legs": [{"mode": "reset", "reject": "prefill"}]})


def test_a_default_is_no_key_of_legs() -> None:
    assert parse_directive("ok;overlap=0;restart=false;usage_off_by=none;reject=none;skip=0").death == HEALTHY


def test_wrong_counts_need_counts_that_were_asked_for(lab: MemoryLab) -> None:
    for key in ("bos_shift=true", "usage_off_by=+1"):
        got = leg(lab, f"ok;{key}", stream_options=None)
        assert got.status == 400
        assert "need usage" in got.error["message"]
        assert leg(lab, f"ok;{key};usage=always", stream_options=None).status == 200


def test_role_again_needs_a_role_frame(lab: MemoryLab) -> None:
    for fault, chat in (("ok;role_again=true", False), ("ok;role_again=true;dialect=dynamo", True)):
        got = leg(lab, fault, chat=chat)
        assert got.status == 400
        assert "needs a role frame" in got.error["message"]


# What a gateway's client gets where the gateway passes a misbehaving leg on as it comes.
NAMED = {
    "overlap=2": Kind.REPEAT,
    "skip=2": Kind.GAP,
    "restart=true": Kind.RESTART,
    "role_again=true": Kind.SECOND_ROLE,
    "instant_stop=true": Kind.SILENT_TRUNCATION,
    "usage_off_by=-1": Kind.USAGE_WORDS,
    "usage_off_by=+1": Kind.USAGE_WORDS,
}


@pytest.mark.parametrize("directive", NAMED)
def test_the_oracle_names_what_a_leg_did_wrong(lab: MemoryLab, directive: str) -> None:
    body = {"model": "lab", **USAGE, "max_tokens": 11, "messages": [{"role": "user", "content": "p266"}]}
    whole = lab.exchange(CHAT, body)
    tag = next(word for word in whole.body.decode().split('"') if word.endswith("0000"))[:2]
    first = events(whole.body)[: PASSED_ON + 1]
    said = "".join(f"{' ' if index else ''}{tag}{index:04d}" for index in range(PASSED_ON))
    got = leg(lab, f"ok;delay_ms=0;{directive}", chat=True, said=said)
    assert got.status == 200, got.raw
    head = json.loads(first[0][6:])
    spliced = list(first)
    for event in events(got.body)[1:]:  # a gateway knows of one role frame, which it drops
        if event == b"data: [DONE]\n\n":
            spliced.append(event)
            continue
        frame = json.loads(event[6:]) | {"id": head["id"], "created": head["created"]}
        if not frame["choices"]:
            told = frame["usage"]
            told["completion_tokens"] += PASSED_ON
            told["prompt_tokens"] -= PASSED_ON
        spliced.append(b"data: %b\n\n" % json.dumps(frame).encode())
    verdict = verify(b"".join(spliced), tokens=11)
    assert verdict.outcome == "wrong"
    assert NAMED[directive] in {finding.kind for finding in verdict.findings}, verdict


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    text = MODEL.format(name="lab") + '[fault]\nmode = "ok"\nstrict_params = true\n'
    folder: Path = tmp_path_factory.mktemp("strict")
    return MemoryLab(write(folder, {"lab": text}))


def test_a_strict_server_refuses_fields_that_it_does_not_know(lab: MemoryLab, strict: MemoryLab) -> None:
    body = {"model": "lab", "prompt": [1, 2], "max_tokens": 2, "temperature": 0.5, "stop": None}
    leg_body = body | {"nvext": {"agent_hints": {"priority": 1}}, "seed": 3, "top_p": 1, "logit_bias": {}}
    for stream in (True, False):
        for good in (body, leg_body, body | {"custom": None}):
            assert strict.exchange(COMPLETIONS, good | {"stream": stream}).status == 200
        for got in (
            strict.exchange(COMPLETIONS, body | {"stream": stream, "custom": 1}),
            lab.exchange(
                COMPLETIONS,
                body | {"stream": stream, "custom": 1},
                {"x-inference-lab-fault": "ok;strict_params=true"},
            ),
        ):
            assert got.status == 400
            assert got.error["message"] == "Unrecognized request argument supplied: custom"
            assert got.error["param"] == "custom"


def test_every_rejection_that_may_be_asked_for_is_there() -> None:
    assert AXES["reject"].kind.expected == Choice("none", *REJECTIONS).expected
