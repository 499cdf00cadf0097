"""A model that thinks first, and limits that end an answer: four content words after three of reasoning."""

from __future__ import annotations

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
    tag_of,
    word,
)
from tests.support.deaths import death
from tests.support.rawclient import Received, ask, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

USAGE = {"stream_options": {"include_usage": True}}
# max_tokens, frames, completion tokens, finish. `<think>` and `</think>` are two ids each and ride with a word.
LIMITS = (
    (None, 7, 11, "stop"),
    (1, 0, 1, "length"),
    (2, 0, 2, "length"),
    (3, 1, 3, "length"),
    (4, 2, 4, "length"),
    (5, 3, 5, "length"),
    (6, 3, 5, "length"),
    (7, 3, 5, "length"),
    (8, 4, 8, "length"),
    (10, 6, 10, "length"),
    (11, 7, 11, "stop"),
    (12, 7, 11, "stop"),
)


def post(server: Server, endpoint: str, **more: Any) -> Received:
    return ask(server.address, request("POST", endpoint, payload(endpoint, model="thinks", **more)))


def frames(stream: Stream) -> list[bytes]:
    """The seven content frames."""
    thought = [word(stream.tag, index).upper() for index in range(3)]
    content = [word(stream.tag, index) for index in range(4)]
    if stream.chat:
        return [stream.delta({"reasoning_content": text}) for text in thought] + [
            stream.text(text) for text in content
        ]
    thought[0] = "<think>" + thought[0]
    content[0] = "</think>" + content[0]
    return [stream.text(text) for text in thought + content]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("limit", "count", "tokens", "finish"), LIMITS)
def test_reasoning_comes_first_and_its_markup_counts_and_is_split_only_where_nothing_else_fits(
    server: Server, endpoint: str, limit: int | None, count: int, tokens: int, finish: str
) -> None:
    chunks = post(server, endpoint, max_tokens=limit, **USAGE).chunked.chunks
    stream = Stream.of(endpoint, chunks[0], tag_of(HELLO[endpoint]))
    tail = [stream.finish(finish), stream.usage(len(HELLO[endpoint]), tokens), DONE]
    said = frames(stream)[:count]
    if not count and endpoint != CHAT:  # on chat no delta shows markup
        said = [stream.text({1: "<thi", 2: "<think>"}[tokens])]
    assert chunks == [*stream.opening(), *said, *tail]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_without_stream_the_reasoning_stands_beside_the_content(server: Server, endpoint: str) -> None:
    answer = post(server, endpoint, stream=False).json
    tag = tag_of(HELLO[endpoint])
    thought = "".join(word(tag, index).upper() for index in range(3))
    content = "".join(word(tag, index) for index in range(4))
    choice = answer["choices"][0]
    if endpoint == CHAT:
        assert choice["message"] == {"role": "assistant", "content": content, "reasoning_content": thought}
        assert list(choice["message"]) == ["role", "content", "reasoning_content"]
    else:
        assert choice["text"] == f"<think>{thought}</think>{content}"
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 11


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", ["cut_between_frames", "mid_reasoning", "no_done"])
def test_a_fault_plays_its_own_channel_whatever_the_model_thinks(
    server: Server, endpoint: str, mode: str
) -> None:
    body = payload(endpoint, model="thinks", **USAGE)
    chunks = death(server, fault_request(endpoint, f"{mode};after_chunks=9;delay_ms=0", body)).chunked.chunks
    stream = Stream.of(endpoint, chunks[0], tag_of(HELLO[endpoint]))
    assert chunks == expected_chunks(stream, mode, 9, usage=len(HELLO[endpoint]))


class TestMaxModelLen:
    """scheduler.max_model_len, 64 here, takes the place of the model's own context."""

    @pytest.mark.parametrize(
        ("asked", "words", "finish"), [(None, 54, "length"), (54, 54, "length"), (3, 3, "length")]
    )
    def test_it_bounds_the_answer(self, server: Server, asked: int | None, words: int, finish: str) -> None:
        data = payload(CHAT, model="short", stream=False, max_tokens=asked)
        answer = ask(server.address, request("POST", CHAT, data)).json
        assert answer["usage"]["prompt_tokens"] == 10
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
            words,
            finish,
        )

    @pytest.mark.parametrize(
        ("endpoint", "more"),
        [
            (CHAT, {"max_tokens": 55}),
            (COMPLETIONS, {"prompt": [1] * 64}),
            (COMPLETIONS, {"prompt": [1] * 60, "max_tokens": 5}),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_past_it_is_refused(
        self, server: Server, endpoint: str, more: dict[str, Any], *, stream: bool
    ) -> None:
        data = request("POST", endpoint, payload(endpoint, model="short", **{"stream": stream, **more}))
        got = ask(server.address, data)
        assert (got.status, got.error["code"]) == (400, "context_length_exceeded")

    def test_a_fault_does_not_ask_about_it(self, server: Server) -> None:
        body = payload(COMPLETIONS, model="short", prompt=[1] * 100, max_tokens=100)
        got = death(server, fault_request(COMPLETIONS, "no_usage;after_chunks=200;delay_ms=0", body))
        assert len(got.chunked.chunks) == 202
