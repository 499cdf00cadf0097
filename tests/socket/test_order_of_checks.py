"""A request with several things wrong: the first check that fails answers."""

# ruff: noqa: E501 (a table is read by its columns)

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS, ENDPOINTS, MODES
from tests.support.rawclient import Received, exchange, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

FAULT = "x-inference-lab-fault"
TOO_LONG = {"Content-Length": "16777217"}
CHUNKED = {"Transfer-Encoding": "chunked"}
BAD_JSON = b'{"model":'
BAD_TYPE = payload(CHAT, max_tokens="many")
NO_STREAM = payload(CHAT, stream=False)
NOBODY = payload(CHAT, model="nobody")
PAST = payload(
    CHAT, messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "aa0000 aa0001"}]
)
STALE_SAID = {"messages": [{"role": "user", "content": "<<fault:stale_connection>>"}]}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request, and what must be said about it."""

    why: str
    status: int
    code: str
    body: bytes | None = payload(CHAT)
    fault: str | None = None
    method: str = "POST"
    target: str = CHAT
    version: str = "1.1"
    says: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, server: Server) -> Received:
        headers: dict[str, Any] = dict(self.headers)
        if self.fault is not None:
            headers[FAULT] = self.fault
        data = request(
            self.method,
            self.target,
            self.body,
            headers=headers | {"Connection": "close"},
            version=self.version,
        )
        return exchange(server.address, data)


LONG = tuple(TOO_LONG.items())
BAD = "invalid_fault_directive"
CODED = "unsupported_content_encoding"
GZIP = (("Content-Encoding", "gzip"),)
CASES = (
    Wrong("declared length before route", 413, "body_too_large", None, target="/nope", headers=LONG),
    Wrong("declared length before method", 413, "body_too_large", None, method="PUT", headers=LONG),
    Wrong("declared length before grammar", 413, "body_too_large", None, fault="nonsense", headers=LONG),
    Wrong("declared length before version", 413, "body_too_large", None, fault="reset", version="1.0", headers=LONG),
    Wrong("route before method", 404, "not_found", b"{}", method="DELETE", target="/nope"),
    Wrong("route before grammar", 404, "not_found", BAD_JSON, fault="nonsense", target="/v1/completions/"),
    Wrong("route before version", 404, "not_found", fault="reset", target="/nope", version="1.0"),
    Wrong("method before grammar", 405, "method_not_allowed", None, method="GET", fault="nonsense"),
    Wrong("method before version", 405, "method_not_allowed", None, method="DELETE", fault="reset", version="1.0"),
    Wrong("method before grammar elsewhere", 405, "method_not_allowed", b"", target="/health", fault="nonsense"),
    Wrong("grammar before version", 400, BAD, fault="nonsense", version="1.0", says="cut_between_frames"),
    Wrong("JSON before version", 400, "invalid_request", BAD_JSON, fault="stale_connection", version="1.0"),
    Wrong("types before version", 400, "invalid_request", BAD_TYPE, fault="stale_connection", version="1.0"),
    Wrong("streaming before version", 400, BAD, NO_STREAM, fault="stale_connection", version="1.0", says="stream"),
    Wrong("model before version", 404, "model_not_found", NOBODY, fault="stale_connection", version="1.0"),
    Wrong("version before the answer's parts", 400, BAD, PAST, fault="mid_reasoning;chunk_error=bad_size", version="1.0", says="HTTP/1.1"),
    Wrong("grammar before JSON", 400, BAD, BAD_JSON, fault="nonsense"),
    Wrong("grammar before streaming", 400, BAD, NO_STREAM, fault="reset;x=1", says="cut_between_frames"),
    Wrong("grammar before model", 400, BAD, NOBODY, fault="reset;after_chunks=+1"),
    Wrong("grammar on another known route", 400, BAD, None, method="GET", target="/health", fault="nonsense"),
    Wrong("declared length before coding", 413, "body_too_large", None, headers=(*LONG, *GZIP)),
    Wrong("route before coding", 404, "not_found", target="/nope", headers=GZIP),
    Wrong("grammar before coding", 400, BAD, fault="nonsense", headers=GZIP),
    Wrong("test id before coding", 400, "invalid_test_id", headers=(*GZIP, ("x-test-id", "a b"))),
    Wrong("coding before JSON", 415, CODED, BAD_JSON, headers=GZIP),
    Wrong("coding before model", 415, CODED, NOBODY, headers=GZIP),
    Wrong("coding before streaming", 415, CODED, NO_STREAM, fault="reset", headers=GZIP),
    Wrong("JSON before streaming", 400, "invalid_request", BAD_JSON, fault="reset"),
    Wrong("types before streaming", 400, "invalid_request", payload(CHAT, stream=False, n=2), fault="reset"),
    Wrong("types before model", 400, "invalid_request", payload(CHAT, model="nobody", max_tokens=0)),
    Wrong("types before model with a fault", 400, "invalid_request", payload(CHAT, model="x", n="1"), fault="reset"),
    Wrong("streaming before model", 400, BAD, payload(CHAT, stream=False, model="nobody"), fault="reset", says="stream"),
    Wrong("model with a fault", 404, "model_not_found", NOBODY, fault="reset"),
    Wrong("model before context", 404, "model_not_found", payload(CHAT, model="nobody", max_tokens=2**31 - 1)),
    Wrong("types before the version of a prompt's", 400, "invalid_request", payload(CHAT, n=2, **STALE_SAID), version="1.0"),
    Wrong("the version of a prompt's", 400, BAD, payload(CHAT, **STALE_SAID), version="1.0", says="in the prompt: stale_connection: close=stale needs HTTP/1.1"),
    Wrong("the version of a prompt's, no context check", 400, BAD, payload(CHAT, max_tokens=2**31 - 1, **STALE_SAID), version="1.0", says="HTTP/1.1"),
    Wrong("context on the engine path", 400, "context_length_exceeded", payload(CHAT, max_tokens=2**31 - 1)),
    Wrong("prompt before model", 400, "invalid_prompt", payload(COMPLETIONS, model="x", prompt=""), target=COMPLETIONS),
    Wrong("prompt before streaming", 400, "invalid_prompt", payload(COMPLETIONS, stream=False, prompt=[]), "reset", target=COMPLETIONS),
)  # fmt: skip


@pytest.mark.parametrize("wrong", CASES, ids=lambda wrong: wrong.why)
def test_the_first_check_that_fails_answers(server: Server, wrong: Wrong) -> None:
    got = wrong.send(server)
    error = got.error
    assert (got.status, error["code"]) == (wrong.status, wrong.code), error
    assert wrong.says in error["message"]


WITHOUT_FLAG = (
    Wrong("declared length before flag", 413, "body_too_large", None, fault="reset", headers=LONG),
    Wrong("route before flag", 404, "not_found", fault="reset", target="/nope"),
    Wrong("method before flag", 405, "method_not_allowed", None, method="GET", fault="reset"),
    Wrong("flag", 400, BAD, fault="reset", says="--enable-directives"),
    Wrong("flag before grammar", 400, BAD, fault="nonsense", says="--enable-directives"),
    Wrong("flag before an empty header", 400, BAD, fault="", says="--enable-directives"),
    Wrong("flag before version", 400, BAD, fault="reset", version="1.0", says="--enable-directives"),
    Wrong("flag before JSON", 400, BAD, BAD_JSON, fault="reset", says="--enable-directives"),
    Wrong("flag before streaming", 400, BAD, NO_STREAM, fault="reset", says="--enable-directives"),
    Wrong("flag before model", 400, BAD, NOBODY, fault="reset", says="--enable-directives"),
    Wrong("flag elsewhere", 400, BAD, None, method="GET", target="/v1/models", fault="reset", says="--enable-directives"),
)  # fmt: skip


@pytest.mark.parametrize("wrong", WITHOUT_FLAG, ids=lambda wrong: wrong.why)
def test_the_flag_is_checked_before_the_grammar(no_directives: Server, wrong: Wrong) -> None:
    got = wrong.send(no_directives)
    error = got.error
    assert (got.status, error["code"]) == (wrong.status, wrong.code), error
    assert wrong.says in error["message"]


def test_the_size_of_a_chunked_body_is_checked_before_its_json_but_after_the_grammar(
    impatient: Server,
) -> None:
    body = b"200000\r\n" + b"{" * 0x200000 + b"\r\n0\r\n\r\n"
    too_large = "body_too_large"
    for more, code in (
        ({FAULT: "reset"}, too_large),
        ({FAULT: "nonsense"}, BAD),
        (dict(GZIP), CODED),
        ({}, too_large),
    ):
        headers = CHUNKED | more | {"Connection": "close"}
        assert exchange(impatient.address, request("POST", CHAT, body, headers=headers)).error["code"] == code


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_fault_does_not_ask_about_the_context(server: Server, endpoint: str) -> None:
    headers = {FAULT: "no_usage;delay_ms=0", "Connection": "close"}
    body = payload(endpoint, max_tokens=2**31 - 1)
    assert exchange(server.address, request("POST", endpoint, body, headers=headers)).status == 200


@pytest.mark.parametrize("stream", [False, None])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_fault_on_a_request_that_does_not_stream_is_never_ignored(
    server: Server, mode: str, endpoint: str, *, stream: bool | None
) -> None:
    document = json.loads(payload(endpoint))
    document |= {"stream": stream}
    data = request(
        "POST", endpoint, json.dumps(document).encode(), headers={FAULT: mode, "Connection": "close"}
    )
    got = exchange(server.address, data)
    assert (got.status, got.error["code"]) == (400, BAD)
    assert "stream" in got.error["message"]
