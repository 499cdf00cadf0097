"""A wrong completion_tokens: on any leg, the first one too, whoever asks for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.faults.plan import plan_from_table
from inference_lab.core.oracle import Kind, verify
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.resuming import events

if TYPE_CHECKING:
    from tests.support.rawclient import Received

SAID = "qu0000 qu0001 qu0002 qu0003 qu0004"
ROW = 'mode = "ok"\nafter_chunks = 2\nusage_off_by = 3\n'
OFF = "ok;after_chunks=2;usage_off_by=+3"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    models = {
        "right": MODEL.format(name="right"),
        "every": MODEL.format(name="every") + "[fault]\n" + ROW,
        "listed": MODEL.format(name="listed") + f"[[fault.legs]]\n{ROW}" * 4,
    }
    return MemoryLab(write(tmp_path_factory.mktemp("off_by"), models))


def ask(lab: MemoryLab, fault: str | None, path: str = CHAT, said: str = "", **more: Any) -> Received:
    messages = [{"role": "user", "content": "p266"}, {"role": "assistant", "content": said}]
    own = {"messages": messages[: 1 + bool(said)]} if path == CHAT else {"prompt": "p266" + said}
    body = {"model": "right", "stream": True, "stream_options": {"include_usage": True}, **own, **more}
    return lab.exchange(path, body, {"x-inference-lab-fault": fault} if fault else None)


def counted(got: Received) -> int:
    tokens: int = json.loads(events(got.body)[-2][6:])["usage"]["completion_tokens"]
    return tokens


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("said", ["", SAID])
def test_any_leg_counts_wrongly_the_first_one_too(lab: MemoryLab, path: str, said: str) -> None:
    assert counted(ask(lab, "ok;after_chunks=2", path, said)) == 2
    for fault in (OFF, ", ".join([OFF] * 4)):
        assert counted(ask(lab, fault, path, said)) == 5
    for model in ("every", "listed"):
        assert counted(ask(lab, None, path, said, model=model)) == 5


def test_a_list_of_one_and_a_prompt_may_ask_for_it(lab: MemoryLab) -> None:
    in_prompt = [{"role": "user", "content": f"<<fault:{OFF}>>"}]
    assert counted(ask(lab, None, messages=in_prompt)) == 5


def test_the_oracle_calls_a_first_leg_wrong_that_claims_words_which_never_came(lab: MemoryLab) -> None:
    for off_by in ("+3", "-1"):
        verdict = verify(ask(lab, f"ok;after_chunks=2;usage_off_by={off_by}").body, tokens=2)
        assert verdict.outcome == "wrong"
        assert [finding.kind for finding in verdict.findings] == [Kind.USAGE_WORDS]


def test_beside_a_refusal_of_later_legs_the_first_one_counts_wrongly() -> None:
    for key, value in (("instant_stop", True), ("reject", "prefill"), ("reject", "context_length_in_stream")):
        plan = plan_from_table({"mode": "ok", "usage_off_by": 3, key: value})
        first, later = plan.fault_for(0), plan.fault_for(5)
        assert first is not None
        assert later is not None
        assert (first.death.usage_off_by, later.death.usage_off_by) == (3, "none")


@pytest.mark.parametrize("said", ["", SAID])
def test_what_puts_no_count_on_the_wire_cannot_count_wrongly(lab: MemoryLab, said: str) -> None:
    for fault, reason in {
        "ok;tear=half;usage_off_by=+1": "needs counts on the wire",
        "reset;usage_off_by=+1": "needs counts on the wire",
        "ok;after_chunks=0;usage_off_by=-1": "needs a count above 0",
    }.items():
        assert reason in ask(lab, fault, said=said).error["message"]
    assert "need usage" in ask(lab, OFF, said=said, stream_options=None).error["message"]
