"""A page in a browser reads and deletes the record only if it is the server's own, or the operator says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.address import IPv4Address, UNIXAddress

from inference_lab.wire.origins import Origins
from tests.support.rawclient import CHAT, Received, ask, payload, request
from tests.support.server import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server import Server

GUARDED = (
    "/lab/journal",
    "/lab/faults",
    "/lab/verdict",
    "/lab/nowhere",
    "/metrics",
    "/%6Cab/journal",
    "/lab%2Fjournal",
)
ALLOWED = "https://app.example:3000"
LOOPBACK, ELSEWHERE = IPv4Address("TCP", "127.0.0.1", 8080), IPv4Address("TCP", "10.0.0.1", 8080)


def from_page(
    server: Server, target: str, origin: str | None, *, method: str = "GET", host: str | None = None
) -> Received:
    headers = {"Host": host or f"127.0.0.1:{server.address[1]}"}
    if origin is not None:
        headers["Origin"] = origin
    return ask(server.address, request(method, target, headers=headers))


def is_refused(got: Received) -> bool:
    names = [name for name in got.headers if name.startswith("access-control")]
    return (
        (got.status, names) == (403, [])
        and got.error["code"] == "foreign_origin"
        and "\n" not in got.error["message"]
    )


@pytest.mark.parametrize("target", GUARDED)
@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:1", "http://127.0.0.1", ""]
)
def test_a_foreign_page_is_refused(server: Server, target: str, origin: str) -> None:
    assert is_refused(from_page(server, target, origin))
    assert is_refused(from_page(server, target, origin, method="DELETE"))
    got = from_page(server, target, origin, method="OPTIONS")
    assert (got.status, [name for name in got.headers if name.startswith("access-control")]) == (403, [])


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example"])
def test_a_page_whose_name_was_made_to_point_here_is_refused(server: Server, name: str) -> None:
    host = f"{name}:{server.address[1]}"
    assert is_refused(from_page(server, "/lab/journal", f"http://{host}", host=host))
    assert is_refused(from_page(server, "/lab/journal", None, host=host)), (
        "as a browser asks for its own page's origin"
    )


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "lab.localhost", "[::1]"])
def test_the_servers_own_pages_and_whoever_is_no_page_may(server: Server, name: str) -> None:
    host = f"{name}:{server.address[1]}"
    own = from_page(server, "/lab/faults", f"http://{host}".lower(), host=host)
    assert (own.status, own.headers["access-control-allow-origin"]) == (200, f"http://{host}".lower())
    got = from_page(server, "/lab/faults", None, host=host)
    assert (got.status, "access-control-allow-origin" in got.headers) == (200, False)
    assert got.headers["vary"] == "origin"


def test_the_models_are_for_every_page(server: Server) -> None:
    for target in ("/v1/models", "/health", "/"):
        got = from_page(server, target, "http://evil.example", host="evil.example")
        assert (got.status, got.headers["access-control-allow-origin"]) == (200, "*")
    data = request("POST", CHAT, payload(CHAT, stream=False, max_tokens=1), headers={"Origin": "null"})
    assert ask(server.address, data).headers["access-control-allow-origin"] == "*"


@pytest.fixture(scope="module", params=["1", "2"])
def open_server(request: pytest.FixtureRequest, one_config: Path) -> Iterator[Server]:
    more = ("--workers", request.param, "--allow-origin", ALLOWED, "--allow-origin", "http://localhost:1")
    server = start(one_config, "--enable-directives", *more)
    yield server
    server.stop()


def test_an_allowed_page_may_read_and_delete(open_server: Server) -> None:
    for method, target in (("GET", "/lab/journal"), ("DELETE", "/lab/journal?test=a")):
        got = from_page(open_server, target, ALLOWED, method=method)
        assert (got.status, got.headers["access-control-allow-origin"]) == (200, ALLOWED)
    preflight = from_page(open_server, "/lab/journal", "http://localhost:1", method="OPTIONS")
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:1"
    assert "DELETE" in preflight.headers["access-control-allow-methods"]
    assert from_page(open_server, "/metrics", None, host="app.example").status == 200
    assert is_refused(from_page(open_server, "/lab/journal", "http://localhost:2"))


def test_any_page_may_where_all_are_allowed() -> None:
    origins = Origins(["*"])
    assert origins.refusal([b"null"], [b"evil"], LOOPBACK) is None
    assert origins.headers([b"null"]) == (("access-control-allow-origin", "*"),)


def test_a_name_is_judged_where_only_this_machine_can_be_meant() -> None:
    origins = Origins((), ["lab.test", "::1"])
    assert origins.refusal([], [b"evil:8080"], LOOPBACK) is not None
    assert origins.refusal([], [b"lab:8080"], ELSEWHERE) is None, "as one container asks another"
    assert origins.refusal([], [b"lab"], UNIXAddress("/run/lab.sock")) is None
    assert origins.refusal([], [], LOOPBACK) is None
    assert origins.refusal([b"http://lab:8080"], [b"lab:8080"], ELSEWHERE) is not None
    assert origins.refusal([b"http://lab.test"], [b"lab.test"], LOOPBACK) is None
