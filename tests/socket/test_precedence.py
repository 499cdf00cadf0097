"""Header before [fault] before echo-directive before engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.reference_model.contract import (
    CHAT,
    COMPLETIONS,
    DONE,
    ENDPOINTS,
    HELLO,
    Stream,
    expected_chunks,
    lab_ids,
    tag_of,
)
from tests.support.rawclient import FIN, RST, Received, exchange, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

CLOSE = {"Connection": "close"}


def post(server: Server, endpoint: str, body: bytes) -> Received:
    return exchange(server.address, request("POST", endpoint, body, headers=CLOSE))


def said(text: str, **more: Any) -> bytes:
    return payload(CHAT, messages=[{"role": "user", "content": text}], **more)


class TestStaticFault:
    """A model whose TOML kills every stream; the file says cut_mid_frame, 5 chunks, utf8."""

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_every_stream_dies_as_the_file_says_without_the_flag(
        self, no_directives: Server, endpoint: str
    ) -> None:
        got = post(no_directives, endpoint, payload(endpoint, model="static"))
        stream = Stream.of(endpoint, got.chunked.chunks[0], tag_of(HELLO[endpoint]))
        assert stream.model == "static"
        assert got.chunked.chunks == expected_chunks(stream, "cut_mid_frame", 5, utf8=True)
        assert (got.end, got.chunked.terminated) == (FIN, False)

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_its_defaults_are_those_of_the_header(self, no_directives: Server, endpoint: str) -> None:
        got = post(no_directives, endpoint, payload(endpoint, model="static-reset"))
        assert got.end == RST
        assert len(got.chunked.chunks) == 3 + (endpoint == CHAT)

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_it_gives_the_bytes_that_the_same_header_gives(self, server: Server, endpoint: str) -> None:
        body = payload(endpoint, model="static")
        header = fault_request(endpoint, "cut_mid_frame;after_chunks=5;delay_ms=0;utf8=true", body)
        assert post(server, endpoint, body).after_head == exchange(server.address, header).after_head

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    @pytest.mark.parametrize("stream", [False, None])
    def test_a_request_that_does_not_stream_is_served_normally(
        self, no_directives: Server, endpoint: str, *, stream: bool | None
    ) -> None:
        got = post(no_directives, endpoint, payload(endpoint, model="static", stream=stream, max_tokens=4))
        assert got.status == 200
        assert got.json["usage"]["completion_tokens"] == 4

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_a_header_wins_over_it(self, server: Server, endpoint: str) -> None:
        got = exchange(server.address, fault_request(endpoint, "reset", payload(endpoint, model="static")))
        assert got.end == RST
        assert len(got.chunked.chunks) == 3 + (endpoint == CHAT)

    def test_it_wins_over_an_echo_directive(self, server: Server) -> None:
        got = post(server, CHAT, said('<<respond:{"text":"hi"}>>', model="static"))
        assert b"hi" not in got.after_head
        assert got.after_head.endswith(b"\xc3\r\n")


class TestEcho:
    """`<<respond:…>>` in a chat message is answered verbatim."""

    def _whole(self, server: Server, text: str) -> dict[str, Any]:
        got = post(server, CHAT, said(text, stream=False))
        assert got.status == 200, got.raw
        return got.json

    def test_a_header_wins_over_it(self, server: Server) -> None:
        got = exchange(server.address, fault_request(CHAT, "reset", said('<<respond:{"text":"hi"}>>')))
        assert got.end == RST
        assert b"hi" not in got.after_head

    def test_the_text_streams_in_frames_cut_before_each_blank(self, server: Server) -> None:
        text = 'a  b "c" é\nd'
        body = said(f"x <<respond:{json.dumps({'text': text})}>> y", stream_options={"include_usage": True})
        chunks = post(server, CHAT, body).chunked.chunks
        stream = Stream.of(CHAT, chunks[0], "")
        pieces = ["a", " ", " b", ' "c"', " é\nd"]
        usage = json.loads(chunks[-2][6:])["usage"]
        expected = [*stream.opening(), *(stream.text(piece) for piece in pieces), stream.finish()]
        counts = stream.usage(usage["prompt_tokens"], usage["completion_tokens"])
        assert chunks == [*expected, counts, DONE]

    def test_the_completion_tokens_are_the_ids_of_the_text(self, server: Server) -> None:
        answer = self._whole(server, '<<respond:{"text":"hello there"}>>')
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello there"}
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(lab_ids("hello there"))

    def test_each_call_is_an_announcing_and_an_arguments_frame(self, server: Server) -> None:
        calls = [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}]
        chunks = post(server, CHAT, said(f"<<respond:{json.dumps({'tool_calls': calls})}>>")).chunked.chunks
        deltas = [json.loads(frame[6:])["choices"][0] for frame in chunks[1:-1]]
        assert [choice["finish_reason"] for choice in deltas] == [None] * 4 + ["tool_calls"]
        parts = [choice["delta"]["tool_calls"][0] for choice in deltas[:-1]]
        assert [part["index"] for part in parts] == [0, 0, 1, 1]
        assert [part["function"].get("name") for part in parts] == ["f", None, "g", None]
        assert [part["function"]["arguments"] for part in parts] == ["", '{"x": 1}', "", "{}"]

    def test_the_finish_reason_is_as_given(self, server: Server) -> None:
        answer = self._whole(server, '<<respond:{"text":"x","finish_reason":"content_filter"}>>')
        assert answer["choices"][0]["finish_reason"] == "content_filter"

    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ('<<respond:{"text":"a >> b"}>>', "a >> b"),
            ('<<respond:{"text":"one"}>> <<respond:{"text":"two"}>>', "two"),
            ('<<respond:{"text":"one"}>> <<respond:{"text":"two"} >', "one"),
            ('<<respond:{"text":"one"}>> <<respond:nonsense>>', "one"),
            ('<<respond: <<respond:{"text":"one"}>>', "one"),
            ('<<respond:{"text":"<<respond:"}>>', "<<respond:"),
        ],
    )
    def test_the_last_that_parses_wins(self, server: Server, text: str, answer: str) -> None:
        assert self._whole(server, text)["choices"][0]["message"]["content"] == answer

    @pytest.mark.parametrize("text", ["<<respond:", "<<respond:>>", "<<respond:{", "<<respond:{}", "respond"])
    def test_what_does_not_parse_is_plain_text(self, server: Server, text: str) -> None:
        answer = self._whole(server, text)
        assert answer["usage"]["completion_tokens"] == 256

    @pytest.mark.parametrize(
        "document",
        [
            "[]",
            '"x"',
            "3",
            '{"text":3}',
            '{"tool_calls":{}}',
            '{"tool_calls":[{"name":3}]}',
            '{"text":null,"x":1}',
        ],
    )
    def test_json_of_another_shape_is_refused(self, server: Server, document: str) -> None:
        got = post(server, CHAT, said(f"<<respond:{document}>>"))
        assert (got.status, got.error["code"]) == (400, "invalid_request")

    def test_without_the_flag_it_is_plain_text(self, no_directives: Server) -> None:
        assert self._whole(no_directives, '<<respond:{"text":"x"}>>')["usage"]["completion_tokens"] == 256

    def test_on_completions_it_is_plain_text(self, server: Server) -> None:
        got = post(server, COMPLETIONS, payload(COMPLETIONS, prompt='<<respond:{"text":"x"}>>', stream=False))
        assert got.json["usage"]["completion_tokens"] == 256

    def test_twice_is_the_same_bytes(self, server: Server) -> None:
        body = said('<<respond:{"text":"a b c","tool_calls":[{"name":"f","arguments":"{}"}]}>>')
        first = post(server, CHAT, body)
        assert first.chunked.terminated
        assert first.after_head == post(server, CHAT, body).after_head
