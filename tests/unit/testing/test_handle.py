"""What a test asks of a lab, without one."""

from __future__ import annotations

import gzip
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.testing import CurrentTest, InferenceLab

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = (
    b'data: {"choices":[{"delta":{"content":"qu0000 qu0001"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
CUT = b'data: {"choices":[{"delta":{"content":"qu0000 qu0001"},"finish_reason":null}]}\n\n'


def lab(current: CurrentTest | None = None, url: str = "http://127.0.0.1:9") -> InferenceLab:
    return InferenceLab(url, current or CurrentTest(), dict)


def marked(*arguments: object) -> InferenceLab:
    current = CurrentTest()
    current.begin("tests/test_x.py::test_x", arguments)
    return lab(current)


def test_a_fault_is_a_header_with_a_fresh_id_each_time() -> None:
    asked = lab()
    first, second = asked.fault("reset;after_chunks=2"), asked.fault("reset;after_chunks=2")
    for headers in (first, second):
        assert headers["x-inference-lab-fault"] == f"reset;after_chunks=2;test={headers['x-test-id']}"
    assert first["x-test-id"] != second["x-test-id"] == asked.test


def test_a_prompt_carries_its_death_through_any_gateway() -> None:
    asked = lab()
    message = asked.prompt("hello", fault="cut_mid_frame;after_chunks=5, stall;after_chunks=3")
    assert message == {
        "role": "user",
        "content": f"hello <<fault:cut_mid_frame;after_chunks=5, stall;after_chunks=3;test={asked.test}>>",
    }
    first = asked.test
    assert asked.prompt("hello")["content"] == f"hello <<fault:ok;test={asked.test}>>"
    assert asked.test != first


def test_the_marker_is_the_fault_where_none_is_given() -> None:
    asked = marked("stall")
    assert asked.fault()["x-inference-lab-fault"].startswith("stall;")
    assert asked.fault("reset")["x-inference-lab-fault"].startswith("reset;")
    assert "<<fault:stall;" in asked.prompt("hello")["content"]
    assert "<<fault:ok;" in lab().prompt("hello")["content"]


def test_what_the_server_would_refuse_is_refused_in_the_test() -> None:
    with pytest.raises(ValueError, match=r"unknown mode 'rezet'; valid modes: cut_between_frames"):
        lab().fault("rezet")
    with pytest.raises(ValueError, match="overlap is for later legs"):
        lab().prompt("hello", fault="ok;overlap=3")
    with pytest.raises(ValueError, match="test is given twice"):
        lab().fault("reset;test=mine")
    with pytest.raises(ValueError, match="no fault to ask for"):
        lab().fault()
    for arguments in ((), ("reset", "stall"), (7,)):
        with pytest.raises(ValueError, match="takes one directive"):
            marked(*arguments).prompt("hello")


@given(st.lists(st.text(max_size=80), max_size=8))
def test_ids_are_fit_for_the_server_unlike_each_other_and_the_same_in_every_run(names: list[str]) -> None:
    def run() -> list[str]:
        current = CurrentTest()
        found = []
        for name in names:
            current.begin(name)
            assert current.latest is None
            found += [current.fresh(), current.fresh()]
        return found

    ids = run()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found) for found in ids)
    assert len(set(ids)) == len(ids)
    assert run() == ids


def test_an_id_says_which_test_it_is_and_depends_on_no_other() -> None:
    alone, behind = CurrentTest(), CurrentTest()
    behind.begin("tests/test_a.py::test_cut[é-1]")
    behind.fresh()
    for current in (alone, behind):
        current.begin("tests/test_b.py::test_cut[é-1]")
    assert alone.fresh() == (again := behind.fresh())
    assert again.startswith("test_cut--1-")


class Dying:
    """A body that dies with an exception."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield CUT
        raise self._error


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (WHOLE, "whole"),
        (WHOLE.decode(), "whole"),
        (bytearray(WHOLE), "whole"),
        ([WHOLE[:9], WHOLE[9:]], "whole"),
        (iter(WHOLE.decode()), "whole"),
        (SimpleNamespace(content=WHOLE), "whole"),
        (SimpleNamespace(text=WHOLE.decode()), "whole"),
        (httpx.Response(200, content=WHOLE), "whole"),
        (CUT, "honest prefix"),
        (Dying(httpx.RemoteProtocolError("cut")), "honest prefix"),
        (Dying(urllib3.exceptions.ProtocolError("cut")), "honest prefix"),
        (Dying(ConnectionResetError("reset")), "honest prefix"),
        (httpx.Response(200, content=CUT), "wrong"),  # it was read to a clean end
    ],
)
def test_verify_takes_what_clients_have_and_hears_how_it_ended(response: object, outcome: str) -> None:
    assert lab().verify(response).outcome == outcome


def test_verify_does_what_it_is_told() -> None:
    assert lab().verify(WHOLE, tokens=2).is_whole
    assert lab().verify(WHOLE, tokens=3).outcome == "wrong"
    assert lab().verify(CUT, ended="broken").is_honest_prefix
    assert lab().verify(CUT, ended="clean").outcome == "wrong"
    assert lab().verify(httpx.Response(200, content=CUT), ended="unknown").is_honest_prefix
    assert lab().verify(WHOLE, tag="xx").outcome == "wrong"


ANSWER = b'{"choices":[{"message":{"content":"qu0000"},"finish_reason":"stop"}]}'
STREAMED = httpx.Request("POST", "http://lab/", json={"stream": True})
UNSTREAMED = httpx.Request("POST", "http://lab/", json={"stream": False})
ASKED = SimpleNamespace(body=b'{"stream": true}')


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (httpx.Response(200, content=ANSWER), "whole"),
        (httpx.Response(200, content=ANSWER, request=UNSTREAMED), "whole"),
        (httpx.Response(200, content=ANSWER, request=STREAMED), "wrong"),
        (httpx.Response(200, content=WHOLE, request=STREAMED), "whole"),
        (httpx.Response(502, content=ANSWER, request=STREAMED), "honest prefix"),
        (httpx.Response(502, content=b"Bad Gateway"), "honest prefix"),
        (SimpleNamespace(content=ANSWER, status_code=200, request=ASKED), "wrong"),
        (SimpleNamespace(content=ANSWER, status=200, request=SimpleNamespace(body="no JSON")), "whole"),
        (SimpleNamespace(content=b"", status=503, request=None), "honest prefix"),
    ],
)
def test_verify_takes_status_and_stream_from_the_response_and_its_request(
    response: object, outcome: str
) -> None:
    assert lab().verify(response).outcome == outcome
    assert lab().verify(response, status=500).is_honest_prefix
    assert lab().verify(response, status=200, stream=True).is_whole is (
        outcome == "whole" and b"data" in response.content
    )  # type: ignore[attr-defined]


def test_verify_is_told_what_the_upstream_said_and_what_was_asked_for() -> None:
    assert lab().verify(WHOLE, finish="length").findings[0].kind.value == "finish_changed"
    lost = lab().verify(WHOLE, usage="asked")
    assert (lost.outcome, lost.findings[0].kind.value) == ("wrong", "usage_lost")
    assert lab().verify(WHOLE, usage="asked", ignore=["accounting"]).is_whole
    assert lab().verify(WHOLE, max_tokens=1).outcome == "wrong"


class Unread:
    """A response that its client leaves as it was sent."""

    def __init__(self, body: bytes, **headers: str) -> None:
        self._body, self.headers = body, headers

    def __iter__(self) -> Iterator[bytes]:
        return iter([self._body])


def test_a_compressed_body_is_the_gateways_doing_where_no_header_says_so() -> None:
    packed = gzip.compress(WHOLE)
    announced = httpx.Response(200, content=packed, headers={"content-encoding": "gzip"})
    assert lab().verify(announced).is_whole
    for response in (httpx.Response(200, content=packed), Unread(packed), packed):
        assert [finding.kind.value for finding in lab().verify(response).findings] == ["not_a_stream"]
    with pytest.raises(TypeError, match="still compressed"):
        lab().verify(Unread(packed, **{"content-encoding": "gzip"}))


def test_verify_swallows_no_error_that_is_not_the_transports() -> None:
    with pytest.raises(ZeroDivisionError):
        lab().verify(Dying(ZeroDivisionError()))
    unread = httpx.Response(200, stream=httpx.ByteStream(WHOLE))
    with pytest.raises(httpx.ResponseNotRead):
        lab().verify(unread)


@pytest.mark.parametrize("response", [None, 7, {"choices": []}, SimpleNamespace(content=print), [7]])
def test_verify_says_what_it_would_take(response: object) -> None:
    with pytest.raises(TypeError, match="verify takes text, bytes, an iterable of either"):
        lab().verify(response)


def test_a_verdict_reads_well_where_an_assertion_shows_it() -> None:
    verdict = lab().verify(WHOLE.replace(b"qu0001", b"qu0003"), tokens=2)
    said = "wrong: words 2 text; finish stop; findings 1 (1 text)"
    assert str(verdict).splitlines()[0] == said
    assert repr(verdict).startswith(f"<{said}; gap: text, word 1, byte ")
    assert len(repr(verdict)) < 240
    assert repr(lab().verify(WHOLE)) == "<whole: words 2 text; finish stop; findings 0>"
    many = lab().verify(WHOLE.replace(b"qu0000 qu0001", b"x qu0001  qu0003 y"))
    assert repr(many).endswith(f"; and {many.finding_count - 1} more>")


@contextmanager
def stub(status: int, answer: object) -> Iterator[tuple[str, list[str]]]:
    """A server that gives one answer, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        thread.join()


def test_the_journal_is_asked_for_the_latest_id_and_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which has nothing to do with it
    row = {"id": 1, "state": "ended", "ending": "rst"}
    with stub(200, {"object": "list", "data": [row]}) as (url, asked):
        asking = lab(url=url)
        asking.fault("reset")
        assert asking.journal() == [row]
    address = urlsplit(asked[0])
    assert address.path == "/lab/journal"
    assert parse_qs(address.query) == {"test": [asking.test], "count": ["1"], "wait": ["5"]}


def test_the_journal_is_asked_for_what_it_is_told() -> None:
    with stub(200, {"data": []}) as (url, asked):
        assert lab(url=url).journal(ending="rst", count=2, wait_s=0.5) == []
    assert parse_qs(urlsplit(asked[0]).query) == {"ending": ["rst"], "count": ["2"], "wait": ["0.5"]}
    with stub(200, {"data": []}) as (url, asked):
        lab(url=url).journal(test="t1", tag="qu")
    assert parse_qs(urlsplit(asked[0]).query) == {
        "test": ["t1"],
        "tag": ["qu"],
        "count": ["1"],
        "wait": ["5"],
    }


def test_a_question_that_the_journal_refuses_is_an_error_with_its_reason() -> None:
    with (
        stub(400, {"error": {"message": "unknown filter 'x'"}}) as (url, _),
        pytest.raises(ValueError, match="the journal says 400: unknown filter 'x'"),
    ):
        lab(url=url).journal(x=1)
    with pytest.raises(ValueError, match="no test to ask about"):
        lab().journal()
