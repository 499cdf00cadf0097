"""HTTP/1.0: a stream ends with its connection, so a cut looks like a normal end; what only chunks show is refused."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.faults.applies import UNSEEN
from inference_lab.core.faults.modes import MODES as TABLE
from tests.reference_model.contract import (
    ABRUPT_FIN,
    CHAT,
    CURL_EXIT,
    ENDPOINTS,
    HELLO,
    MODES,
    Stream,
    expected_chunks,
    tag_of,
)
from tests.support.curl import JSON, curl
from tests.support.models import INSTANT, MODEL
from tests.support.rawclient import FIN, OPEN, RST, Connection, Received, exchange, payload, request
from tests.support.server import Server, start

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD = "invalid_fault_directive"
SILENCE_S = 0.5
USAGE = {"stream_options": {"include_usage": True}}
ENDS = {"reset": RST, "rst_after_done": RST, "rst_after_complete": RST} | dict.fromkeys(
    ("stall", "heartbeat_stall", "hang_after_done"), OPEN
)
HASTE = {"slow_but_alive": ";heartbeat_ms=20", "crawl": ";rest_delay_ms=20"}
# `echo_…` are met by later legs only, and `stale` needs a connection that lives on.
PRESETS = [name for name in TABLE if not name.startswith("echo_") and name != "stale_connection"]


def asked(
    endpoint: str, fault: str, body: bytes | None = None, version: str = "1.0", **headers: str
) -> bytes:
    given = {"x-inference-lab-fault": fault, **headers}
    return request("POST", endpoint, body or payload(endpoint, **USAGE), headers=given, version=version)


def met(server: Server, fault: str, version: str = "1.0", endpoint: str = CHAT, **headers: str) -> Received:
    data = asked(endpoint, f"{fault};delay_ms=1", version=version, **headers)
    return exchange(server.address, data, timeout=SILENCE_S)


def row_of(server: Server, test: str) -> dict:
    got = exchange(
        server.address, request("GET", f"/lab/journal?test={test}&wait=5", headers={"Connection": "close"})
    )
    (row,) = got.json["data"]
    return row


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_frames_and_then_the_end_of_the_connection(
    server: Server, mode: str, endpoint: str
) -> None:
    got = met(server, mode, endpoint=endpoint)
    assert got.head.split(b"\r\n")[0] == b"HTTP/1.0 200 OK"
    assert got.headers["connection"] == "close"
    assert not {"transfer-encoding", "content-length"} & set(got.headers)
    first = got.after_head.partition(b"\n\n")[0] + b"\n\n"
    stream = Stream.of(endpoint, first, tag_of(HELLO[endpoint]))
    assert got.after_head == b"".join(expected_chunks(stream, mode, 3, usage=len(HELLO[endpoint])))
    assert got.end == ENDS.get(mode, FIN)


@pytest.mark.parametrize("mode", MODES)
def test_curl_is_content_with_a_cut_there_and_with_nothing_else_that_is_new(
    server: Server, mode: str
) -> None:
    asks = ("-H", f"x-inference-lab-fault: {mode};delay_ms=1", *JSON)
    ran = curl("--http1.0", "-m", "0.5", *asks, server.url + CHAT, data=payload(CHAT))
    assert ran.code == (0 if mode in ABRUPT_FIN else CURL_EXIT[mode])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_body_is_that_of_http_1_1_without_its_chunks(server: Server, preset: str) -> None:
    fault = preset + HASTE.get(preset, "")
    with ThreadPoolExecutor(2) as pool:
        old, new = pool.map(lambda version: met(server, fault, version), ("1.0", "1.1"))
    assert old.after_head == new.body
    assert (old.status, old.end) == (new.status, ENDS.get(preset, FIN))
    own = {"date", "connection", "transfer-encoding"}
    assert {k: v for k, v in old.headers.items() if k not in own} == {
        k: v for k, v in new.headers.items() if k not in own
    }
    assert old.head.count(b"onnection: close") == 1


@pytest.mark.parametrize("close", ["terminator", "fin", "fin_close", "eof", "rst", "terminator_rst"])
def test_a_close_is_the_same_bytes_and_its_row_keeps_the_one_asked_for(server: Server, close: str) -> None:
    test = f"http10.{close}"
    got = met(server, f"ok;after_chunks=2;finish=stop;close={close}", **{"x-test-id": test})
    whole = met(server, "ok;after_chunks=2;finish=stop")
    assert got.after_head.endswith(b"data: [DONE]\n\n")
    assert got.after_head.count(b"data: ") == whole.after_head.count(b"data: ")
    assert got.end == (RST if "rst" in close else FIN)
    assert got.head.count(b"onnection: close") == 1
    row = row_of(server, test)
    assert (row["http"], row["port"]) == ("1.0", server.port)
    assert (row["ending_asked"], row["ending"], row["peer"]) == (close, close, "none")
    assert row["bytes_written"] == len(got.raw)


def test_a_row_says_http_1_1_where_it_was(server: Server) -> None:
    met(server, "cut_between_frames", "1.1", **{"x-test-id": "http11"})
    assert row_of(server, "http11")["http"] == "1.1"


def test_a_stall_stays_open_until_its_client_leaves(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(asked(CHAT, "stall", **{"x-test-id": "http10.stall"}))
        got = connection.until_end(timeout=SILENCE_S)
    assert got.end == OPEN
    assert row_of(server, "http10.stall")["ending"] == "client_left"


def test_a_request_to_keep_the_connection_is_answered_by_a_close(server: Server) -> None:
    got = met(server, "no_done", Connection="keep-alive")
    assert (got.headers["connection"], got.end) == ("close", FIN)
    healthy = exchange(
        server.address,
        request(
            "POST", CHAT, payload(CHAT, max_tokens=3), headers={"Connection": "keep-alive"}, version="1.0"
        ),
    )
    assert (healthy.headers["connection"], healthy.end) == ("close", FIN)
    assert healthy.after_head.endswith(b"data: [DONE]\n\n")


# -- axes that look at frames and framing


def test_a_padded_frame_has_no_chunk_size(server: Server) -> None:
    old, new = (met(server, "reset;frame_bytes=200000", version) for version in ("1.0", "1.1"))
    assert old.after_head == new.chunked.body
    assert len(old.after_head) > 200_000
    assert old.end == RST


@pytest.mark.parametrize("segment", ["byte", "utf8", "2", "whole"])
def test_a_segment_is_the_same_bytes(server: Server, segment: str) -> None:
    old, new = (met(server, f"ok;after_chunks=8;segment={segment}", version) for version in ("1.0", "1.1"))
    assert [frame.partition(b'"created"')[2] for frame in old.after_head.split(b"\n\n")] == [
        frame.partition(b'"created"')[2] for frame in new.body.split(b"\n\n")
    ]
    assert (old.after_head, old.end) == (new.body, FIN)


@pytest.mark.parametrize("off_by", ["+7", "-7"])
def test_a_length_is_said_as_on_http_1_1(server: Server, off_by: str) -> None:
    got = met(server, f"ok;after_chunks=2;length={off_by}")
    assert int(got.headers["content-length"]) == len(got.after_head) + int(off_by)
    assert (got.headers["connection"], got.end) == ("close", FIN)


def test_content_coding_is_as_ever(server: Server) -> None:
    whole = met(server, "ok;after_chunks=2;encoding=gzip")
    assert whole.headers["content-encoding"] == "gzip"
    assert gzip.decompress(whole.after_head).endswith(b"data: [DONE]\n\n")
    torn = met(server, "ok;after_chunks=2;encoding=gzip_truncated;close=rst")
    reader = zlib.decompressobj(wbits=31)
    assert reader.decompress(torn.after_head).endswith(b"data: [DONE]\n\n")
    assert (reader.eof, torn.end) == (False, RST)


@pytest.mark.parametrize(
    ("fault", "status", "end"),
    [
        ("overloaded_503", 503, FIN),
        ("ok;answer_as=json_error;close=rst", 200, RST),
        ("ok;at=request;close=rst", 0, RST),
        ("ok;at=request;close=fin", 0, FIN),
    ],
)
def test_what_is_no_stream_is_as_ever(server: Server, fault: str, status: int, end: str) -> None:
    plain = exchange(server.address, asked(CHAT, fault, payload(CHAT, stream=False)), timeout=SILENCE_S)
    streamed = exchange(server.address, asked(CHAT, fault), timeout=SILENCE_S)
    for got in (plain, streamed):
        assert (got.status, got.end) == (status, end)
        assert not status or int(got.headers["content-length"]) == len(got.after_head)


def test_a_prompts_and_a_models_own_fault_are_played(server: Server) -> None:
    said = payload(CHAT, messages=[{"role": "user", "content": "<<fault:reset>>"}])
    assert exchange(server.address, request("POST", CHAT, said, version="1.0")).end == RST
    own = exchange(server.address, request("POST", CHAT, payload(CHAT, model="static"), version="1.0"))
    assert own.after_head.endswith(b"\xc3")
    assert own.end == FIN


# -- what is refused

REFUSED = [(f"{key}={word}", key) for key, words, _ in UNSEEN for word in words]
BESIDE = {
    "chunk_error": "cut_between_frames",
    "chunk_error=trailer": "ok;after_chunks=2",
    "length": "ok;after_chunks=2",
    "close": "ok;after_chunks=2",
}


@pytest.mark.parametrize(("setting", "key"), REFUSED)
def test_what_needs_chunks_or_a_kept_connection_is_refused_with_key_and_protocol(
    server: Server, setting: str, key: str
) -> None:
    fault = f"{BESIDE.get(setting, BESIDE[key])};{setting}"
    got = exchange(server.address, asked(CHAT, fault))
    assert (got.status, got.error["code"]) == (400, BAD)
    assert f"{setting} needs HTTP/1.1: " in got.error["message"]
    assert "HTTP/1.0" in got.error["message"]
    assert exchange(server.address, asked(CHAT, fault, version="1.1"), timeout=SILENCE_S).status == 200


def test_the_table_of_refusals_is_the_whole_of_it(server: Server) -> None:
    assert {setting for setting, _ in REFUSED} == {
        "chunk_error=bad_size",
        "chunk_error=no_crlf",
        "chunk_error=response_inside",
        "chunk_error=trailer",
        "close=partial_terminator",
        "close=torn_chunk",
        "close=stale",
        "close=idle_close",
        "length=both",
    }
    assert met(server, "stale_connection").status == 400


def test_a_leg_that_is_refused_here_leaves_the_others_of_its_list_alone(server: Server) -> None:
    legs = "cut_between_frames;after_chunks=2, stale_connection"
    assert exchange(server.address, asked(CHAT, legs)).status == 200


# -- incidents

FRAME = '[[events]]\nframe = "data: {}\\n\\n"\n'
RAW = '[[events]]\nraw = "5\\r\\nabcde\\r\\n"\n'
INCIDENTS = {
    "cut": f'close = "fin"\n{FRAME * 2}',
    "whole": f'close = "terminator"\n{FRAME * 2}',
    "late-rst": f'close = "terminator_rst"\n{FRAME * 2}',
    "kept": f'close = "terminator"\n[head.headers]\nconnection = "keep-alive"\n{FRAME}',
    "length": f'close = "terminator"\n[head]\nframing = "length"\n{RAW}',
    "none": f'close = "rst"\n[head]\nframing = "none"\n{RAW}',
    "raw": f'close = "rst"\n{RAW}',
    "both": f'close = "terminator"\n[head]\nframing = "both"\n{FRAME}',
    "stale": f'close = "stale"\n{FRAME}',
    "idle": f'close = "idle_close"\nidle_ms = 5\n{FRAME}',
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows some incidents."""
    home = tmp_path_factory.mktemp("http10")
    (home / "lab.toml").write_text(f'{MODEL}name = "lab"\n{INSTANT}')
    (home / "faults").mkdir()
    for name, text in INCIDENTS.items():
        (home / "faults" / f"{name}.toml").write_text(text)
    server = start(home, "--enable-directives")
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("name", "body", "end", "close"),
    [
        ("cut", b"data: {}\n\n" * 2, FIN, "fin"),
        ("whole", b"data: {}\n\n" * 2, FIN, "terminator"),
        ("late-rst", b"data: {}\n\n" * 2, RST, "terminator_rst"),
        ("kept", b"data: {}\n\n", FIN, "terminator"),
        ("length", b"5\r\nabcde\r\n", FIN, "terminator"),
        ("none", b"5\r\nabcde\r\n", RST, "rst"),
    ],
)
def test_an_incident_goes_out_without_chunks(
    captured: Server, name: str, body: bytes, end: str, close: str
) -> None:
    got = exchange(captured.address, asked(CHAT, name, **{"x-test-id": name}))
    assert (got.after_head, got.end) == (body, end)
    assert got.headers["connection"] == "close"
    assert got.head.lower().count(b"\r\nconnection:") == 1
    assert "transfer-encoding" not in got.headers
    row = row_of(captured, name)
    assert (row["ending_asked"], row["ending"], row["http"]) == (close, close, "1.0")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raw", "raw: raw needs HTTP/1.1"),
        ("both", "both: head.framing=both needs HTTP/1.1"),
        ("stale", "stale: close=stale needs HTTP/1.1"),
        ("idle", "idle: close=idle_close needs HTTP/1.1"),
    ],
)
def test_an_incident_of_raw_chunk_bytes_or_a_kept_connection_is_refused(
    captured: Server, name: str, says: str
) -> None:
    got = exchange(captured.address, asked(CHAT, name))
    assert (got.status, got.error["code"]) == (400, BAD)
    assert got.error["message"].startswith(says)
    assert exchange(captured.address, asked(CHAT, name, version="1.1"), timeout=SILENCE_S).status == 200
