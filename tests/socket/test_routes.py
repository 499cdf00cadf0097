"""Routes, methods, CORS, and the shape of every refusal."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.rawclient import Connection, ask, exchange, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

READ_ONLY = (
    "/",
    "/health",
    "/v1/models",
    "/v1/models/lab",
    "/v1/models/org/lab",
    "/lab/faults",
    "/lab/faults/reset",
)
EMBEDDINGS = "/v1/embeddings"
WITH_BODIES = (CHAT, COMPLETIONS, EMBEDDINGS, "/tokenize", "/detokenize", "/v1/render")
ALLOWED_HEADERS = {"x-inference-lab-fault", "x-test-id", "authorization", "content-type", "x-request-id"}


def test_health_is_ok(server: Server) -> None:
    got = ask(server.address, request("GET", "/health"))
    assert (got.status, got.after_head) == (200, b'{"status":"ok"}')
    assert got.headers["content-length"] == "15"
    assert got.headers["content-type"].startswith("application/json")
    assert got.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("host", ["Host: lab\r\n", ""])
def test_the_root_answers_the_health_checks_of_proxies(server: Server, version: str, host: str) -> None:
    more = f"/ HTTP/{version}\r\n{host}Connection: close\r\n\r\n"
    got = exchange(server.address, f"GET {more}".encode())
    assert (got.status, got.json["name"]) == (200, "inference-lab")
    assert {"lab", "slow"} <= set(got.json["models"])
    assert {"GET /", "POST /v1/chat/completions", "GET /v1/models/{name}"} <= set(got.json["routes"])
    got = exchange(server.address, f"OPTIONS {more}".encode())
    assert (got.status, got.after_head) == (204, b"")


@pytest.mark.parametrize("target", WITH_BODIES)
@pytest.mark.parametrize("coding", [b"gzip", b"br", b"identity, GZIP", b"\xff"])
def test_a_body_with_a_content_coding_is_a_415(server: Server, target: str, coding: bytes) -> None:
    headers = {"Content-Encoding": coding}
    got = ask(server.address, request("POST", target, gzip.compress(payload(CHAT)), headers=headers))
    assert (got.status, got.error["code"]) == (415, "unsupported_content_encoding")
    assert got.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("coding", ["identity", "Identity", "", "identity, identity"])
def test_identity_is_no_content_coding(server: Server, coding: str) -> None:
    data = request("POST", CHAT, payload(CHAT, stream=False), headers={"Content-Encoding": coding})
    assert ask(server.address, data).status == 200


def test_the_models_come_as_an_openai_list(server: Server) -> None:
    listed = ask(server.address, request("GET", "/v1/models")).json
    assert listed["object"] == "list"
    assert {"lab", "slow", "nine", "static", "static-reset", "DeepSeek-V4-Flash"} <= {
        model["id"] for model in listed["data"]
    }
    for model in listed["data"]:
        assert (model["object"], type(model["created"])) == ("model", int)
        assert isinstance(model["owned_by"], str)


@pytest.mark.parametrize("name", ["lab", "org/lab", "org%2Flab"])
def test_one_model_is_found_by_its_name_or_an_alias_with_a_slash(server: Server, name: str) -> None:
    got = ask(server.address, request("GET", f"/v1/models/{name}"))
    assert got.status == 200
    assert got.json["object"] == "model"


def test_an_unknown_model_is_a_404_that_lists_those_there_are(server: Server) -> None:
    for data in (
        request("GET", "/v1/models/nobody"),
        request("GET", "/v1/models/no/body"),
        request("POST", CHAT, payload(CHAT, model="nobody")),
        request("POST", COMPLETIONS, payload(COMPLETIONS, model="nobody")),
    ):
        got = ask(server.address, data)
        assert (got.status, got.error["code"]) == (404, "model_not_found")
        assert not [name for name in ("lab", "slow", "static") if name not in got.error["message"]]


@pytest.mark.parametrize(
    "target",
    [
        "/nope",
        "/v1",
        "/v2/models",
        "/health/",
        "/v1/models/",
        CHAT + "/",
        COMPLETIONS + "/",
        "//health",
        "/HEALTH",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_any_other_path_is_a_json_404_and_a_trailing_slash_makes_one(
    server: Server, method: str, target: str
) -> None:
    got = ask(server.address, request(method, target, b"{}" if method == "POST" else None))
    assert (got.status, got.error["code"]) == (404, "not_found")
    assert "location" not in got.headers


@pytest.mark.parametrize("target", [b"/caf\xe9", b"/v1/models/\xff", b"/%ff", b"/v1/models/%ff", b"/\xc3"])
def test_a_path_that_is_not_utf8_is_a_json_404(server: Server, target: bytes) -> None:
    """Twisted's parser refuses raw bytes above 127 by itself, barely; percent-encoded ones reach us."""
    got = ask(server.address, request("GET", target))
    if got.raw != b"HTTP/1.1 400 Bad Request\r\n\r\n":
        assert got.status == 404
        assert got.error["code"] in {"not_found", "model_not_found"}


@pytest.mark.parametrize(
    "target",
    [
        "xlab/journal",
        "*health",
        "\\health",
        "xv1/models",
        "*",
        "health",
        "lab:443",
        "http:/health",
        "http:///health",
    ],
)
def test_a_target_that_is_no_path_is_a_json_400(server: Server, target: str) -> None:
    for method in ("GET", "POST", "CONNECT"):
        got = ask(server.address, request(method, target, b"{}" if method == "POST" else None))
        assert (got.status, got.error["code"]) == (400, "invalid_request")
        assert repr(target)[1:-1] in got.error["message"]


@pytest.mark.parametrize("server_of", ["127.0.0.1", "other:8080", "user@host", "[::1]:1"])
@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_the_absolute_form_is_served_like_the_path_in_it(server: Server, scheme: str, server_of: str) -> None:
    at = f"{scheme}://{server_of}"
    assert ask(server.address, request("GET", f"{at}/health")).json == {"status": "ok"}
    assert ask(server.address, request("GET", at)).json["name"] == "inference-lab"
    assert ask(server.address, request("GET", f"{at}?x=1")).json["name"] == "inference-lab"
    assert ask(server.address, request("GET", f"{at}//health")).status == 404
    assert (
        ask(server.address, request("GET", f"{at}/lab/journal?tag=toolong")).error["code"]
        == "invalid_request"
    )
    whole = ask(server.address, request("POST", f"{at}{CHAT}", payload(CHAT, stream=False)))
    assert json.loads(whole.body)["object"] == "chat.completion"
    assert exchange(server.address, request("OPTIONS", "*", headers={"Connection": "close"})).status == 204


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: a\r\nHost: b\r\n", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nhOST:\r\n"]
)
def test_one_host_is_needed(server: Server, hosts: bytes) -> None:
    for line in (b"GET /health", b"GET http://a/health", b"POST " + CHAT.encode()):
        got = ask(server.address, line + b" HTTP/1.1\r\n" + hosts + b"\r\n")
        assert (got.status, got.error["code"]) == (400, "invalid_request")
        assert "Host" in got.error["message"]
    old = exchange(server.address, b"GET /health HTTP/1.0\r\n" + hosts + b"\r\n")
    assert old.status == (400 if hosts else 200)


@pytest.mark.parametrize("host", [b"\xff", b"caf\xe9:80", b"a\xc3"])
@pytest.mark.parametrize("target", ["/health", CHAT, "/nope"])
def test_a_host_that_is_not_utf8_is_a_json_400(server: Server, target: str, host: bytes) -> None:
    method = "POST" if target == CHAT else "GET"
    body = payload(CHAT) if target == CHAT else None
    got = ask(server.address, request(method, target, body, headers={"Host": host}))
    assert (got.status, got.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "host", ["", "a:b:c", "[::1", "127.0.0.1:99999999", "a b", "http://x/", "127.0.0.1:x"]
)
def test_a_strange_host_brings_no_500(server: Server, host: str) -> None:
    got = ask(server.address, request("GET", "/health", headers={"Host": host}))
    assert got.status in {200, 400}
    if got.status == 400:
        assert got.error["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        (method, target, "POST")
        for target in (CHAT, COMPLETIONS, EMBEDDINGS)
        for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD")
    ]
    + [(method, target, "GET") for target in READ_ONLY for method in ("POST", "PUT", "DELETE", "PATCH")]
    + [("BREW", "/health", "GET"), ("TRACE", CHAT, "POST")],
)
def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    server: Server, method: str, target: str, allowed: str
) -> None:
    body = b"{}" if method in {"POST", "PUT", "PATCH"} else None
    got = exchange(server.address, request(method, target, body, headers={"Connection": "close"}))
    assert got.status == 405
    allow = {name.strip() for name in got.headers["allow"].split(",")}
    assert allowed in allow
    assert method not in allow
    assert target.startswith("/lab/") or got.headers["access-control-allow-origin"] == "*"
    if method == "HEAD":
        assert got.after_head == b""
    else:
        assert got.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("target", READ_ONLY)
def test_head_is_get_without_the_body(server: Server, target: str) -> None:
    with Connection(server.address) as connection:
        connection.send(request("GET", target))
        whole = connection.response()
        connection.received.clear()
        connection.send(request("HEAD", target) + request("GET", "/nope"))
        got = connection.until(b"not_found")
    assert got.status == whole.status == 200
    assert got.headers["content-length"] == whole.headers["content-length"]
    assert got.after_head.startswith(b"HTTP/1.1 404"), "no byte of a body"


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS, EMBEDDINGS, *READ_ONLY])
def test_options_is_a_cors_preflight(server: Server, target: str) -> None:
    origin = f"http://127.0.0.1:{server.address[1]}" if target.startswith("/lab/") else "http://example.org"
    asked = {"Origin": origin, "Host": origin.partition("//")[2], "Access-Control-Request-Method": "POST"}
    got = ask(server.address, request("OPTIONS", target, headers=asked))
    assert got.status in {200, 204}
    assert got.after_head == b""
    assert got.headers["access-control-allow-origin"] == (origin if target.startswith("/lab/") else "*")
    named = {name.strip().lower() for name in got.headers["access-control-allow-headers"].split(",")}
    assert named >= ALLOWED_HEADERS
    methods = {name.strip() for name in got.headers["access-control-allow-methods"].split(",")}
    assert ("POST" if target in {CHAT, COMPLETIONS, EMBEDDINGS} else "GET") in methods


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS, *READ_ONLY[:-2], "/nope"])
def test_every_answer_but_the_records_allows_any_origin(server: Server, target: str) -> None:
    data = request("POST", target, b"[]", headers={"Origin": "null"})
    assert ask(server.address, data).headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("target", READ_ONLY)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_fault_header_on_another_route_is_refused(server: Server, method: str, target: str) -> None:
    headers = {"x-inference-lab-fault": "reset", "Connection": "close"}
    got = exchange(server.address, request(method, target, headers=headers))
    assert got.status == 400
    if method == "GET":
        assert got.error["code"] == "invalid_fault_directive"


def test_a_refusal_keeps_the_connection(server: Server) -> None:
    refused = (
        request("GET", "/nope"),
        request("PUT", CHAT, b"{}"),
        request("POST", CHAT, b"{"),
        request("POST", CHAT, payload(CHAT), headers={"x-inference-lab-fault": "x"}),
        request("POST", CHAT, payload(CHAT, model="nobody")),
        request("GET", "/%ff"),
        request("GET", "/health", headers={"Host": b"\xff"}),
    )
    with Connection(server.address) as connection:
        for data in refused:
            connection.send(data)
            assert connection.response().error
        connection.send(request("GET", "/health"))
        assert connection.response().status == 200


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_query_string_changes_nothing(server: Server, endpoint: str) -> None:
    got = ask(
        server.address, request("POST", f"{endpoint}?api-version=1&x=%ff", payload(endpoint, stream=False))
    )
    assert got.status == 200
    assert json.loads(got.body)["usage"]["completion_tokens"] == 256
