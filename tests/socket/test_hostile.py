"""Input that no client sends by mistake: smuggling, broken framing, garbage. Never a 500."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.deaths import death
from tests.support.rawclient import FIN, OPEN, RST, Connection, ask, exchange, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

HEALTH = request("GET", "/health")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def post(*lines: bytes, body: bytes = b"") -> bytes:
    """A POST with exactly these header lines."""
    return b"\r\n".join([b"POST /v1/chat/completions HTTP/1.1", b"Host: x", *lines]) + b"\r\n\r\n" + body


FRAMING = {
    "content-length and transfer-encoding": post(
        b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED
    ),
    "transfer-encoding and content-length": post(
        b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": post(b"Content-Length: 2", b"Content-Length: 40", body=b"{}" + SMUGGLED),
    "two equal lengths": post(b"Content-Length: 2", b"Content-Length: 2", body=b"{}" + SMUGGLED),
    "a list of lengths": post(b"Content-Length: 2, 40", body=b"{}" + SMUGGLED),
    "a signed length": post(b"Content-Length: +2", body=b"{}" + SMUGGLED),
    "a negative length": post(b"Content-Length: -2", body=b"{}" + SMUGGLED),
    "a hexadecimal length": post(b"Content-Length: 0x2", body=b"{}" + SMUGGLED),
    "a length with an underscore": post(b"Content-Length: 1_0", body=b"{}" + SMUGGLED),
    "a length in other digits": post("Content-Length: ٢".encode(), body=b"{}" + SMUGGLED),
    "an empty length": post(b"Content-Length:", body=b"{}" + SMUGGLED),
    "an unknown transfer-encoding": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "a garbled transfer-encoding": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + SMUGGLED),
    "a blank before the colon": post(b"Content-Length : 2", body=b"{}" + SMUGGLED),
    "a header without a colon": post(b"Content-Length 2", body=b"{}" + SMUGGLED),
    "an empty header name": post(b": 2", body=b"{}" + SMUGGLED),
    "a NUL in a value": post(b"x: a\0b", b"Content-Length: 2", body=b"{}"),
    "a bare CR in a value": post(b"x: a\rContent-Length: 2", body=b"{}" + SMUGGLED),
}
CHUNKS = {
    "no hexadecimal": b"zz\r\n{}\r\n0\r\n\r\n",
    "a sign": b"+2\r\n{}\r\n0\r\n\r\n",
    "a minus": b"-2\r\n{}\r\n0\r\n\r\n",
    "a prefix": b"0x2\r\n{}\r\n0\r\n\r\n",
    "an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "a blank in front": b" 2\r\n{}\r\n0\r\n\r\n",
    "no size": b"\r\n{}\r\n0\r\n\r\n",
    "no CRLF behind the data": b"2\r\n{}0\r\n\r\n",
    "other data behind the data": b"2\r\n{}xx0\r\n\r\n",
    "a very long size": b"0" * 40000 + b"2\r\n{}\r\n0\r\n\r\n",
    "a size beyond all memory": b"f" * 30 + b"\r\n{}\r\n0\r\n\r\n",
    "a bare LF": b"2\n{}\n0\n\n",
}


def assert_refused(server: Server, data: bytes) -> None:
    """At most one answer, a 4xx, and the connection is done with; or no answer and a closed connection."""
    got = exchange(server.address, data, timeout=1.5)
    assert got.raw.count(b"HTTP/1.1 ") <= 1, got.raw
    assert not got.raw or got.status in {400, 413, 501}, got.raw
    assert b"/smuggled" not in got.raw
    assert got.raw or got.end in {FIN, RST}
    assert ask(server.address, HEALTH).status == 200


@pytest.mark.parametrize("digits", [b"9", b"0"])
def test_a_length_of_more_digits_than_an_integer_may_have_is_a_bare_400(
    server: Server, digits: bytes
) -> None:
    got = exchange(server.address, post(b"Content-Length: " + digits * 5000, body=SMUGGLED))
    assert got.raw == b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize("data", FRAMING.values(), ids=FRAMING)
def test_ambiguous_framing_is_refused_and_nothing_behind_it_is_served(server: Server, data: bytes) -> None:
    assert_refused(server, data)


@pytest.mark.parametrize(
    "codings", [(b"chunked", b"identity"), (b"identity", b"chunked"), (b"chunked", b"chunked")]
)
def test_two_transfer_encodings_are_refused(server: Server, codings: tuple[bytes, bytes]) -> None:
    """RFC 9112, section 6.3: where chunked is not the only and last coding, the length is anyone's guess."""
    lines = (b"Transfer-Encoding: " + coding for coding in codings)
    assert_refused(server, post(*lines, body=b"0\r\n\r\n" + SMUGGLED))


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_a_bad_chunk_is_refused(server: Server, chunks: bytes) -> None:
    if chunks == CHUNKS["a bare LF"] or chunks == CHUNKS["a size beyond all memory"]:
        got = exchange(server.address, post(b"Transfer-Encoding: chunked", body=chunks), timeout=1)
        assert not got.raw or got.status in {400, 413}, "waiting for more is fine too, an answer to it is not"
    else:
        assert_refused(server, post(b"Transfer-Encoding: chunked", body=chunks))


@pytest.mark.parametrize("fold", [b"\r\n ", b"\r\n\t", b"\r\n \t "])
def test_a_folded_fault_header_is_honoured_whole_or_refused_but_never_shortened(
    server: Server, fold: bytes
) -> None:
    body = payload(CHAT)
    lines = (
        b"x-inference-lab-fault: cut_between_frames;" + fold + b"after_chunks=2",
        b"Content-Length: %d" % len(body),
    )
    got = death(server, post(*lines, body=body))
    if got.status == 200:
        assert len(got.chunked.chunks) == 3
    else:
        assert not got.raw or got.status == 400


def test_two_fault_headers_are_one_list(server: Server) -> None:
    """RFC 9110 section 5.3: the first element is the fate of the first leg."""
    body = payload(CHAT)
    lines = (
        b"x-inference-lab-fault: reset",
        b"x-inference-lab-fault: stall",
        b"Content-Length: %d" % len(body),
    )
    got = exchange(server.address, post(*lines, body=body))
    alone = exchange(server.address, fault_request(CHAT, "reset", body))
    assert got.end == RST
    assert got.after_head == alone.after_head


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 20000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(600)) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (i, b"x" * 400) for i in range(60)) + b"\r\n",
        b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + b"\r\n\r\n",
        b"G\xffT / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=range(11),
)
def test_a_head_the_parser_refuses_is_a_bare_400_or_a_closed_connection(server: Server, head: bytes) -> None:
    got = exchange(server.address, head, timeout=1.5)
    assert not got.raw or 400 <= got.status < 500
    assert got.end in {FIN, RST}
    assert ask(server.address, HEALTH).status == 200


@pytest.mark.parametrize(
    "target",
    [
        b"*",
        b"http://other/health",
        b"http://\xff/health",
        b"//",
        b"/%",
        b"/%00",
        b"/..",
        b"/v1/models/%2e%2e",
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "CONNECT"])
def test_a_strange_target_brings_no_500(server: Server, method: str, target: bytes) -> None:
    got = exchange(server.address, request(method, target, headers={"Connection": "close"}), timeout=1.5)
    assert not got.raw or got.status < 500
    assert got.end in {FIN, RST}


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + b"1" * (opening != b"[") + closing * depth


PREFIX = b'{"model":"lab","prompt":"x","messages":[{"role":"user","content":"x"}],'
REFUSED = {
    "nothing": b"",
    "a blank": b" ",
    "no object": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "a number": b"1",
    "half an object": b'{"model":"lab"',
    "two objects": PREFIX[:-1] + b"}{}",
    "a NUL": b"\0",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model":"lab"}'.encode("utf-16"),
    "NaN": PREFIX + b'"temperature":NaN}',
    "Infinity": PREFIX + b'"x":-Infinity}',
    "a single quote": b"{'model':'lab'}",
    "a comment": PREFIX + b"/**/}",
    "a trailing comma": PREFIX + b"}",
    "invalid UTF-8 in a known field": PREFIX + b'"suffix":"\xff"}',
    "invalid UTF-8 in an unknown field": PREFIX + b'"y":"\xc3"}',
    "a surrogate in UTF-8": PREFIX + b'"y":"\xed\xa0\x80"}',
    "a lone surrogate in the model": PREFIX.replace(b"lab", b"\\udfff")[:-1] + b"}",
    "deep arrays": nested(100_000),
    "deep objects": nested(100_000, b'{"a":', b"}"),
    "an open array without end": b"[" * 1_000_000,
}
EITHER = {
    "a lone surrogate in an unknown field": PREFIX + b'"y":"\\ud800"}',
    "a lone surrogate in a key": PREFIX + b'"\\ud800":1}',
    "deep in an unknown field": PREFIX + b'"y":' + nested(50_000) + b"}",
    "deep in the tools": PREFIX + b'"tools":' + nested(5_000) + b"}",
    "deep in nvext": PREFIX + b'"nvext":{"x":' + nested(5_000) + b"}}",
    "deep in a part": b'{"model":"lab","prompt":"x","messages":[{"role":"user","content":[{"type":"x","y":'
    + nested(5_000)
    + b"}]}]}",
}


@pytest.mark.parametrize("fault", [None, "no_usage;delay_ms=0"])
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_body_that_is_no_good_json_is_a_400(
    server: Server, body: bytes, endpoint: str, fault: str | None
) -> None:
    data = request("POST", endpoint, body) if fault is None else fault_request(endpoint, fault, body)
    got = ask(server.address, data)
    assert (got.status, got.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("body", EITHER.values(), ids=EITHER)
def test_json_at_the_edge_is_answered_or_refused(server: Server, body: bytes, endpoint: str) -> None:
    got = ask(server.address, request("POST", endpoint, body))
    assert got.status == 200 or got.error["code"] == "invalid_request"


def test_a_prompt_with_a_lone_surrogate_is_refused(server: Server) -> None:
    for endpoint, asked in (
        (CHAT, b'"messages":[{"role":"user","content":"\\ud800"}]'),
        (COMPLETIONS, b'"prompt":"\\ud800"'),
    ):
        got = ask(server.address, request("POST", endpoint, b'{"model":"lab",%s}' % asked))
        assert (got.status, got.error["code"]) in {(400, "invalid_request"), (400, "invalid_prompt")}


def test_a_number_of_five_thousand_digits_is_no_500(server: Server) -> None:
    for key in ("max_tokens", "seed", "unknown"):
        body = payload(CHAT, stream=False)[:-1] + b', "%s": %s}' % (key.encode(), b"9" * 5000)
        assert ask(server.address, request("POST", CHAT, body)).status in {200, 400}


def test_a_repeated_key_counts_last(server: Server) -> None:
    body = (
        payload(CHAT, stream=False)[:-1]
        + b', "max_tokens": "x", "max_tokens": 3, "model": "nine", "model": "lab"}'
    )
    answer = ask(server.address, request("POST", CHAT, body)).json
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("lab", 3)


def test_a_content_type_and_charset_are_not_consulted(server: Server) -> None:
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "\xff",
        "",
    ):
        data = request("POST", CHAT, payload(CHAT, stream=False), headers={"Content-Type": kind})
        assert ask(server.address, data).status == 200


@pytest.mark.parametrize("ident", ["\xff", "\xc3\xa9", "x" * 8000, "", '"', "\x01\x7f", "; , ="])
def test_any_request_id_is_good_for_a_digest(server: Server, ident: str) -> None:
    got = death(server, fault_request(CHAT, "no_done;delay_ms=0", **{"x-request-id": ident}))
    assert (got.status, len(got.chunked.chunks)) == (200, 5)


def test_bytes_one_at_a_time_make_the_same_request(server: Server) -> None:
    data = fault_request(CHAT, "cut_mid_frame;delay_ms=0")
    with Connection(server.address) as connection:
        for at in range(len(data)):
            connection.send(data[at : at + 1])
        slowly = connection.until_end()
    assert slowly.after_head == exchange(server.address, data).after_head


def test_an_unfinished_request_is_waited_for(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(request("POST", CHAT, headers={"Content-Length": "100"}) + b"{")
        assert connection.until_end(timeout=0.3).end == OPEN
    assert json.loads(ask(server.address, HEALTH).body) == {"status": "ok"}


@pytest.mark.parametrize(
    "line",
    [
        b"GET /\xff HTTP/1.1\r\n",
        b"GARBAGE\r\n",
        b"GET / HTTP/3.0\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: x\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n",
    ],
)
def test_what_comes_behind_a_refused_head_is_not_read_in_whatever_tls_records_it_comes(
    tls_server: Server, line: bytes
) -> None:
    """A traceback in the log fails every test here."""
    with Connection(tls_server.address, tls=True) as connection:
        connection.send_records([line, b"Host: x\r\n", b"\r\n", HEALTH])
        got = connection.until_end(timeout=5)
    assert (got.raw, got.end) == (b"HTTP/1.1 400 Bad Request\r\n\r\n", FIN)
