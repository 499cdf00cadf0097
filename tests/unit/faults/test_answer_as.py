"""Answers of another kind than was asked for: a stream where none was, and a whole answer that begins like a stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.oracle import verify
from inference_lab.core.stream.preview import preview
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.axes_scripts import served
from tests.support.axes_values import PAIRED, changes_of, settings_for
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import FIN, OPEN, request

if TYPE_CHECKING:
    from tests.support.rawclient import Received

ASKED = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, COMPLETIONS: {"prompt": "hello"}}
ID = re.compile(rb'"(chatcmpl|cmpl)-[0-9a-f]{24}"')
CUT = "cut_between_frames;after_chunks=3;delay_ms=10;utf8=false"
SSE = "text/event-stream; charset=utf-8"
FILES = {
    "plain": "",
    "streams": '[fault]\nmode = "ok"\nanswer_as = "sse"\n',
    "cut": '[[fault.legs]]\nmode = "cut_between_frames"\nanswer_as = "sse"\n[[fault.legs]]\nmode = "reset"\n',
    "as_asked": '[fault]\nmode = "reset"\nanswer_as = "asked"\n',
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    models = {name: MODEL.format(name=name) + fault for name, fault in FILES.items()}
    return MemoryLab(write(tmp_path_factory.mktemp("answer_as"), models))


def ask(
    lab: MemoryLab, fault: str | None, path: str = CHAT, *, stream: bool = False, **more: Any
) -> Received:
    body = {"model": "plain", "stream": stream, "max_tokens": 5, **ASKED[path], **more}
    return lab.exchange(path, body, {"x-inference-lab-fault": fault} if fault else {})


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_said_on_a_request_without_a_stream_sse_is_the_stream_with_every_axis(path: str) -> None:
    met = 0
    for key in PAIRED:
        for value in changes_of(key):
            settings = settings_for(key, value)
            if "answer_as" in settings or "status" in settings or settings.get("at") == "request":
                continue
            wanted = served(tuple(settings.items()), path)
            got = served(tuple({**settings, "answer_as": "sse"}.items()), path, streaming=False)
            assert got == wanted, settings
            met += wanted is not None
    assert met > 100


ON_THE_WIRE = (
    *("ok", "cut_between_frames", "mid_reasoning", "error_400_in_sse", "no_done", "ok;tear=utf8;close=fin"),
    *("heartbeat_stall;beats=2", "ok;eol=crlf;id=true", "ok;segment=3", "ok;length=both", "ok;usage=always"),
    *("ok;at=head", "ok;after_chunks=2;then=rest;pause_ms=1500;heartbeat=event", "ok;close=eof"),
    *("ok;close=torn_chunk", "ok;dialect=vllm", "ok;usage_off_by=+2;usage=always", "ok;strict_params=true"),
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", ON_THE_WIRE)
def test_its_bytes_and_its_end_are_those_of_a_request_that_asked_for_the_stream(
    lab: MemoryLab, fault: str, path: str
) -> None:
    wanted = ask(lab, fault if fault != "ok" else "ok;eol=lf", path, stream=True)
    got = ask(lab, f"{fault};answer_as=sse", path)
    assert (got.status, got.end, got.headers.get("content-type")) == (
        200,
        wanted.end,
        wanted.headers["content-type"],
    )
    assert ID.sub(b"ID", got.after_head) == ID.sub(b"ID", wanted.after_head)


def test_usage_comes_where_the_body_asks_for_it(lab: MemoryLab) -> None:
    assert b'"usage"' not in ask(lab, "ok;answer_as=sse").body
    options = {"stream_options": {"include_usage": True}}
    got = ask(lab, "ok;answer_as=sse", **options)
    assert verify(got.body, tokens=5, ended="clean").outcome == "whole"
    assert b'"completion_tokens":5' in got.body
    assert "need usage" in ask(lab, "ok;answer_as=sse;usage_off_by=+1").error["message"]


def test_pings_for_ever_where_one_answer_was_asked_for(lab: MemoryLab) -> None:
    got = ask(lab, "stall;at=head;answer_as=sse;heartbeat=ping")
    assert (got.end, got.headers["content-type"]) == (OPEN, SSE)
    assert len(got.chunked.chunks) > 5
    assert set(got.chunked.chunks) == {b": ping\n\n"}


def test_a_prompt_a_list_and_a_models_file_may_ask_for_it(lab: MemoryLab) -> None:
    in_prompt = {"messages": [{"role": "user", "content": "<<fault:ok;answer_as=sse>>"}]}
    assert ask(lab, None, **in_prompt).headers["content-type"] == SSE
    listed = "cut_between_frames;after_chunks=2;answer_as=sse, reset;answer_as=sse"
    got = ask(lab, listed)
    assert (got.end, len(got.chunked.chunks)) == (FIN, 3)
    tag = re.findall(rb'"([a-z]{2})0000"', got.body)[0].decode()
    said = [*ASKED[CHAT]["messages"], {"role": "assistant", "content": f"{tag}0000 {tag}0001"}]
    leg = ask(lab, listed, messages=said)
    assert f" {tag}0002".encode() in leg.chunked.chunks[1]
    assert "needs a streaming request" in ask(lab, "cut_between_frames;answer_as=sse, reset").error["message"]
    assert ask(lab, None, model="streams").headers["content-type"] == SSE
    assert ask(lab, None, model="cut").end == FIN
    assert ask(lab, None, model="as_asked").json["object"] == "chat.completion"


def test_on_a_request_for_a_stream_sse_is_what_was_asked_for_and_ids_do_not_change(lab: MemoryLab) -> None:
    for mode in ("ok", "cut_between_frames", "json_200"):
        said = [
            ask(lab, f"{mode};close=fin;answer_as={word}", stream=True, model=model).body
            for word, model in (("sse", "plain"), ("asked", "plain"))
        ]
        assert said[0] == said[1]
    assert ask(lab, "reset;answer_as=sse", stream=True).raw == ask(lab, "reset", stream=True).raw
    shown = {str(preview(f"json_200;answer_as={word}")) for word in ("asked", "sse")}
    assert len(shown) == 1
    assert "fault': 'json_200;after_chunks=all;delay_ms=10;utf8=false;answer_as=sse'" in shown.pop()
    assert preview("ok;answer_as=sse") == preview("ok;eol=lf")


def test_the_journal_says_of_which_kind_an_answer_was(lab: MemoryLab) -> None:
    ask(lab, "cut_between_frames;answer_as=sse")
    row = list(lab.rows.values())[-1]
    assert (row.fault, row.stream) == (f"{CUT};answer_as=sse", False)
    assert (row.words, row.ending) == (3, "fin")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_head_of_a_stream_pings_and_the_json_late(lab: MemoryLab, path: str, *, stream: bool) -> None:
    fault = "ok;answer_as=json;content_type=text/event-stream;ttft_ms=3500;heartbeat=ping"
    got = ask(lab, fault, path, stream=stream)
    assert got.headers["content-type"] == "text/event-stream"
    assert got.headers["cache-control"] == "no-cache"
    *pings, late = got.chunked.chunks
    assert pings == [b": ping\n\n"] * 3
    assert got.chunked.terminated
    plain = ask(lab, "ok;ttft_ms=1", path).body
    assert ID.sub(b"ID", late) == ID.sub(b"ID", plain)


def test_the_head_is_sent_at_once_and_the_pings_in_their_time(lab: MemoryLab) -> None:
    fault = "ok;answer_as=json;content_type=text/event-stream;ttft_ms=2500;heartbeat=ping"
    channel, transport = lab.connect()
    body = b'{"model":"plain","messages":[{"role":"user","content":"hello"}],"max_tokens":2}'
    channel.dataReceived(request("POST", CHAT, body, headers={"x-inference-lab-fault": fault}))
    lab.clock.advance(0.001)
    for pings, step in enumerate((0.9, 1, 0.5)):
        lab.clock.advance(step)
        assert transport.value().count(b": ping") == pings
        assert b'"chat.completion"' not in transport.value()
        assert transport.value().startswith(b"HTTP/1.1 200 OK\r\n")
    lab.clock.advance(1)
    assert transport.value().endswith(b"0\r\n\r\n")
    assert b'"chat.completion"' in transport.value()
    transport.loseConnection()


BEGINS_AS_A_STREAM = {
    "json_200;content_type=text/plain": ("text/plain", OPEN),
    "ok;answer_as=json;heartbeat=bare;ttft_ms=1000": ("application/json", OPEN),
    "ok;answer_as=json_error;heartbeat=empty_delta;ttft_ms=1000;close=rst": ("application/json", FIN),
    "ok;answer_as=json;heartbeat=ping;close=hang": ("application/json", OPEN),
    "empty_200;heartbeat=ping;ttft_ms=1000": (SSE, OPEN),
    "empty_200;content_type=text/html": ("text/html", OPEN),
}


@pytest.mark.parametrize("fault", BEGINS_AS_A_STREAM)
def test_a_whole_answer_may_begin_like_a_stream(lab: MemoryLab, fault: str) -> None:
    for stream in (True, False):
        got = ask(lab, fault, stream=stream)
        assert (got.headers["content-type"], got.end) == BEGINS_AS_A_STREAM[fault]
        assert "content-length" not in got.headers
        assert got.chunked.terminated == ("close" not in fault)


REFUSED = {
    "ok;answer_as=sse;status=503": "answer_as excludes status",
    "ok;answer_as=sse;at=request;close=fin": "answer_as cannot be seen with at=request",
    "ok;answer_as=json;heartbeat=ping": "heartbeat needs a silence",
    "ok;answer_as=json;eol=crlf": "eol goes with a stream",
    "ok;answer_as=json;at=head": "at goes with a stream",
    "ok;answer_as=json;close=eof": "answer_as needs close=terminator, fin, rst or hang",
    "ok;status=503;content_type=text/plain": "content_type goes with a stream",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_makes_no_sense_beside_it_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match=f"^ok: {REFUSED[fault]}"):
        parse_directive(fault)


def test_json_alone_is_what_a_request_without_a_stream_gets_anyway(lab: MemoryLab) -> None:
    for fault in ("ok;answer_as=json", "ok;answer_as=asked", "ok;answer_as=json;close=fin"):
        assert "needs a streaming request" in ask(lab, fault).error["message"]
    assert ask(lab, "ok;answer_as=json;ttft_ms=5").json["object"] == "chat.completion"
