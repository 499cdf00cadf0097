"""Answers about the journal to readers that take their time, or none, and in parts: pages, cursors, memory."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from inference_lab.storage.database import Database, prepare
from tests.support.rawclient import OPEN, Connection, ask, request
from tests.support.rows import row
from tests.support.server import CONSOLE, Server, eventually, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 2_000
NOW = 4_000_000_000.0
READERS = 60


def fill(path: Path) -> None:
    """A journal of fat rows, each a conversation of its own, some 5 MB in all."""
    prepare(str(path))
    database = Database(str(path), 1)
    for begin in range(0, ROWS, 100):
        rows = {
            n: row(
                NOW + n // 3,
                test=f"t{n % 50}",
                prompt=f"{n:016x}",
                progress=0,
                tag="dx",
                fault="f" * 1000,
                headers={"accept": "a" * 1000},
            )
            for n in range(begin, begin + 100)
        }
        database.write(rows, most_rows=10_000, oldest=0)
    database.close()


@pytest.fixture(scope="module")
def full(one_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with many rows, which resets a reader after two seconds."""
    path = tmp_path_factory.mktemp("full") / "j"
    fill(path)
    server = start(one_config, "--enable-directives", "--journal", str(path), "--linger-s", "2", how=CONSOLE)
    yield server
    server.stop()


def look(server: Server, **query: Any) -> dict[str, Any]:
    got = ask(server.address, request("GET", f"/lab/journal?{urlencode(query)}"))
    assert got.status == 200, got.raw
    told: dict[str, Any] = got.json
    return told


def test_an_answer_without_a_limit_has_all_rows(full: Server) -> None:
    told = look(full)
    assert len(told["data"]) == ROWS
    assert told | {"data": []} == {
        "object": "list",
        "data": [],
        "lost_rows": 0,
        "dropped_rows": 0,
        "next": None,
    }
    order = [(found["time"], found["id"]) for found in told["data"]]
    assert all(before < after for before, after in pairwise(order))


@pytest.mark.parametrize(("limit", "query"), [(1, {"test": "t7"}), (300, {}), (999, {}), (ROWS, {})])
def test_parts_joined_are_the_whole(full: Server, limit: int, query: dict[str, str]) -> None:
    whole = look(full, **query)["data"]
    found: list[Any] = []
    told = look(full, limit=limit, **query)
    while told["next"] is not None:
        assert len(told["data"]) == limit
        found += told["data"]
        told = look(full, limit=limit, after=told["next"], **query)
    found += told["data"]
    assert found == whole


@pytest.mark.parametrize(
    ("method", "query", "message"),
    [
        ("GET", "limit=0", "limit: is '0', expected a whole number from 1 to 1000000"),
        ("GET", "limit=ten", "limit: is 'ten', expected a whole number from 1 to 1000000"),
        ("GET", "after=17", "after: is '17', expected what an answer has as its next"),
        ("GET", "after=1-2&after=1-2", "after: given more than once"),
        ("DELETE", "limit=1", "limit: no such filter, expected prompt, tag, "),
    ],
)
def test_a_part_that_cannot_be_is_a_400_of_one_line(
    full: Server, method: str, query: str, message: str
) -> None:
    got = ask(full.address, request(method, f"/lab/journal?{query}"))
    assert (got.status, got.error["param"]) == (400, message.partition(":")[0])
    assert got.error["message"].startswith(message)
    assert "\n" not in got.error["message"]


@pytest.mark.parametrize("path", ["/lab/journal", "/lab/verdict?all=true"])
def test_who_reads_slowly_gets_all_of_it_and_a_head_is_no_more(full: Server, path: str) -> None:
    with Connection(full.address, receive_buffer=8192) as slow, Connection(full.address) as keeps:
        slow.send(request("GET", path))
        keeps.send(request("HEAD", path) + request("GET", "/health"))
        got = keeps.until(b'{"status":"ok"}')
        assert got.raw.count(b"HTTP/1.1 200 OK") == 2
        assert slow.response().json["data"] == ask(full.address, request("GET", path)).json["data"]


def test_an_http_1_0_client_gets_all_of_it_too(full: Server) -> None:
    with Connection(full.address) as connection:
        connection.send(b"GET /lab/journal HTTP/1.0\r\n\r\n")
        got = connection.until_end()
    assert b"transfer-encoding" not in got.head.lower()
    assert len(got.json["data"]) == ROWS


@pytest.mark.parametrize(("path", "fits"), [("/lab/journal", False), ("/lab/verdict?all=true", True)])
def test_readers_that_take_nothing_cost_little_and_are_reset(full: Server, path: str, *, fits: bool) -> None:
    """What `fits` in the kernel's buffers is not held by the server, and is not waited for."""
    size = len(ask(full.address, request("GET", path)).raw)
    assert size > 1_000_000
    before = full.rss()
    mark = full.log.mark()
    with ExitStack() as stack:
        readers = [stack.enter_context(Connection(full.address, receive_buffer=4096)) for _ in range(READERS)]
        for reader in readers:
            reader.send(request("GET", path))
        for reader in readers:
            reader.until(b"HTTP/1.1 ")
        assert full.rss() - before < 0.5 * READERS * size
        assert ask(full.address, request("GET", "/health")).status == 200
        assert look(full, limit=1)["data"]
        if not fits:
            full.log.wait_for("read nothing for 2.0 s of a response: reset", since=mark)
            assert eventually(full.has_let_go, timeout=20)
            assert all(reader.until_end().end != OPEN for reader in readers)
    assert eventually(lambda: full.rss() - before < 0.3 * READERS * size)


def test_a_shutdown_waits_for_no_reader_that_takes_nothing(one_config: Path, tmp_path: Path) -> None:
    fill(tmp_path / "j")
    more = ("--enable-directives", "--journal", str(tmp_path / "j"))
    server = start(one_config, *more, how=CONSOLE)
    with Connection(server.address, receive_buffer=4096) as reader:
        reader.send(request("GET", "/lab/journal"))
        reader.until(b"HTTP/1.1 200")
        server.process.terminate()
        assert server.process.wait(20) == 0
    server.stop()


def test_an_answer_that_cannot_be_finished_is_broken_off(one_config: Path, tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path)
    server = start(one_config, "--enable-directives", "--journal", str(path), how=CONSOLE)
    try:
        with Connection(server.address, receive_buffer=4096) as reader:
            reader.send(request("GET", "/lab/journal"))
            reader.until(b"HTTP/1.1 200")
            with sqlite3.connect(path) as other:
                other.execute("DROP TABLE dropped")
            other.close()
            got = reader.until_end(timeout=20)
        assert got.end != OPEN
        assert not got.raw.endswith(b"0\r\n\r\n")
        server.log.wait_for("broken off, journal .*no such table")
    finally:
        server.stop()
