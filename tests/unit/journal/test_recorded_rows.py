"""A request's row says what a reader of the bytes finds: the same counts, the same ending, and no text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inference_lab.core.faults.modes import MODES
from inference_lab.core.journal.row import digest
from inference_lab.wire.h1 import response as h1_response
from inference_lab.wire.recording import BATCH_S
from inference_lab.wire.request import LabRequest
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import WORDS
from tests.support.rawclient import Received, request

if TYPE_CHECKING:
    from inference_lab.core.journal.row import Row
    from tests.support.lab import MemoryLab

WORD = re.compile(r"[a-z]{2}\d{4,}", re.IGNORECASE)
SECRET = "nobody-may-read-this"  # noqa: S105 - stands for one
MORE = (
    "ok;after_chunks=all",
    "ok;segment=byte",
    "ok;segment=7",
    "ok;segment=whole",
    "ok;eol=crlf;multiline=2;spacing=python",
    "ok;tokens_per_frame=varied",
    "ok;after_chunks=4;text_in_finish=true",
    "ok;after_chunks=4;sequence=dup:2",
    "ok;after_chunks=4;sequence=after_done",
    "ok;after_chunks=4;frame_bytes=100000",
    "ok;done=twice",
    "ok;chunk_error=trailer",
    "ok;length=both",
    "ok;dialect=vllm",
    "ok;dialect=openrouter",
    "ok;dialect=dynamo",
    "fake_stop;final_blank=false",
    "cut_mid_frame;tear=byte:7",
    "ok;content=tool_call_parallel;after_chunks=7",
)
NOT_MET = {"stale_connection", "echo_restart", "echo_overlap"}  # by one request alone, which is no later leg


def body_of(endpoint: str, **more: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": SECRET}]} if endpoint == CHAT else {"prompt": SECRET}
    return {"model": "lab", **asked, **more}


def only_row(lab: MemoryLab) -> Row:
    (row,) = lab.rows.values()
    return row


def texts(got: Received) -> list[str]:
    """What each content frame of an SSE body says, whatever its spelling."""
    found = []
    for block in re.split(r"\n\n|\r\n\r\n|\r\r", got.body.decode("utf-8", "replace"))[:-1]:
        data = "\n".join(
            line.removeprefix("data:").removeprefix(" ")
            for line in block.splitlines()
            if line.startswith("data:")
        )
        try:
            choices = json.loads(data)["choices"]
        except (ValueError, KeyError, TypeError):
            continue
        for choice in choices or ():
            said = choice.get("delta", choice)
            if not isinstance(said, dict):
                continue
            text = said.get("content") or said.get("reasoning_content") or said.get("text") or ""
            calls = said.get("tool_calls") or []
            if text or calls:
                found.append(text + "".join(call["function"].get("arguments", "") for call in calls))
    return found


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("directive", [*(mode for mode in MODES if mode not in NOT_MET), *MORE])
def test_the_counts_are_those_of_the_bytes(lab: MemoryLab, endpoint: str, directive: str) -> None:
    got = lab.exchange(
        endpoint,
        body_of(endpoint, stream=True, max_tokens=12),
        {"x-inference-lab-fault": directive},
    )
    row = only_row(lab)
    assert row.ending != "refused", got.raw
    assert row.bytes_written == row.bytes_acknowledged == len(got.raw)
    assert row.status == got.status
    if b"text/event-stream" not in got.head or "encoding" in directive:
        assert row.content_frames == 0
        return
    if "dup" in directive:
        said = texts(got)
        assert (row.content_frames, row.words) == (len(said), len(set(said)))
        return
    said = texts(got)
    assert row.words == sum(len(WORD.findall(text)) for text in said)
    assert row.content_frames == len(said)
    assert row.done_sent == (re.search(rb"\[DONE\](\n\n|\r\n\r\n|\r\r)", got.body) is not None)
    assert row.reached == row.words
    assert (row.trigger, row.leg) == ("header", 0)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
def test_a_healthy_answer_says_all_its_words(lab: MemoryLab, endpoint: str, *, stream: bool) -> None:
    got = lab.exchange(endpoint, body_of(endpoint, stream=stream))
    row = only_row(lab)
    assert (row.state, row.trigger, row.leg) == ("ended", "engine", 0)
    assert (row.words, row.reached) == (WORDS, WORDS)
    assert (row.ending_asked, row.ending, row.peer) == ("terminator", "terminator", "none")
    assert (row.stream, row.done_sent) == (stream, stream)
    assert row.bytes_written == len(got.raw)
    assert row.engine is not None
    assert (row.engine.submitted_ms, row.engine.queued_ms, row.engine.ttft_ms) == (0, 0, 0)


def test_no_text_of_prompt_or_answer_and_no_other_header_is_in_a_row(lab: MemoryLab) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "x-own": SECRET, "x-test-id": "t.1", "x-request-id": "r"}
    lab.exchange(CHAT, body_of(CHAT, stream=True, metadata={"k": SECRET}, user=SECRET), headers)
    row = only_row(lab)
    text = msgspec.json.encode(row).decode()
    assert SECRET not in text
    assert f"{row.tag}0000" not in text
    assert {"authorization", "x-own"} <= set(row.other_headers)
    assert (row.test, row.request_id) == ("t.1", "r")
    assert row.ignored == ("metadata", "user")


def test_legs_of_one_answer_have_one_key_and_each_its_place(lab: MemoryLab) -> None:
    asked = body_of(CHAT, stream=True, seed=7, stop=["x"])
    first = lab.exchange(
        CHAT, asked, {"x-inference-lab-fault": "cut_between_frames;after_chunks=5, reset, ok"}
    )
    said = "".join(texts(first))
    messages = [*asked["messages"], {"role": "assistant", "content": said}]
    headers = {"x-inference-lab-fault": "cut_between_frames;after_chunks=5, reset, ok"}
    lab.exchange(CHAT, {**asked, "messages": messages}, headers)
    one, two = lab.rows.values()
    assert one.prompt == two.prompt
    assert one.tag == two.tag
    assert (one.progress, one.leg, one.reached) == (0, 0, 5)
    assert (two.progress, two.leg, two.reached) == (5, 1, 8)
    assert two.fault is not None
    assert two.fault.startswith("reset")
    assert two.parameters == {"seed": 7, "stop": ["x"]}


@pytest.mark.parametrize(
    ("keys", "reached"), [("overlap=2", 6), ("skip=2", 10), ("restart=true", 3), ("instant_stop=true", 5)]
)
def test_where_a_leg_ends_counts_what_it_repeats_or_leaves_out(
    lab: MemoryLab, keys: str, reached: int
) -> None:
    tag = "qu"
    said = " ".join(f"{tag}{index:04d}" for index in range(5))
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": said}]
    body = {"model": "lab", "stream": True, "messages": messages}
    lab.exchange(CHAT, body, {"x-inference-lab-fault": f"cut_between_frames;{keys}"})
    row = only_row(lab)
    assert (row.reached, row.leg) == (reached, None)  # no list tells which one it is


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (request("GET", "/nowhere"), 404, "not_found"),
        (request("GET", "//twice"), 404, "not_found"),
        (request("GET", CHAT), 405, "method_not_allowed"),
        (request("POST", CHAT, b"{"), 400, "invalid_request"),
        (
            request("POST", CHAT, json.dumps({**body_of(CHAT), "model": "no"}).encode()),
            404,
            "model_not_found",
        ),
        (request("POST", CHAT, b"{}", headers={"x-test-id": "a/b"}), 400, "invalid_test_id"),
        (request("POST", CHAT, headers={"content-length": str(2**40)}), 413, "body_too_large"),
        (request("GET", "/v1/models"), 200, None),
        (request("POST", "/tokenize", b'{"model":"lab","prompt":"x"}'), 200, None),
    ],
)
def test_what_is_no_completion_has_a_row_too(
    lab: MemoryLab, data: bytes, status: int, error: str | None
) -> None:
    got = lab.send(data)
    row = only_row(lab)
    assert (got.status, row.status, row.error, row.test) == (status, status, error, None)
    assert row.ending == ("terminator" if error is None else "refused")
    assert row.bytes_written == len(got.raw)


@pytest.mark.parametrize(
    ("endpoint", "directive", "more"),
    [
        (COMPLETIONS, None, {"max_tokens": 2**31 - 1}),
        (COMPLETIONS, "reset;strict_params=true", {"foo": 1}),
        (COMPLETIONS, "ok;at=role;close=fin", {}),
        (CHAT, "reset;after_chunks=x", {}),
    ],
)
def test_a_refusal_ends_as_one_whatever_was_to_answer_before_it(
    lab: MemoryLab, endpoint: str, directive: str | None, more: dict[str, Any]
) -> None:
    headers = {} if directive is None else {"x-inference-lab-fault": directive}
    got = lab.exchange(endpoint, body_of(endpoint, stream=True, **more), headers)
    row = only_row(lab)
    assert (got.status, row.status, row.error) == (400, 400, got.error["code"])
    assert (row.ending, row.ending_asked, row.ends_well) == ("refused", None, False)


@pytest.mark.parametrize(
    ("path", "headers"),
    [(CHAT, {"x-inference-lab-fault": "rezet"}), ("/nowhere", {}), ("//twice", {}), (CHAT, {})],
)
def test_a_body_that_is_refused_unread_is_told_like_any_other(
    lab: MemoryLab, path: str, headers: dict[str, str]
) -> None:
    body = b'{"model":"no","messages":[1]}'
    lab.exchange(path, body, headers)
    row = only_row(lab)
    assert (row.body_bytes, row.body_digest) == (len(body), digest(body))


def test_of_a_body_that_has_not_come_nothing_is_told(lab: MemoryLab) -> None:
    lab.send(request("POST", CHAT, headers={"content-length": str(2**40)}))
    assert (only_row(lab).body_bytes, only_row(lab).body_digest) == (None, None)


def test_a_death_before_the_head_has_no_status(lab: MemoryLab) -> None:
    got = lab.exchange(CHAT, body_of(CHAT, stream=True), {"x-inference-lab-fault": "ok;at=request;close=fin"})
    row = only_row(lab)
    assert (got.raw, row.status, row.ending, row.bytes_written) == (b"", None, "fin", 0)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/lab/faults", "/lab/journal"])
def test_looking_at_the_server_leaves_no_row(lab: MemoryLab, path: str) -> None:
    lab.send(request("OPTIONS", path))
    assert not lab.rows


def test_a_row_is_open_while_its_stream_is(lab: MemoryLab) -> None:
    channel, transport = lab.connect()
    body = json.dumps(body_of(CHAT, stream=True)).encode()
    channel.dataReceived(request("POST", CHAT, body, headers={"x-inference-lab-fault": "stall;delay_ms=0"}))
    row = only_row(lab)
    assert (row.state, row.ending_asked, row.ending, row.words) == ("open", "hang", None, 3)
    lab.clock.advance(2.5)
    transport.loseConnection()
    row = only_row(lab)
    assert (row.state, row.ending, row.peer, row.peer_s) == ("ended", "client_left", "fin", 2.5)
    assert (row.words, row.duration_ms) == (3, 2500)


def test_rows_are_handed_over_together_and_each_once_a_batch(lab: MemoryLab) -> None:
    faults = ("ok;delay_ms=0", "stall;delay_ms=0", "ok;delay_ms=0")
    body = json.dumps(body_of(CHAT, stream=True)).encode()
    for fault in faults:
        channel, _ = lab.connect()
        channel.dataReceived(request("POST", CHAT, body, headers={"x-inference-lab-fault": fault}))
        lab.clock.advance(0)
    assert not lab.handed_over
    lab.clock.advance(BATCH_S)
    (batch,) = lab.handed_over.batches
    assert sorted(row.state for row in batch) == ["ended", "ended", "open"]


def test_a_row_is_open_until_its_last_bytes_are_out_and_ended_once(
    lab: MemoryLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = [10]
    monkeypatch.setattr(h1_response, "unsent_now", lambda _: under_way[0])
    channel, _ = lab.connect()
    body = json.dumps(body_of(CHAT, stream=True)).encode()
    channel.dataReceived(request("POST", CHAT, body, headers={"x-inference-lab-fault": "ok;delay_ms=0"}))
    lab.clock.advance(BATCH_S)
    under_way[0] = 0
    lab.clock.advance(1)
    lab.clock.advance(BATCH_S)
    rows = [row for batch in lab.handed_over.batches for row in batch]
    assert [(row.state, row.ending, row.bytes_unsent) for row in rows] == [
        ("open", None, 10),
        ("ended", "terminator", 0),
    ]


def test_what_is_answered_behind_the_end_leaves_no_timer(
    lab: MemoryLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h1_response, "unsent_now", lambda _: 10)
    channel, transport = lab.connect()
    lab.end()
    channel.dataReceived(request("GET", "/v1/models"))
    (row,) = lab.handed_over.values()
    assert row.bytes_unsent == 10
    transport.loseConnection()
    assert lab.clock.getDelayedCalls() == []


def test_a_stall_keeps_no_body_and_a_client_that_leaves_it_no_cycle(lab: MemoryLab) -> None:
    channel, transport = lab.connect()
    body = json.dumps(body_of(CHAT, stream=True)).encode()
    channel.dataReceived(
        request("POST", CHAT, body, headers={"x-inference-lab-fault": "stall;after_chunks=1;delay_ms=0"})
    )
    (stalled,) = channel.requests
    assert isinstance(stalled, LabRequest)
    assert stalled.content.getvalue() == b""
    assert not list(stalled.requestHeaders.getAllRawHeaders())
    assert not {*LabRequest.__slots__} & vars(stalled).keys()
    assert len(vars(stalled)) <= 29
    transport.loseConnection()
    assert channel.requests == []
    assert only_row(lab).ending == "client_left"
