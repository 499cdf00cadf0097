"""Every command of the fault-injection document, run with curl on both endpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import (
    CHAT,
    COMPLETIONS,
    CURL_EXIT,
    ENDPOINTS,
    HELLO,
    Stream,
    expected_chunks,
    lab_ids,
    tag_of,
)
from tests.support.curl import JSON, curl

if TYPE_CHECKING:
    from tests.support.server import Server

OPTIONS = '"stream":true,"stream_options":{"include_usage":true}'
ASKED = {CHAT: '"messages":[{"role":"user","content":"hello"}]', COMPLETIONS: '"prompt":"hello"'}
BODY = {
    end: f'{{"model":"DeepSeek-V4-Flash",{OPTIONS},{asked},"max_tokens":16}}' for end, asked in ASKED.items()
}
RESUME = f'{{"model":"DeepSeek-V4-Flash","prompt":[1,2,3,4],{OPTIONS},"priority":0,"max_tokens":64}}'

COMMANDS = (
    "cut_between_frames;after_chunks=5",
    "cut_mid_frame",
    "cut_mid_frame;utf8=true",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call;after_chunks=4",
)


def _run(server: Server, endpoint: str, fault: str, body: str) -> tuple[int, bytes, str]:
    bound = ("--max-time", "1") if fault.startswith("stall") else ()
    ran = curl(server.url + endpoint, *bound, *JSON, "-H", f"x-inference-lab-fault: {fault}", "-d", body)
    return ran.code, ran.out, ran.complaint


def _expected(endpoint: str, out: bytes, fault: str, ids: list[int], prompt_tokens: int) -> bytes:
    mode, _, tail = fault.partition(";")
    count = int(tail.removeprefix("after_chunks=")) if tail.startswith("after") else 3
    # The tag is a digest of canonical ids; what the client sent may be another spelling of the same text.
    stream = Stream.of(endpoint, out.partition(b"\n\n")[0], tag_of(ids))
    assert stream.model == "DeepSeek-V4-Flash"
    return b"".join(expected_chunks(stream, mode, count, utf8="utf8" in tail, usage=prompt_tokens))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fault", COMMANDS)
def test_a_command_of_the_document_gives_its_exit_code_and_bytes(
    server: Server, endpoint: str, fault: str
) -> None:
    code, out, complaint = _run(server, endpoint, fault, BODY[endpoint])
    assert code == CURL_EXIT[fault.partition(";")[0]], complaint
    ids = HELLO[endpoint]
    assert out == _expected(endpoint, out, fault, ids, len(ids))


def test_curl_says_that_the_connection_was_reset_by_the_peer(server: Server) -> None:
    code, _, complaint = _run(server, CHAT, "reset", BODY[CHAT])
    assert code == 56
    assert "reset by peer" in complaint.lower()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_utf8_cut_ends_in_the_first_byte_of_an_e_acute(server: Server, endpoint: str) -> None:
    _, out, _ = _run(server, endpoint, "cut_mid_frame;utf8=true", BODY[endpoint])
    assert out[-1:] == b"\xc3"


@pytest.mark.parametrize("fault", ["cut_between_frames;after_chunks=2", *COMMANDS])
def test_a_resume_leg_of_token_ids_dies_in_every_mode(server: Server, fault: str) -> None:
    code, out, complaint = _run(server, COMPLETIONS, fault, RESUME)
    assert code == CURL_EXIT[fault.partition(";")[0]], complaint
    assert out == _expected(COMPLETIONS, out, fault, lab_ids("\x01\x02\x03\x04"), prompt_tokens=4)


def test_the_killed_resume_leg_of_the_document_has_exactly_two_text_frames(server: Server) -> None:
    _, out, _ = _run(server, COMPLETIONS, "cut_between_frames;after_chunks=2", RESUME)
    frames = [json.loads(line.removeprefix("data: ")) for line in out.decode().split("\n\n") if line]
    assert [frame["object"] for frame in frames] == ["text_completion"] * 2


def test_a_form_content_type_is_no_obstacle_since_plain_curl_sends_one(server: Server) -> None:
    ran = curl(server.url + CHAT, "-H", "x-inference-lab-fault: cut_between_frames", "-d", BODY[CHAT])
    assert ran.code == 18
    assert ran.out.count(b"data: ") == 4
