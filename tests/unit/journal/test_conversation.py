"""The verdict over the server's side: legs as a gateway asks for them, in memory, and what is found between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inference_lab.core.journal.conversation import Conversation, verdicts
from inference_lab.core.journal.findings import Kind, Note
from tests.reference_model.contract import CHAT, COMPLETIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inference_lab.core.journal.filters import Filter
    from inference_lab.core.journal.row import Row
    from tests.support.lab import MemoryLab

PROMPT = "<|user|>hello<|end|><|assistant|>"
FAULTS = "cut_between_frames;after_chunks=5;delay_ms=0, reset;after_chunks=3;delay_ms=0, ok"


class Gateway:
    """Asks for legs, one second apart, and keeps their rows."""

    def __init__(self, lab: MemoryLab) -> None:
        self._lab = lab
        self.tag = ""

    def leg(self, progress: int, *, fault: str = FAULTS, prompt: str = PROMPT, **more: Any) -> None:
        said = "".join(
            f"{' ' if n else ''}{self.tag}{n:04d}{'é' if n % 8 == 7 else ''}" for n in range(progress)
        )
        headers = {"x-inference-lab-fault": fault, **more.pop("headers", {})}
        body = {"model": "lab", "stream": True, "prompt": prompt + said, **more}
        self._lab.exchange(COMPLETIONS, body, headers)
        self.tag = self.tag or str(list(self._lab.rows.values())[-1].tag)

    def rows(self) -> list[Row]:
        """As they would be if the wall clock had moved on."""
        return [
            msgspec.structs.replace(row, id=number, time=row.time + 100.0 * number)
            for number, row in self._lab.rows.items()
        ]

    def verdict(self, **which: str) -> Conversation:
        (found,) = self.verdicts(**which)
        return found

    def verdicts(self, **which: str) -> list[Conversation]:
        rows = self.rows()

        def fetch(wanted: Filter) -> Iterable[Row]:
            return [
                row
                for row in rows
                if (wanted.prompt is None or row.prompt == wanted.prompt)
                and (wanted.test is None or row.test == wanted.test)
            ]

        if not which:
            which = {"prompt": str(rows[0].prompt)}
        return verdicts(fetch, prompt=which.get("prompt"), test=which.get("test"))


@pytest.fixture
def gateway(lab: MemoryLab) -> Gateway:
    return Gateway(lab)


def kinds(found: Conversation) -> list[tuple[Kind, int]]:
    return [(finding.kind, finding.leg) for finding in found.findings]


def notes(found: Conversation) -> list[tuple[Note, int]]:
    return [(note.kind, note.leg) for note in found.notes]


def test_legs_that_go_on_where_the_last_one_died_are_in_order(gateway: Gateway) -> None:
    for progress in (0, 5, 8):
        gateway.leg(progress)
    found = gateway.verdict()
    assert (found.end, kinds(found), notes(found)) == ("whole", [], [])
    assert [(leg.progress, leg.reached) for leg in found.legs] == [(0, 5), (5, 8), (8, 48)]


@pytest.mark.parametrize(
    ("progress", "kind", "message"),
    [
        (6, Kind.GAP, "it goes on behind 6 words, and 5 had been delivered"),
        (1, Kind.OVERLAP, "it goes on behind 1 word, and 5 had been delivered"),
        (0, Kind.RESTART, "it starts over, and 5 words had been delivered"),
    ],
)
def test_a_leg_from_another_place_is_found(gateway: Gateway, progress: int, kind: Kind, message: str) -> None:
    gateway.leg(0)
    gateway.leg(progress)
    found = gateway.verdict()
    assert kinds(found) == [(kind, 1)]
    assert found.findings[0].message == message


def test_a_leg_behind_done_is_found(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(5, fault="ok")
    gateway.leg(48, fault="ok")
    assert kinds(gateway.verdict()) == [(Kind.AFTER_DONE, 2)]


def test_a_leg_behind_done_is_found_also_where_the_connection_broke_off_behind_it(gateway: Gateway) -> None:
    gateway.leg(0, fault="cut_after_done")
    gateway.leg(48, fault="ok")
    assert kinds(gateway.verdict()) == [(Kind.AFTER_DONE, 1)]


@pytest.mark.parametrize("mode", ["error_envelope_200", "done_without_finish", "abort_finish"])
def test_a_leg_behind_done_is_due_where_the_answer_has_not_come_to_its_end(
    gateway: Gateway, mode: str
) -> None:
    gateway.leg(0, fault=f"{mode};after_chunks=5;delay_ms=0")
    assert gateway.verdict().end == "dead"
    gateway.leg(5, fault="ok")
    found = gateway.verdict()
    assert (found.end, kinds(found)) == ("whole", [])


@pytest.mark.parametrize("mode", ["no_done", "no_usage", "cut_after_finish", "fake_stop", "rst_after_done"])
def test_an_answer_that_has_come_to_its_finish_is_whole(gateway: Gateway, mode: str) -> None:
    gateway.leg(0, fault=f"{mode};delay_ms=0")
    assert gateway.verdict().end == "whole"


@pytest.mark.parametrize("fault", ["ok;tear=half", "no_done;tear=byte:5", "ok;tear=half;close=fin"])
def test_a_torn_answer_is_dead_although_its_mode_would_have_finished_it(gateway: Gateway, fault: str) -> None:
    gateway.leg(0, fault=f"{fault};after_chunks=5")
    assert gateway.verdict().end == "dead"


def test_a_status_is_no_answer(gateway: Gateway) -> None:
    gateway.leg(0, fault="overloaded_429")
    assert [row.ends_well for row in gateway.rows()] == [False]


def test_a_request_behind_an_error_in_place_of_an_answer_is_a_retry(gateway: Gateway) -> None:
    gateway.leg(0, fault="first_frame_error;delay_ms=0")
    gateway.leg(0, fault="ok")
    found = gateway.verdict()
    assert (found.end, kinds(found), notes(found)) == ("whole", [], [(Note.RETRY, 1)])


def test_a_leg_shows_its_limit_and_the_limit_is_not_judged(gateway: Gateway) -> None:
    gateway.leg(0, max_tokens=48)
    gateway.leg(5, max_completion_tokens=3)
    found = gateway.verdict()
    assert [leg.max_tokens for leg in found.legs] == [48, 3]
    assert kinds(found) == []


def test_changed_parameters_are_found_by_name(gateway: Gateway) -> None:
    gateway.leg(0, seed=7, temperature=0.5, max_tokens=48)
    gateway.leg(5, seed=8, max_tokens=43)
    found = gateway.verdict()
    assert kinds(found) == [(Kind.CHANGED, 1)]
    assert found.findings[0].message == "temperature 0.5 → not set, seed 7 → 8"


def test_a_client_that_leaves_a_silent_stream_gave_up(gateway: Gateway) -> None:
    gateway.leg(0, fault="stall;after_chunks=5;delay_ms=0")
    gateway.leg(5, fault="ok")
    found = gateway.verdict()
    assert (kinds(found), notes(found)) == ([], [(Note.GAVE_UP_ON_SILENCE, 1)])


LEFT = (
    # what went out last, what the leg says of its pace, and what is said of the leg after it
    ({"silent_ms": 999.0}, Kind.AFTER_CLIENT_LEFT),
    ({"silent_ms": 1000.0}, Note.GAVE_UP_ON_SILENCE),
    ({"silent_ms": 1000.0, "last_four_ms": 3000.0}, Note.GAVE_UP_ON_SILENCE),
    ({"silent_ms": 10.0, "last_four_ms": 1999.0}, Kind.AFTER_CLIENT_LEFT),
    ({"silent_ms": 10.0, "last_four_ms": 2000.0}, Note.GAVE_UP_ON_RATE),
    ({"silent_ms": 10.0, "finish": "stop"}, None),
    ({"silent_ms": 10.0, "error_sent": True}, None),
    ({"silent_ms": 10.0, "done_sent": True}, None),
    ({"silent_ms": None}, None),  # a journal of earlier
)


@pytest.mark.parametrize(("left", "expected"), LEFT)
def test_why_a_client_left_is_read_off_the_leg(
    gateway: Gateway, left: dict[str, Any], expected: Kind | Note | None
) -> None:
    gateway.leg(0, fault="cut_between_frames;after_chunks=5;ttft_ms=5000")  # whatever was asked for
    rows = gateway.rows()
    again = msgspec.structs.replace(rows[0], id=9, time=rows[0].time + 60, progress=5)
    rows = [msgspec.structs.replace(rows[0], ending="client_left", **left), again]
    (found,) = verdicts(lambda _: rows, prompt=rows[0].prompt)
    told = [finding.kind for finding in found.findings] + [note.kind for note in found.notes]
    assert told == ([] if expected is None else [expected])
    (alone,) = verdicts(lambda _: rows[:1], prompt=rows[0].prompt)
    is_early = expected is Kind.AFTER_CLIENT_LEFT
    assert (alone.findings, notes(alone)) == ((), [(Note.LEFT_EARLY, 0)] if is_early else [])


def test_an_attempt_that_delivered_nothing_may_be_made_again(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(5, fault="overloaded_503")
    gateway.leg(5, fault="ok")
    found = gateway.verdict()
    assert (kinds(found), notes(found)) == ([], [(Note.RETRY, 2)])


def test_what_may_not_have_been_read_is_not_called_an_overlap(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(3, fault="ok")
    rows = gateway.rows()
    for changes in ({"bytes_unsent": 10}, {"peer": "rst"}):
        changed = [msgspec.structs.replace(rows[0], **changes), rows[1]]
        (found,) = verdicts(lambda _, rows=changed: rows, prompt=rows[0].prompt, test=None)  # type: ignore[misc]
        assert kinds(found) == []


def test_a_leg_that_was_rendered_anew_joins_by_tag_and_test(gateway: Gateway) -> None:
    test = {"x-test-id": "t"}
    gateway.leg(0, headers=test)
    gateway.leg(5, headers=test, prompt="<|user|>hello, again<|end|><|assistant|>")
    gateway.leg(8, headers=test, fault="ok")
    for which in ({"test": "t"}, {"prompt": str(gateway.rows()[0].prompt)}):
        found = gateway.verdict(**which)
        assert (kinds(found), notes(found)) == ([], [(Note.RERENDERED, 1)])
        assert len(found.legs) == 3


def test_without_a_test_another_prompt_is_another_conversation(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(5, prompt="<|user|>hello, again<|end|><|assistant|>")
    assert len(gateway.verdict().legs) == 1


def test_the_same_prompt_asked_again_behind_a_whole_answer_is_another_conversation(gateway: Gateway) -> None:
    for test in ("t", "t", "u"):
        gateway.leg(0, fault="ok", headers={"x-test-id": test})
    assert [one.test for one in gateway.verdicts(test="t")] == ["t", "t"]
    assert [one.test for one in gateway.verdicts()] == ["t", "t", "u"]


def test_a_leg_beside_one_that_lasts_is_noted(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(5)
    rows = gateway.rows()
    rows[1] = msgspec.structs.replace(rows[1], time=rows[0].time)
    (found,) = verdicts(lambda _: rows, prompt=rows[0].prompt, test=None)
    assert notes(found) == [(Note.CONCURRENT, 1)]


def test_a_chat_and_a_raw_leg_of_it_are_one_conversation(lab: MemoryLab, gateway: Gateway) -> None:
    chat = {"model": "lab", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    lab.exchange(CHAT, chat, {"x-inference-lab-fault": FAULTS})
    gateway.tag = str(next(iter(lab.rows.values())).tag)
    gateway.leg(5)
    found = gateway.verdict()
    assert [leg.path for leg in found.legs] == [CHAT, COMPLETIONS]
    assert kinds(found) == []


def test_no_text_is_in_a_verdict(gateway: Gateway) -> None:
    gateway.leg(0)
    gateway.leg(6)
    text = msgspec.json.encode(gateway.verdict()).decode()
    assert "hello" not in text
    assert not re.search(rf"{gateway.tag}\d{{4}}", text)
