"""Every byte of every death: head, chunks, frames; and the same bytes again, wherever and whenever asked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    GRACEFUL,
    HELLO,
    MODES,
    Stream,
    expected_chunks,
    lab_ids,
    tag_of,
)
from tests.support.deaths import death
from tests.support.rawclient import Connection, Received, fault_request, payload
from tests.support.server import CONSOLE, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import Server

USAGE = {"stream_options": {"include_usage": True}}


def stall_of(server: Server, data: bytes, frames: int) -> Received:
    with Connection(server.address) as connection:
        connection.send(data)
        while connection.received.count(b"data: ") < frames:
            assert connection.read() is None
        return connection.until_end(timeout=0.2)


def dying(server: Server, endpoint: str, fault: str, body: bytes, count: int = 3) -> Received:
    data = fault_request(endpoint, fault, body)
    if fault.startswith("stall"):
        return stall_of(server, data, count + (endpoint == CHAT))
    return death(server, data)


def stable(got: Received) -> tuple[bytes, bytes]:
    """Head without its Date line, and everything behind it."""
    lines = [line for line in got.head.split(b"\r\n") if not line.lower().startswith(b"date:")]
    return b"\r\n".join(lines), got.after_head


@pytest.mark.parametrize("count", [1, 3, 8, 9])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_puts_exactly_its_frames_on_the_wire_one_chunk_each(
    server: Server, mode: str, endpoint: str, count: int
) -> None:
    fault = f"{mode};after_chunks={count};delay_ms=1"
    got = dying(server, endpoint, fault, payload(endpoint, **USAGE), count)
    chunked = got.chunked
    stream = Stream.of(endpoint, chunked.chunks[0], tag_of(HELLO[endpoint]))
    assert stream.model == "lab"
    assert chunked.chunks == expected_chunks(stream, mode, count, usage=len(HELLO[endpoint]))
    assert chunked.terminated == (mode in GRACEFUL)
    assert chunked.rest == b""


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_utf8_cut_tears_the_next_frame_within_its_e_acute(
    server: Server, endpoint: str, count: int
) -> None:
    got = dying(
        server, endpoint, f"cut_mid_frame;utf8=true;after_chunks={count};delay_ms=0", payload(endpoint)
    )
    chunks = got.chunked.chunks
    tag = tag_of(HELLO[endpoint])
    if (
        endpoint == COMPLETIONS and count == 0
    ):  # the torn frame is the only one: read the free values from a whole one
        whole = dying(server, endpoint, "cut_between_frames;after_chunks=1", payload(endpoint))
        stream = Stream.of(endpoint, whole.chunked.chunks[0], tag)
        ident = chunks[0].partition(b'"id":"')[2].partition(b'"')[0].decode()
        stream = Stream(endpoint, ident, stream.created, stream.model, tag)
    else:
        stream = Stream.of(endpoint, chunks[0], tag)
    assert chunks == expected_chunks(stream, "cut_mid_frame", count, utf8=True)
    assert got.after_head.endswith(b"\xc3\r\n")
    assert not got.chunked.terminated


@pytest.mark.parametrize("mode", ["cut_between_frames", "reset", "mid_reasoning", "mid_tool_call"])
def test_nothing_but_the_head_precedes_a_death_after_no_chunks_on_completions(
    server: Server, mode: str
) -> None:
    got = death(server, fault_request(COMPLETIONS, f"{mode};after_chunks=0"))
    assert got.status == 200
    assert got.after_head == b""


@pytest.mark.parametrize("mode", ["cut_between_frames", "reset", "mid_reasoning", "mid_tool_call"])
def test_only_the_role_frame_precedes_a_death_after_no_chunks_on_chat(server: Server, mode: str) -> None:
    chunks = death(server, fault_request(CHAT, f"{mode};after_chunks=0")).chunked.chunks
    stream = Stream.of(CHAT, chunks[0], "")
    assert chunks == stream.opening()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", ["no_done", "no_usage"])
def test_no_usage_frame_comes_unless_asked_for(server: Server, mode: str, endpoint: str) -> None:
    chunks = death(server, fault_request(endpoint, f"{mode};delay_ms=0")).chunked.chunks
    stream = Stream.of(endpoint, chunks[0], tag_of(HELLO[endpoint]))
    assert chunks == expected_chunks(stream, mode, 3, usage=None)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_the_defaults_are_three_chunks_and_no_utf8_and_max_tokens_does_not_matter(
    server: Server, mode: str, endpoint: str
) -> None:
    got = dying(server, endpoint, mode, payload(endpoint, max_tokens=1))
    stream = Stream.of(endpoint, got.chunked.chunks[0], tag_of(HELLO[endpoint]))
    assert got.chunked.chunks == expected_chunks(stream, mode, 3)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_head_names_an_unbuffered_chunked_event_stream_open_to_any_origin(
    server: Server, endpoint: str
) -> None:
    got = death(server, fault_request(endpoint, "no_done"))
    assert got.head.split(b"\r\n")[0] == b"HTTP/1.1 200 OK"
    wanted = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "transfer-encoding": "chunked",
        "access-control-allow-origin": "*",
    }
    assert {name: got.headers.get(name) for name in wanted} == wanted
    assert "content-length" not in got.headers
    assert "connection" not in got.headers


def test_reasoning_opens_no_second_block_where_the_prompt_has_opened_one(server: Server) -> None:
    body = payload(COMPLETIONS, prompt="hello<think>")
    chunks = death(server, fault_request(COMPLETIONS, "mid_reasoning;after_chunks=2", body)).chunked.chunks
    stream = Stream.of(COMPLETIONS, chunks[0], tag_of(lab_ids("hello<think>")))
    first, second = expected_chunks(stream, "mid_reasoning", 2)
    assert chunks == [first.replace(b"<think>", b""), second]


def test_a_prompt_of_ids_and_its_text_get_the_same_words(server: Server) -> None:
    fault = "cut_between_frames;after_chunks=9"
    chunks = [
        death(server, fault_request(COMPLETIONS, fault, payload(COMPLETIONS, prompt=prompt))).chunked.chunks
        for prompt in (
            "hello",
            ["hello"],
            lab_ids("hello"),
            [lab_ids("hello")],
            [ord(char) for char in "hello"],
        )
    ]
    words = [[json.loads(frame[6:])["choices"][0]["text"] for frame in frames] for frames in chunks]
    assert words == words[:1] * 5


class TestByteIdentity:
    """No randomness and no clock: what is asked twice dies twice at the same byte."""

    FAULTS = tuple(f"{mode};delay_ms=1" for mode in MODES if mode != "stall")

    def _all(self, server: Server) -> list[tuple[bytes, bytes]]:
        """Every death on both endpoints."""
        asked = [(end, fault) for end in ENDPOINTS for fault in self.FAULTS]
        return [
            stable(death(server, fault_request(end, fault, payload(end, **USAGE)))) for end, fault in asked
        ]

    def test_twice_the_same_request_is_twice_the_same_bytes(self, server: Server) -> None:
        assert self._all(server) == self._all(server)

    def test_two_processes_and_a_restart_give_the_same_bytes(self, server: Server, one_config: Path) -> None:
        once = self._all(server)
        for how in ({}, {"how": CONSOLE}):
            other = start(one_config, "--enable-directives", **how)
            try:
                assert self._all(other) == once
            finally:
                other.stop()

    def test_fifty_concurrent_others_change_no_byte(self, server: Server) -> None:
        data = fault_request(
            CHAT, "cut_mid_frame;after_chunks=40;delay_ms=2;utf8=true", payload(CHAT, **USAGE)
        )
        alone = stable(death(server, data))
        others = [
            fault_request(ENDPOINTS[i % 2], f"{self.FAULTS[i % len(self.FAULTS)]};after_chunks={20 + i}")
            for i in range(50)
        ]
        with ThreadPoolExecutor(max_workers=53) as pool:
            noise = [pool.submit(death, server, other) for other in others]
            same = [pool.submit(death, server, data) for _ in range(3)]
            assert [stable(one.result()) for one in same] == [alone] * 3
            crowd = [stable(one.result()) for one in noise]
        assert crowd == [stable(death(server, other)) for other in others]

    def test_the_spelling_of_the_header_is_not_part_of_the_digest(self, server: Server) -> None:
        spellings = (
            "reset",
            "reset;after_chunks=3",
            " reset ;\tdelay_ms = 10 ; after_chunks=003",
            "reset;delay_ms=00010",
        )
        bodies = {stable(death(server, fault_request(CHAT, spelling))) for spelling in spellings}
        assert len(bodies) == 1

    @pytest.mark.parametrize(
        ("change", "headers"),
        [
            ({"max_tokens": 5}, {}),
            ({"unknown": 1}, {}),
            ({}, {"x-request-id": "one"}),
        ],
    )
    def test_the_id_changes_with_body_and_request_id_but_the_words_do_not(
        self, server: Server, change: dict, headers: dict[str, str]
    ) -> None:
        plain = death(server, fault_request(CHAT, "no_done")).chunked.chunks
        changed = death(
            server, fault_request(CHAT, "no_done", payload(CHAT, **change), **headers)
        ).chunked.chunks
        idents = [json.loads(frame[6:])["id"] for frame in (plain[0], changed[0])]
        assert idents[0] != idents[1]
        assert changed == [frame.replace(idents[0].encode(), idents[1].encode()) for frame in plain]

    def test_the_same_request_id_is_the_same_id(self, server: Server) -> None:
        data = [fault_request(CHAT, "no_done", **{"x-request-id": name}) for name in ("a", "b", "a")]
        first, second, third = (stable(death(server, one)) for one in data)
        assert first == third
        assert first[1] != second[1]

    def test_two_faults_have_two_ids_but_one_creation_time(self, server: Server) -> None:
        frames = [
            json.loads(death(server, fault_request(end, fault)).chunked.chunks[0][6:])
            for end in ENDPOINTS
            for fault in ("no_done", "no_usage", "no_done;after_chunks=4")
        ]
        assert len({frame["id"].partition("-")[2] for frame in frames}) == 6
        assert len({frame["created"] for frame in frames}) == 1
