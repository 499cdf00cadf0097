"""What a request, an endpoint or a model's file can do with a fault, and what it is told where it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import FIN, OPEN, request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rawclient import Received

ASKED = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, COMPLETIONS: {"prompt": "hello"}}
FILES = {
    "role": 'mode = "stall"\nat = "role"',
    "dropped": 'mode = "ok"\nafter_chunks = 3\nthen = "rest"\nsequence = "drop:9"',
    "busy": 'mode = "overloaded_503"',
    "cut": 'mode = "cut_between_frames"',
    "mixed": 'legs = [{mode = "overloaded_503", times = 1}, {mode = "reset"}]',
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    models = {"m": MODEL.format(name="m")}
    models |= {name: f"{MODEL.format(name=name)}[fault]\n{text}\n" for name, text in FILES.items()}
    return MemoryLab(write(tmp_path_factory.mktemp("axes"), models))


def ask(
    lab: MemoryLab,
    fault: str | None,
    path: str = CHAT,
    *,
    model: str = "m",
    stream: bool = True,
    **more: object,
) -> Received:
    body = {"model": model, "stream": stream, **ASKED[path], "max_tokens": 10, **more}
    return lab.exchange(path, body, {} if fault is None else {"x-inference-lab-fault": fault})


REFUSED_BY_THE_ANSWER = {
    "ok;after_chunks=3;then=rest;sequence=drop:8": "sequence=drop:8 needs as many frames behind",
    "ok;after_chunks=3;then=rest;sequence=swap:8": "sequence=swap:8 needs as many frames",
    "ok;sequence=dup:11": "sequence=dup:11 repeats more than the 10 content frames",
    "ok;frame_bytes=50": "frame_bytes=50 is less than the frame's",
    "ok;tear=byte:5000": "tear=byte:5000 is past the frame, which has",
    "ok;tear=utf8;content=tool_call;after_chunks=0": "tear=utf8 needs a word in the torn frame",
    "ok;length=-50000": "length=-50000 is more than the",
    "ok;segment=utf8;after_chunks=3": "segment changes nothing in this stream",
    "ok;at=head;eol=crlf": "eol changes nothing in this stream",
    "ok;at=head;done=true;comments=1": "comments changes nothing in this stream",
    "ok;at=head;final_blank=false": "final_blank changes nothing in this stream",
    "ok;at=head;segment=whole": "segment changes nothing in this stream",
    "ok;after_chunks=0;segment=5;gap_ms=5": "gap_ms changes nothing in this stream",
    "ok;after_chunks=90;segment=100;gap_ms=5": "gap_ms changes nothing in this stream",
    "ok;at=head;chunk_error=no_crlf;close=fin": "chunk_error=no_crlf needs a chunk before the fault point",
    "ok;at=head;error=plain;spacing=python": "spacing changes nothing in this stream",
    "ok;ttft_ms=9000;tear=byte:40;after_chunks=0;empty_finish=true;dialect=dynamo": "empty_finish changes nothing",
    "ok;close=tls_raw": "close=tls_raw needs TLS",
}


@pytest.mark.parametrize("fault", REFUSED_BY_THE_ANSWER)
def test_what_this_answer_cannot_show_is_refused_before_the_first_byte(lab: MemoryLab, fault: str) -> None:
    got = ask(lab, fault)
    assert got.status == 400
    assert got.error["code"] == "invalid_fault_directive"
    assert got.error["message"].startswith(f"ok: {REFUSED_BY_THE_ANSWER[fault]}")
    in_prompt = {"messages": [{"role": "user", "content": f"<<fault:{fault}>>"}]}
    error = ask(lab, None, **in_prompt).error
    assert error["message"].startswith(f"in the prompt: ok: {REFUSED_BY_THE_ANSWER[fault]}")
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    "fault",
    [
        "stall;at=role",
        "mid_reasoning;reasoning_key=reasoning",
        "ok;after_chunks=0;empty_finish=true",
        "reset;after_chunks=0;usage=null_every_chunk",
        "reset;after_chunks=0;eol=crlf",
        "reset;after_chunks=0;chunk_error=no_crlf",
    ],
)
def test_what_only_a_role_frame_can_show_is_refused_on_completions(lab: MemoryLab, fault: str) -> None:
    assert ask(lab, fault).status in {200, 400}
    assert ask(lab, fault, COMPLETIONS).error["code"] == "invalid_fault_directive"


@pytest.mark.parametrize("model", ["role", "dropped"])
def test_a_models_fault_that_this_request_cannot_meet_is_refused_with_the_files_name(
    lab: MemoryLab, model: str
) -> None:
    error = ask(lab, None, COMPLETIONS, model=model).error
    assert f"{model}.toml: [fault] " in error["message"]
    assert error["param"] is None


WITHOUT_A_STREAM = {
    "overloaded_429": (429, OPEN),
    "ok;status=502;body=html;close=fin": (502, FIN),
    "ok;answer_as=empty": (200, OPEN),
    "ok;answer_as=json_error;code=late": (200, OPEN),
    "ok;ttft_ms=500": (200, OPEN),
    "ok;ttft_ms=500;close=fin": (200, FIN),
    "stall;at=request": (0, OPEN),
    "cut_between_frames;at=request": (0, FIN),
}


@pytest.mark.parametrize("fault", WITHOUT_A_STREAM)
def test_some_faults_meet_a_request_without_a_stream(lab: MemoryLab, fault: str) -> None:
    got = ask(lab, fault, stream=False)
    assert (got.status, got.end) == WITHOUT_A_STREAM[fault]
    assert "transfer-encoding" not in got.headers
    if fault.startswith("ok;ttft_ms"):
        assert got.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_429_is_called_by_its_name(lab: MemoryLab, *, stream: bool) -> None:
    got = ask(lab, "overloaded_429", stream=stream)
    assert got.raw.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")


@pytest.mark.parametrize(
    "fault",
    [
        "reset",
        "ok",
        "ok;close=rst",
        "json_200",
        "ok;ttft_ms=5;eol=crlf",
        "stall;ttft_ms=5",
        "ok;at=head",
    ],
)
def test_the_others_are_refused_without_a_stream(lab: MemoryLab, fault: str) -> None:
    assert "needs a streaming request" in ask(lab, fault, stream=False).error["message"]


def test_a_list_may_end_healthy_without_a_stream(lab: MemoryLab) -> None:
    got = ask(lab, "cut_between_frames;at=request, ok", stream=False)
    assert got.status == 400, "an element that adds no word has no next leg"
    in_prompt = {"messages": [{"role": "user", "content": "<<fault:overloaded_429>>"}]}
    assert ask(lab, None, stream=False, **in_prompt).status == 429


def test_a_models_fault_meets_a_request_without_a_stream_only_if_it_can(lab: MemoryLab) -> None:
    assert ask(lab, None, model="busy", stream=False).status == 503
    assert ask(lab, None, model="busy").status == 503
    assert ask(lab, None, model="cut", stream=False).status == 200


def test_of_a_models_list_a_request_without_a_stream_meets_what_it_can(lab: MemoryLab) -> None:
    for first, then in ((False, (200, OPEN)), (True, (200, FIN))):
        asked = {"messages": [{"role": "user", "content": f"mixed {first}"}], "model": "mixed"}
        assert ask(lab, None, stream=not first, **asked).status == 503
        got = ask(lab, None, stream=first, **asked)
        assert (got.status, got.end) == then
    in_header = ask(lab, "overloaded_503;times=1, reset", stream=False)
    assert "needs a streaming request" in in_header.error["message"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset;chunk_error=bad_size", "reset: chunk_error=bad_size needs HTTP/1.1: HTTP/1.0 has no chunks"),
        ("ok;close=torn_chunk", "ok: close=torn_chunk needs HTTP/1.1: HTTP/1.0 has no chunks"),
        (
            "stale_connection",
            "stale_connection: close=stale needs HTTP/1.1: an HTTP/1.0 connection ends with its response",
        ),
    ],
)
def test_what_http_1_0_cannot_show_is_refused_there(lab: MemoryLab, fault: str, reason: str) -> None:
    body = json.dumps({"model": "m", "stream": True, **ASKED[CHAT]}).encode()
    head = request("POST", CHAT, body, headers={"x-inference-lab-fault": fault}, version="1.0")
    channel_answer = lab.send(head)
    assert channel_answer.error["code"] == "invalid_fault_directive"
    assert channel_answer.error["message"] == reason


def test_an_idle_connection_serves_the_next_request_in_time_and_is_closed_when_idle(lab: MemoryLab) -> None:
    body = json.dumps({"model": "m", "stream": True, **ASKED[CHAT], "max_tokens": 1}).encode()
    good = request(
        "POST", CHAT, body, headers={"x-inference-lab-fault": "ok;delay_ms=0;close=idle_close;idle_ms=500"}
    )
    channel, transport = lab.connect()
    channel.dataReceived(good)
    lab.clock.advance(0.4)
    assert transport.value().endswith(b"0\r\n\r\n")
    transport.clear()
    channel.dataReceived(good)
    lab.clock.advance(0.4)
    assert transport.value().endswith(b"0\r\n\r\n")
    assert transport.connected
    lab.clock.advance(0.2)
    assert not transport.connected


@pytest.mark.parametrize("close", ["idle_close", "stale"])
def test_what_a_kept_connection_meets_is_refused_where_the_client_closes_it(
    lab: MemoryLab, close: str
) -> None:
    body = {"model": "m", "stream": True, **ASKED[CHAT], "max_tokens": 1}
    headers = {"x-inference-lab-fault": f"ok;close={close}", "connection": "close"}
    got = lab.exchange(CHAT, body, headers)
    assert got.status == 400
    assert got.error["message"] == (
        f"ok: close={close} needs a connection that is kept: the request says connection: close"
    )
    for other in ("ok;close=terminator;delay_ms=0", "ok;close=fin;delay_ms=0"):
        assert lab.exchange(CHAT, body, {**headers, "x-inference-lab-fault": other}).status == 200


def test_told_ids_come_once_whatever_was_looked_at_first(lab: MemoryLab) -> None:
    for fault in ("ok;frame_bytes=600", "ok;tear=byte:9;close=fin", "ok;length=both", "ok;eol=crlf"):
        body = ask(lab, fault, COMPLETIONS, return_token_ids=True).after_head
        assert body.count(b"prompt_token_ids") == 1, fault
        assert body.index(b"prompt_token_ids") < body.index(b" qu") if b" qu" in body else True


def test_counts_are_of_what_was_sent(lab: MemoryLab) -> None:
    options = {"stream_options": {"include_usage": True}}
    for fault, words in (
        ("ok;after_chunks=3;then=rest;sequence=drop:2", 8),
        ("ok;after_chunks=3;sequence=dup:2", 3),
        ("ok;tokens_per_frame=varied;after_chunks=4", 8),
        ("ok;after_chunks=3;text_in_finish=true", 4),
        ("ok;tokens_per_frame=4;after_chunks=1;then=rest", 10),
    ):
        body = ask(lab, fault, **options).after_head
        assert b'"completion_tokens":%d,' % words in body, fault


def test_a_table_takes_tomls_own_types_and_the_words_for_null_and_absent(
    tmp_path: Path, lab: MemoryLab
) -> None:
    table = 'mode = "ok"\nafter_chunks = 1\nfinish = "none"\nerror = "openai"\ncode = "absent"\n'
    table += "delay_ms = 0\nid = true\n"
    other = MemoryLab(write(tmp_path, {"m": f"{MODEL.format(name='m')}[fault]\n{table}"}))
    from_header = "ok;after_chunks=1;finish=none;error=openai;code=absent;delay_ms=0;id=true"
    assert ask(other, None).after_head == ask(lab, from_header).after_head
