"""With nothing to trigger a death the engine answers, in the same frames."""

# ruff: noqa: E501 (a table is read by its columns)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS, DONE, ENDPOINTS, HELLO, Stream, tag_of, word
from tests.support.rawclient import FIN, Connection, Received, ask, exchange, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server


def post(server: Server, endpoint: str, **more: Any) -> Received:
    return ask(server.address, request("POST", endpoint, payload(endpoint, **more)))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("more", "words", "finish"),
    [
        ({}, 256, "length"),
        ({"max_tokens": 1}, 1, "length"),
        ({"max_tokens": 10}, 10, "length"),
        ({"max_tokens": 10, "max_completion_tokens": 4}, 4, "length"),
        ({"model": "nine"}, 9, "stop"),
        ({"model": "nine", "max_tokens": 9}, 9, "stop"),
        ({"model": "nine", "max_tokens": 8}, 8, "length"),
        ({"model": "nine", "max_tokens": 100}, 9, "stop"),
    ],
)
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_its_words_the_finish_usage_if_asked_and_done(
    server: Server, endpoint: str, more: dict[str, Any], words: int, finish: str, *, usage: bool
) -> None:
    got = post(server, endpoint, **more, **({"stream_options": {"include_usage": True}} if usage else {}))
    chunked = got.chunked
    stream = Stream.of(endpoint, chunked.chunks[0], tag_of(HELLO[endpoint]))
    content = [stream.text(word(stream.tag, index)) for index in range(words)]
    counts = [stream.usage(len(HELLO[endpoint]), words)] if usage else []
    assert chunked.chunks == [*stream.opening(), *content, stream.finish(finish), *counts, DONE]
    assert chunked.terminated


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_without_stream_it_is_one_object_with_usage(server: Server, endpoint: str) -> None:
    got = post(server, endpoint, stream=False, max_tokens=9)
    answer = got.json
    text = "".join(word(tag_of(HELLO[endpoint]), index) for index in range(9))
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    prompt = len(HELLO[endpoint])
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 9, "total_tokens": prompt + 9}
    if endpoint == CHAT:
        assert answer["object"] == "chat.completion"
        message = {"role": "assistant", "content": text}
        assert answer["choices"] == [{"index": 0, "message": message, "finish_reason": "length"}]
    else:
        assert answer["object"] == "text_completion"
        assert answer["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]
    assert int(got.headers["content-length"]) == len(got.after_head)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_two_answers_have_two_ids_and_the_same_words(server: Server, endpoint: str) -> None:
    first, second = (post(server, endpoint, max_tokens=3).chunked.chunks for _ in range(2))
    one, two = (json.loads(frames[0][6:])["id"] for frames in (first, second))
    assert one != two
    words = [[json.loads(frame[6:])["choices"] for frame in frames[:-1]] for frames in (first, second)]
    assert words[0] == words[1]


NEUTRAL = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": False}
ALSO_ON_COMPLETIONS = {"logprobs": 0}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_neutral_values_null_and_unknown_fields_are_accepted(server: Server, endpoint: str) -> None:
    more = ALSO_ON_COMPLETIONS if endpoint == COMPLETIONS else {}
    ignored = {"temperature": 0.5, "top_p": 1, "stop": ["x"], "seed": 3, "user": "x", "nonsense": {"a": [1]}}
    for fields in (
        NEUTRAL | more,
        dict.fromkeys([*NEUTRAL, "max_tokens", "stream_options", "tools", "nvext"]),
        ignored,
    ):
        assert post(server, endpoint, stream=False, **fields).status == 200


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("n", 0), ("n", "1"), ("best_of", 2), ("echo", True), ("suffix", "x"), ("logprobs", True), ("logprobs", 1),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**31), ("max_tokens", 16.0), ("max_tokens", True),
        ("max_tokens", "16"), ("max_completion_tokens", 0), ("stream", "yes"), ("stream", 1), ("stream_options", []),
        ("model", 3), ("model", None), ("tools", {}), ("priority", "x"), ("nvext", []),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    server: Server, endpoint: str, field: str, value: object
) -> None:
    got = post(server, endpoint, **{"stream": False, field: value})
    assert (got.status, got.error["code"]) == (400, "invalid_request")
    assert field in got.error["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("stream_options.include_usage", {"stream_options": {"include_usage": "yes"}}),
        ("nvext.agent_hints.priority", {"nvext": {"agent_hints": {"priority": "x"}}}),
        ("messages", {"messages": "hello"}),
        ("messages", {"messages": []}),
        ("messages", {"messages": None}),
        ("messages[0]", {"messages": ["hello"]}),
        ("messages[0]", {"messages": [{"content": "x"}]}),
        ("messages[1].role", {"messages": [{"role": "user", "content": "x"}, {"role": 3, "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 3}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": {"text": "x"}}]}),
        (
            "messages[0].content[0].text",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
        ),
    ],
)
def test_the_fields_path_is_in_the_message(server: Server, path: str, more: dict[str, Any]) -> None:
    got = post(server, CHAT, **more)
    assert (got.status, got.error["code"]) == (400, "invalid_request")
    assert path in got.error["message"]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": "a"}], [{"type": "image_url"}]])
def test_content_may_be_null_a_string_or_parts(server: Server, content: object) -> None:
    messages = [{"role": "user", "content": content, "name": "x", "extra": [1]}]
    assert post(server, CHAT, messages=messages, max_tokens=1).status == 200


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [[]], [""], 3, True, {}, ["a", "b"], [[1], [2]], [1, "a"], [[1, "a"]], [-1], [2**32], [1.0], [True], [[[1]]], [None]],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_none_is_refused(server: Server, prompt: object, *, stream: bool) -> None:
    got = post(server, COMPLETIONS, prompt=prompt, stream=stream)
    assert (got.status, got.error["code"]) == (400, "invalid_prompt")


@pytest.mark.parametrize(
    "prompt", ["x", ["x"], [0], [1, 2, 3], [[1, 2, 3]], [2**32 - 1], [2**31, 2**29 + 5]], ids=repr
)
def test_every_form_of_a_prompt_is_answered(server: Server, prompt: object) -> None:
    got = post(server, COMPLETIONS, prompt=prompt, stream=False, max_tokens=2)
    assert got.status == 200
    if prompt != ["x"] and isinstance(prompt, list):
        ids = prompt[0] if isinstance(prompt[0], list) else prompt
        assert got.json["usage"]["prompt_tokens"] == len(ids)


def test_the_context_bounds_prompt_and_answer(server: Server) -> None:
    """llama-3.1-8b-instruct holds 131,072 tokens."""
    limit = 131_072
    ids = [1] * (limit - 3)
    assert post(server, COMPLETIONS, prompt=ids, stream=False, max_tokens=3).status == 200
    left = post(server, COMPLETIONS, prompt=ids, stream=False).json
    assert (left["usage"]["completion_tokens"], left["choices"][0]["finish_reason"]) == (3, "length")
    for more in ({"prompt": ids, "max_tokens": 4}, {"prompt": [1] * limit}, {"prompt": "x" * (4 * limit)}):
        got = post(server, COMPLETIONS, **more)
        assert (got.status, got.error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream_keeps_its_connection(server: Server, endpoint: str) -> None:
    with Connection(server.address) as connection:
        for _ in range(3):
            connection.send(request("POST", endpoint, payload(endpoint, max_tokens=5)))
            assert connection.response().chunked.terminated


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_http_1_0_gets_its_stream_without_chunks_until_the_connection_closes(
    server: Server, endpoint: str
) -> None:
    got = exchange(server.address, request("POST", endpoint, payload(endpoint, max_tokens=3), version="1.0"))
    assert (got.status, got.end) == (200, FIN)
    assert "transfer-encoding" not in got.headers
    assert got.after_head.endswith(DONE)
    assert got.after_head.count(b"data: ") == 5 + (endpoint == CHAT)


def test_the_head_and_role_frame_come_before_the_first_token(server: Server) -> None:
    """The slow model's second word is a minute away; nothing that is due is held back for it."""
    with Connection(server.address) as connection:
        connection.send(request("POST", CHAT, payload(CHAT, model="slow")))
        got = connection.until(b"0000")
    assert len(got.chunked.chunks) == 2


CALLING: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "find_it"}}],
    "tool_choice": "required",
}


@pytest.mark.parametrize("model", ["lab", "thinks"])
def test_an_answer_that_must_call_a_tool_is_that_call(server: Server, model: str) -> None:
    got = post(server, CHAT, model=model, **CALLING, stream_options={"include_usage": True})
    frames = [json.loads(frame[6:]) for frame in got.chunked.chunks[:-1]]
    deltas = [frame["choices"][0]["delta"] for frame in frames[:-1]]
    thoughts = [delta for delta in deltas if "reasoning_content" in delta]
    assert (deltas[0], len(thoughts), deltas[-1]) == ({"role": "assistant"}, 3 * (model == "thinks"), {})
    announced, *fragments = [delta["tool_calls"] for delta in deltas[1 + len(thoughts) : -1]]
    call_id = "call_" + frames[0]["id"].removeprefix("chatcmpl-")
    function = {"name": "find_it", "arguments": ""}
    assert announced == [{"index": 0, "id": call_id, "type": "function", "function": function}]
    assert len(fragments) == 16
    assert {(call["index"], *call) for (call,) in fragments} == {(0, "index", "function")}
    arguments = json.loads("".join(call["function"]["arguments"] for (call,) in fragments))
    assert (list(arguments), arguments["location"][-7:]) == (
        ["location"],
        arguments["location"][:2] + "0015é",
    )
    assert frames[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert got.chunked.chunks[-1] == DONE
    assert got.chunked.terminated


def test_a_call_waits_for_the_tokens_of_its_announcement(server: Server) -> None:
    """The slow model's second token is a minute away, and the announcement takes a dozen."""
    with Connection(server.address) as connection:
        connection.send(request("POST", CHAT, payload(CHAT, model="slow", **CALLING)))
        got = connection.until(b"assistant")
    assert [json.loads(frame[6:])["choices"][0]["delta"] for frame in got.chunked.chunks] == [
        {"role": "assistant"}
    ]


def test_a_chat_that_ends_in_the_markup_it_begins_with_says_nothing_and_counts_it(server: Server) -> None:
    for limit in (1, 2):
        more = {"model": "thinks", "max_tokens": limit, "stream_options": {"include_usage": True}}
        got = post(server, CHAT, **more)
        role, finish, usage, _ = got.chunked.chunks
        assert json.loads(role[6:])["choices"][0]["delta"] == {"role": "assistant"}
        assert json.loads(finish[6:])["choices"][0]["finish_reason"] == "length"
        assert json.loads(usage[6:])["usage"]["completion_tokens"] == limit
        raw = post(server, COMPLETIONS, **more, stream=False).json["choices"][0]
        assert (raw["text"], raw["finish_reason"]) == ("<think>"[: 4 * limit], "length")


def test_a_chat_that_ends_so_takes_the_time_of_its_tokens(server: Server) -> None:
    with Connection(server.address) as connection:
        more = {"model": "slow", "max_tokens": 2, **CALLING}
        connection.send(request("POST", CHAT, payload(CHAT, **more)))
        got = connection.until(b"assistant")
    assert len(got.chunked.chunks) == 1
