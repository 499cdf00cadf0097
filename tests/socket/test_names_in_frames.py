"""What the frames take over from request and config: model names, tools, keys, whatever characters they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    HELLO,
    Stream,
    expected_chunks,
    quoted,
    tag_of,
)
from tests.support.deaths import death
from tests.support.models import PLAIN, SHIFTED
from tests.support.rawclient import ask, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

QUOTED = 'say "é" \\ / 😀'
TOOL = {
    "type": "function",
    "function": {
        "name": "find_flight",
        "parameters": {
            "type": "object",
            "properties": {
                "seats": {"type": "integer"},
                "city": {"type": "string"},
                "day": {"type": "string"},
            },
        },
    },
}
OTHER_TOOL = {"type": "function", "function": {"name": "no_arguments", "parameters": {"type": "object"}}}
STRANGE = {
    "type": "function",
    "function": {
        "name": 'a "b" \\ é 😀',
        "parameters": {"type": "object", "properties": {'k"é\n': {"type": "string"}}},
    },
}


@pytest.mark.parametrize(
    ("more", "name", "key"),
    [
        ({"tools": [TOOL]}, "find_flight", "city"),
        ({"tools": [OTHER_TOOL, TOOL]}, "no_arguments", "location"),
        (
            {
                "tools": [OTHER_TOOL, TOOL],
                "tool_choice": {"type": "function", "function": {"name": "find_flight"}},
            },
            "find_flight",
            "city",
        ),
        ({"tools": [], "tool_choice": "auto"}, "get_current_weather", "location"),
        ({"tools": None, "tool_choice": None}, "get_current_weather", "location"),
    ],
)
def test_the_torn_call_is_of_the_tool_the_request_names(
    server: Server, more: dict, name: str, key: str
) -> None:
    chunks = death(
        server, fault_request(CHAT, "mid_tool_call;after_chunks=4", payload(CHAT, **more))
    ).chunked.chunks
    fragment = json.loads(chunks[-1].removeprefix(b"data: "))["choices"][0]["delta"]["tool_calls"][0][
        "function"
    ]
    stream = Stream.of(
        CHAT, chunks[0], fragment["arguments"][1:3]
    )  # tools change the prompt, so the tag is read off
    assert chunks == expected_chunks(stream, "mid_tool_call", 4, name=name, key=key)


def test_names_of_tools_and_keys_are_escaped_as_json_on_chat(server: Server) -> None:
    body = payload(CHAT, tools=[STRANGE])
    chunks = death(server, fault_request(CHAT, "mid_tool_call;after_chunks=3", body)).chunked.chunks
    fragment = json.loads(chunks[-1][6:])["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
    stream = Stream.of(CHAT, chunks[0], fragment[1:3])
    name, key = STRANGE["function"]["name"], 'k"é\n'
    assert chunks == expected_chunks(stream, "mid_tool_call", 3, name=name, key=key)


@pytest.mark.parametrize(
    ("tool", "name", "key"), [(TOOL, "find_flight", "city"), (STRANGE, 'a "b" \\ é 😀', 'k"é\n')]
)
def test_tools_name_the_torn_call_on_completions_too(server: Server, tool: dict, name: str, key: str) -> None:
    body = payload(COMPLETIONS, tools=[tool])
    chunks = death(server, fault_request(COMPLETIONS, "mid_tool_call;after_chunks=3", body)).chunked.chunks
    opening = json.loads(chunks[0][6:])["choices"][0]["text"]
    assert opening == f'{{"name": {quoted(name)}, "arguments": {{{quoted(key)}: "'
    stream = Stream.of(COMPLETIONS, chunks[0], json.loads(chunks[1][6:])["choices"][0]["text"][:2])
    assert chunks == expected_chunks(stream, "mid_tool_call", 3, name=name, key=key)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", ["cut_between_frames", "cut_mid_frame", "no_done"])
@pytest.mark.parametrize("model", [QUOTED, PLAIN, SHIFTED])
def test_a_models_name_stands_in_every_frame_as_utf8(
    server: Server, model: str, mode: str, endpoint: str
) -> None:
    chunks = death(server, fault_request(endpoint, mode, payload(endpoint, model=model))).chunked.chunks
    stream = Stream.of(endpoint, chunks[0], tag_of(HELLO[endpoint]))
    assert stream.model == model
    assert chunks == expected_chunks(stream, mode, 3)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_half_a_frame_ends_on_a_character_even_where_the_half_is_within_one(
    server: Server, endpoint: str
) -> None:
    """Two bytes in front move the middle by one: for one of the two names it is within an e acute."""
    moved_back = []
    for model in (PLAIN, SHIFTED):
        body = payload(endpoint, model=model)
        chunks = death(server, fault_request(endpoint, "cut_mid_frame;after_chunks=1", body)).chunked.chunks
        stream = Stream.of(endpoint, chunks[0], tag_of(HELLO[endpoint]))
        whole = stream.text(f" {stream.tag}0001")
        chunks[-1].decode()
        assert whole.startswith(chunks[-1])
        moved_back.append(len(whole) // 2 - len(chunks[-1]))
    assert sorted(moved_back) == [0, 1]


def test_a_models_name_is_found_percent_encoded_in_the_path(server: Server) -> None:
    got = ask(server.address, request("GET", "/v1/models/" + "%C3%A9" * 60))
    assert (got.status, got.json["id"]) == (200, PLAIN)
