"""nginx before the server: the rows of the table in docs/clients.md, and a fall-over from one port to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.reference_model.contract import ABRUPT_FIN, GRACEFUL
from tests.support.clients.meetings import FILE
from tests.support.clients.nginx_proxy import CONFIG, NGINX, WAYS, Passed, met, nginx, rows, written
from tests.support.rawclient import exchange, request
from tests.support.server import Server, start

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(NGINX is None, reason="no nginx here: scripts/debian installs it, as root"),
]

FALL_OVER: Final = "proxy_next_upstream error timeout http_503 non_idempotent;"
"""nginx sends a POST to another server only where it is told that it may."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on two ports."""
    config = tmp_path_factory.mktemp("nginx") / "lab.toml"
    config.write_text(CONFIG)
    server = start(config, "--enable-directives", "--port", "0")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def found(lab: Server) -> dict[str, list[Passed]]:
    return met(lab.url)


def urls(lab: Server) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in lab.ports]


def ask(lab: Server, query: str) -> list[dict[str, Any]]:
    got = exchange(lab.address, request("GET", f"/lab/{query}", headers={"Connection": "close"}))
    data: list[dict[str, Any]] = got.json["data"]
    return data


def test_nginx_makes_of_a_death_what_the_document_says(found: dict[str, list[Passed]]) -> None:
    then = written(FILE.read_text(encoding="utf-8"))
    missing = [row for row in rows(found) if row not in then]
    if missing or len(then) != len(found):
        pytest.fail(
            "\n".join(["docs/clients.md is out of date: docs/clients.py --nginx", *missing]), pytrace=False
        )


@pytest.mark.parametrize("mode", ABRUPT_FIN)
def test_a_cut_is_a_silent_truncation_behind_stock_nginx_and_a_cut_over_http_1_1(
    found: dict[str, list[Passed]], mode: str
) -> None:
    stock, newer = found[mode]
    assert stock.ends
    assert [finding.kind.value for finding in stock.verdict.findings] == ["silent_truncation"]
    assert stock.errors == []
    assert not newer.ends
    assert newer.verdict.outcome == "honest prefix"
    assert stock.got.body.startswith(newer.got.body)


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_reset_is_one_in_nginxs_log(found: dict[str, list[Passed]], way: int) -> None:
    passed = found["reset"][way]
    assert not passed.ends
    (error,) = passed.errors
    assert "(104: Connection reset by peer) while reading upstream" in error


@pytest.mark.parametrize("mode", GRACEFUL)
def test_a_graceful_death_comes_through_byte_for_byte(found: dict[str, list[Passed]], mode: str) -> None:
    stock, newer = found[mode]
    assert stock.ends
    assert newer.ends
    assert stock.got.body == newer.got.body


def test_the_protocol_is_in_the_rows(lab: Server) -> None:
    for more, http in ((WAYS["stock"], "1.0"), (WAYS["`proxy_http_version 1.1`"], "1.1")):
        with nginx(urls(lab), more) as proxy:
            proxy.ask("no_done", **{"x-test-id": f"nginx.{http}"})
        (row,) = ask(lab, f"journal?test=nginx.{http}&wait=5")
        assert (row["http"], row["ending"]) == (http, "terminator")


@pytest.mark.parametrize(
    ("death", "status"),
    [("ok;at=request;close=rst", None), ("ok;at=request;close=fin", None), ("overloaded_503", 503)],
)
def test_a_fall_over_is_one_conversation_of_two_legs_and_counted_once(
    lab: Server, death: str, status: int | None
) -> None:
    test = f"nginx.{death.replace(';', '.').replace('=', '.')}"
    with nginx(urls(lab), FALL_OVER) as proxy:
        got = proxy.ask(f"{death};times=1, ok", **{"x-test-id": test})
    assert got.status == 200
    assert got.body.endswith(b"data: [DONE]\n\n")
    rows = ask(lab, f"journal?test={test}&count=2&wait=5")
    assert [row["status"] for row in rows] == [status, 200]
    assert {row["port"] for row in rows} == set(lab.ports)
    assert [row["fault"].partition(";")[0] for row in rows] == [death.partition(";")[0], "ok"]
    (conversation,) = ask(lab, f"verdict?test={test}")
    assert (len(conversation["legs"]), conversation["end"]) == (2, "whole")
    assert conversation["findings"] == []


def test_a_post_that_was_sent_is_not_tried_again_by_stock_nginx(lab: Server) -> None:
    with nginx(urls(lab)) as proxy:
        got = proxy.ask("ok;at=request;close=rst;times=1, ok", **{"x-test-id": "nginx.once"})
    assert got.status == 502
    (row,) = ask(lab, "journal?test=nginx.once&wait=5")
    assert row["ending"] == "rst"
