"""The journal over real sockets: what a client did, as the server saw it, and a journal that survives its server."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from inference_lab.testing.child import Lines
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.processes import workers_of
from tests.support.rawclient import OPEN, RST, Connection, ask, exchange, fault_request, payload, request
from tests.support.server import BIN, CONSOLE, Server, eventually, files_of, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STALL = "stall;after_chunks=3;delay_ms=0"
FLOOD = "stall;after_chunks=1000000;delay_ms=0"


def journal(server: Server, **query: Any) -> list[dict[str, Any]]:
    got = ask(server.address, request("GET", f"/lab/journal?{urlencode(query)}"))
    assert got.status == 200, got.raw
    assert got.json["lost_rows"] == 0
    rows: list[dict[str, Any]] = got.json["data"]
    return rows


def ended(server: Server, request_id: str) -> dict[str, Any]:
    (row,) = journal(server, request_id=request_id, wait=20)
    assert row["state"] == "ended"
    return row


def acknowledge(connection: Connection) -> None:
    """Have the client's kernel acknowledge what it has got: it may put that off for 40 ms, and a reset ends it."""
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def wire_bytes(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["bytes_written"], row["bytes_acknowledged"], row["bytes_unsent"]


# -- the three clients


def test_a_client_that_has_read_everything_and_leaves_is_a_fin_with_equal_counts(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": "leaves"}))
        got = connection.until(b"0002")
    row = ended(server, "leaves")
    assert (row["ending"], row["peer"], row["ending_asked"]) == ("client_left", "fin", "hang")
    assert wire_bytes(row) == (len(got.raw), len(got.raw), 0)
    assert row["words"] == row["reached"] == 3
    assert row["peer_s"] > 0


def test_a_client_that_aborts_is_a_reset_that_has_acknowledged_what_it_counted(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": "aborts"}))
        got = connection.until(b"0002")
        acknowledge(connection)
        connection.reset()
    row = ended(server, "aborts")
    assert (row["ending"], row["peer"]) == ("client_left", "rst")
    assert row["bytes_acknowledged"] >= len(got.raw)


@pytest.mark.parametrize("attempt", range(5))  # a frame may be on its way out when the reset comes in
def test_a_client_that_leaves_with_bytes_unread_is_a_reset_too(server: Server, attempt: int) -> None:
    name = f"unread-{attempt}"
    with Connection(server.address, receive_buffer=8192) as connection:
        connection.send(fault_request(CHAT, FLOOD, **{"x-request-id": name}))
        connection.until(b"0000")
        counted = len(connection.received)
        assert eventually(lambda: row_of(server, name)["state"] == "open")
    row = ended(server, name)
    assert (row["ending"], row["peer"]) == ("client_left", "rst")
    assert row["bytes_acknowledged"] >= counted
    assert row["bytes_unsent"] > 0
    assert row["bytes_written"] == row["bytes_acknowledged"] + row["bytes_unsent"]


def row_of(server: Server, request_id: str) -> dict[str, Any]:
    (row,) = journal(server, request_id=request_id)
    return row


def test_a_client_that_never_reads_is_a_reader_timeout_and_did_nothing(impatient: Server) -> None:
    with Connection(impatient.address, receive_buffer=8192) as connection:
        connection.send(fault_request(CHAT, FLOOD, **{"x-request-id": "never"}))
        row = ended(impatient, "never")
    assert (row["ending"], row["peer"], row["peer_s"]) == ("reader_timeout", "none", None)
    assert row["bytes_unsent"] > 0


@pytest.mark.parametrize("how", ["close_notify", "reset"])
def test_under_tls_the_connection_below_tells_them_apart(tls_server: Server, how: str) -> None:
    with Connection(tls_server.address, tls=True) as connection:
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": how}))
        connection.until(b"0002")
        acknowledge(connection)
        if how == "reset":
            connection.reset()
    with Connection(tls_server.address, tls=True) as connection:
        connection.send(request("GET", f"/lab/journal?request_id={how}&wait=20"))
        (row,) = connection.response().json["data"]
    assert (row["ending"], row["peer"]) == ("client_left", "fin" if how == "close_notify" else "rst")
    assert row["bytes_acknowledged"] == row["bytes_written"]


# -- endings


@pytest.mark.parametrize(
    ("directive", "ending"),
    [
        ("reset;delay_ms=0", "rst"),
        ("cut_between_frames;delay_ms=0", "fin"),
        ("ok;after_chunks=2;close=torn_chunk", "torn_chunk"),
        ("no_done;delay_ms=0", "terminator"),
        ("overloaded_429", "terminator"),
    ],
)
def test_an_ending_of_ours_is_the_one_asked_for_and_the_client_did_nothing(
    server: Server, directive: str, ending: str
) -> None:
    name = f"ending-{directive.partition(';')[0]}"
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, directive, **{"x-request-id": name}))
        got = connection.response() if ending == "terminator" else connection.until_end()
        row = ended(server, name)
    assert (row["ending_asked"], row["ending"], row["peer"]) == (ending, ending, "none")
    assert wire_bytes(row) == (len(got.raw), len(got.raw), 0)


def test_what_comes_on_a_stale_connection_carries_out_its_ending(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, "stale_connection;delay_ms=0", **{"x-request-id": "stale"}))
        connection.response()
        connection.send(b"G")
        assert connection.until_end().end == RST
    row = ended(server, "stale")
    assert (row["ending_asked"], row["ending"], row["peer"]) == ("stale", "stale", "none")


def test_a_whole_answer_that_nobody_waits_for_is_a_client_that_left(server: Server) -> None:
    body = payload(CHAT, model="slow", stream=False)
    with Connection(server.address) as connection:
        connection.send(request("POST", CHAT, body, headers={"x-request-id": "impatient"}))
        assert eventually(lambda: bool(journal(server, request_id="impatient")))
        assert row_of(server, "impatient")["state"] == "open"
    row = ended(server, "impatient")
    assert (row["ending"], row["peer"], row["status"], row["words"]) == ("client_left", "fin", None, 0)
    server.log.wait_for("POST /v1/chat/completions ended: client left")


def test_each_of_pipelined_requests_has_the_bytes_of_its_own_response_and_none_is_lost(
    server: Server,
) -> None:
    named = {"x-request-id": "pipelined"}
    stream = fault_request(CHAT, "no_done;after_chunks=2;delay_ms=1", **named)
    look = request("GET", "/v1/models", headers=named)
    sizes = []
    for data in (stream, look):
        with Connection(server.address) as connection:
            connection.send(data)
            sizes.append(len(connection.response().raw))
    with Connection(server.address) as connection:
        connection.send(b"".join([stream, look, stream, look, look]))
        rows = journal(server, request_id="pipelined", wait=20, count=7)[2:]
    told = [(sizes[place], sizes[place], 0) for place in (0, 1, 0, 1, 1)]
    assert [wire_bytes(row) for row in rows] == told


# -- asking


def test_a_wait_is_answered_by_the_rows_it_waits_for(server: Server) -> None:
    with Connection(server.address) as asker, Connection(server.address) as streaming:
        streaming.send(fault_request(CHAT, STALL, **{"x-request-id": "awaited"}))
        streaming.until(b"0002")
        asker.send(request("GET", "/lab/journal?request_id=awaited&wait=60&count=2"))
        streaming.reset()
        second = fault_request(CHAT, "reset", **{"x-request-id": "awaited"})
        assert exchange(server.address, second).end == RST
        rows = asker.response().json["data"]
    assert [row["ending"] for row in rows] == ["client_left", "rst"]


def test_a_wait_that_nothing_ends_is_answered_when_it_is_over(server: Server) -> None:
    assert journal(server, request_id="nobody", wait="0.1") == []


def test_a_client_that_leaves_its_wait_leaves_nothing_behind(server: Server) -> None:
    with Connection(server.address) as asker:
        asker.send(request("GET", "/lab/journal?request_id=nobody&wait=60"))
    assert server.has_let_go()


def test_rows_are_found_by_test_trigger_and_time_and_can_be_deleted(server: Server) -> None:
    for directive in ("reset;delay_ms=0", "cut_between_frames;delay_ms=0"):
        exchange(server.address, fault_request(CHAT, directive, **{"x-test-id": "deleted.1"}))
    rows = journal(server, test="deleted.1", trigger="header")
    assert [row["ending"] for row in rows] == ["rst", "fin"]
    assert journal(server, test="deleted.1", since=rows[1]["time"]) == rows[1:]
    assert journal(server, test="deleted.1", trigger="engine") == []
    got = ask(server.address, request("DELETE", "/lab/journal?test=deleted.1&ending=rst"))
    assert got.json == {"deleted": 1}
    assert journal(server, test="deleted.1") == rows[1:]


@pytest.mark.parametrize(
    ("method", "query", "param"),
    [
        ("GET", "tagg=qu", "tagg"),
        ("GET", "since=now", "since"),
        ("GET", "wait=61", "wait"),
        ("GET", "wait=nan", "wait"),
        ("GET", "count=1", "count"),
        ("GET", "wait=1&count=1.5", "count"),
        ("GET", "tag=%ff", None),
        ("GET", "test", "test"),
        ("GET", "tag=a&tag=b", "tag"),
        ("DELETE", "tag=qu&test", "test"),
        ("DELETE", "", "all"),
        ("DELETE", "all=1", "all"),
        ("DELETE", "all=true&tag=qu", "all"),
        ("DELETE", "wait=1&tag=qu", "wait"),
    ],
)
def test_a_query_that_is_none_is_a_400_that_names_it(
    server: Server, method: str, query: str, param: str | None
) -> None:
    got = ask(server.address, request(method, f"/lab/journal?{query}"))
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", param)


def test_without_directives_there_is_no_journal_to_look_at(no_directives: Server) -> None:
    for method in ("GET", "DELETE"):
        got = ask(no_directives.address, request(method, "/lab/journal?all=true"))
        assert (got.status, got.error["code"]) == (404, "not_found")


def test_a_conversation_is_judged_where_it_was_recorded(server: Server) -> None:
    fault = {"x-inference-lab-fault": "cut_between_frames;after_chunks=2;delay_ms=0", "x-test-id": "judged"}
    first = exchange(server.address, request("POST", COMPLETIONS, payload(COMPLETIONS), headers=fault))
    word = first.chunked.chunks[0].decode().partition('"text":"')[2].partition('"')[0]
    said = " ".join([word, *(f"{word[:2]}{index:04d}" for index in (1, 2))])
    body = payload(COMPLETIONS, prompt="hello" + said, seed=1)
    exchange(server.address, request("POST", COMPLETIONS, body, headers=fault))
    got = ask(server.address, request("GET", "/lab/verdict?test=judged"))
    (judged,) = got.json["data"]
    assert [finding["kind"] for finding in judged["findings"]] == ["gap", "changed"]
    command = [str(BIN / "inference-lab"), "verdict", "--url", server.url, "--prompt", judged["prompt"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert "gap: it goes on behind 3 words, and 2 had been delivered" in done.stdout
    for key, reason in (("0" * 16, "no such conversation"), ("none", "expected 16 hex digits in lower case")):
        done = subprocess.run([*command[:-1], key], capture_output=True, text=True, timeout=20, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert reason in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("verdict", "--prompt", "x"), "verdict: --prompt: is 'x', expected 16 hex digits in lower case"),
        (("verdict", "--test", "a/b"), "verdict: --test: is 'a/b', expected 1 to 64 letters"),
        (("journal", "--tag", "QU"), "journal: --tag: is 'QU', expected two lower-case letters"),
        (("journal", "--url", "localhost:8080"), "journal: --url localhost:8080: expected http://HOST:PORT"),
    ],
)
def test_what_a_command_cannot_ask_for_is_said_in_a_line(given: tuple[str, ...], said: str) -> None:
    command = [str(BIN / "inference-lab"), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"inference-lab {said}")


@pytest.mark.parametrize("query", ["", "prompt=1&test=2", "test=1&tag=qu", "prompt=1", "test=a%2Fb"])
def test_a_verdict_is_of_one_key_or_one_test(server: Server, query: str) -> None:
    got = ask(server.address, request("GET", f"/lab/verdict?{query}"))
    assert (got.status, got.error["code"]) == (400, "invalid_request")


# -- a file


class Filed:
    """A server that writes its journal to a file."""

    def __init__(self, config: Path, path: Path) -> None:
        self.path = path
        self._config = config
        self.server = self.begin()

    def begin(self) -> Server:
        more = ("--enable-directives", "--journal", str(self.path), "--log-format", "json")
        self.server = start(self._config, *more, how=CONSOLE)
        return self.server

    def rows(self) -> list[dict[str, Any]]:
        """What the command shows of the file."""
        command = [str(BIN / "inference-lab"), "journal", "--file", str(self.path), "--json"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return [json.loads(line) for line in shown.splitlines()]


@pytest.fixture
def filed(one_config: Path, tmp_path: Path) -> Iterator[Filed]:
    made = Filed(one_config, tmp_path / "journal.sqlite")
    yield made
    made.server.stop()


def test_a_killed_server_leaves_a_whole_file_and_its_successor_says_what_it_lost(filed: Filed) -> None:
    server = filed.server
    with Connection(server.address) as connection:
        exchange(server.address, fault_request(CHAT, "reset;delay_ms=0", **{"x-request-id": "whole"}))
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": "lost"}))
        connection.until(b"0002")
        assert [row["state"] for row in journal(server)] == ["ended", "open"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
    assert stat.S_IMODE(filed.path.stat().st_mode) == 0o600
    with sqlite3.connect(filed.path) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found.close()
    assert [(row["request_id"], row["state"]) for row in filed.rows()] == [
        ("whole", "ended"),
        ("lost", "open"),
    ]
    server.stop()
    filed.begin()
    assert [row["ending"] for row in filed.rows()] == ["rst", "server_lost"]


def test_who_follows_the_journal_sees_each_request_once_when_it_has_ended(filed: Filed) -> None:
    server = filed.server
    for source in (["--url", server.url], ["--file", str(filed.path)]):
        command = [str(BIN / "inference-lab"), "journal", *source, "--follow", "--ending", "client_left"]
        # A shell starts background jobs with SIGINT ignored, and so would be all that they start.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        finally:
            signal.signal(signal.SIGINT, before)
        assert follower.stdout is not None
        lines = Lines(follower.stdout)
        try:
            for attempt in range(2):
                with Connection(server.address) as connection:
                    connection.send(fault_request(CHAT, f"stall;after_chunks={attempt + 1};delay_ms=0"))
                    connection.until(b"0000")
                lines.wait_for(rf"stall;after_chunks={attempt + 1};.* client_left \(asked: hang\)")
        finally:
            follower.send_signal(signal.SIGINT)
            assert follower.wait(10) == 0
            lines.close()
        assert follower.stderr is not None
        assert follower.stderr.read() == b""
        follower.stderr.close()
        shown = [line.split("  ")[0].split(" ")[1] for line in lines.since()]
        assert len(shown) == len(set(shown)), "no row twice"


def test_a_locked_file_stops_nothing_and_the_log_says_so(filed: Filed) -> None:
    server = filed.server
    blocker = sqlite3.connect(filed.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    got = exchange(server.address, fault_request(CHAT, "reset;delay_ms=0", **{"x-request-id": "waits"}))
    assert got.end == RST
    answer = ask(server.address, request("GET", "/lab/journal"))
    assert (answer.status, answer.error["code"]) == (503, "journal_unavailable")
    server.log.wait_for("database is locked: its rows wait, the server serves on")
    assert ask(server.address, request("GET", "/health")).status == 200
    blocker.execute("ROLLBACK")
    blocker.close()
    server.log.wait_for("written again, 0 rows lost")
    assert ended(server, "waits")["ending"] == "rst"


def test_a_shutdown_ends_waits_and_rows_and_each_request_has_one_json_line(filed: Filed) -> None:
    server = filed.server
    with Connection(server.address) as asker, Connection(server.address) as streaming:
        streaming.send(fault_request(CHAT, STALL, **{"x-request-id": "shut"}))
        streaming.until(b"0002")
        asker.send(request("GET", "/lab/journal?request_id=shut&wait=60"))
        ask(server.address, request("GET", "/nowhere"))
        server.process.terminate()
        (seen,) = asker.response().json["data"]
        assert seen["ending"] in {None, "shutdown"}
        assert server.process.wait(10) == 0
    assert [row["ending"] for row in filed.rows()] == ["shutdown", "refused"]
    lines = [json.loads(line) for line in server.log.since()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    told = [line["row"] for line in lines if "row" in line]
    assert sorted(row["ending"] for row in told) == ["refused", "shutdown"]


def test_a_full_disk_stops_nothing_and_the_log_says_so(one_config: Path, tmp_path: Path) -> None:
    limited = ("bash", "-c", 'ulimit -f 64; exec "$@"', "-", *CONSOLE)  # no file over 64 KiB
    server = start(one_config, "--enable-directives", "--journal", str(tmp_path / "j"), how=limited)
    try:
        for _ in range(120):
            ask(server.address, request("GET", "/v1/models", headers={"user-agent": "x" * 1000}))
        server.log.wait_for("journal .*/j: .*: its rows wait, the server serves on")
        assert exchange(server.address, fault_request(CHAT, "reset;delay_ms=0")).end == RST
        assert ask(server.address, request("GET", "/lab/journal")).error["code"] == "journal_unavailable"
    finally:
        server.stop()
    server.log.wait_for(r"journal .*/j: \d+ rows lost at the end")
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--journal", "/nowhere/at/all"], "--journal /nowhere/at/all: No such file or directory"),
        (["--journal", "{config}"], "lab.toml: file is not a database"),
        (["--journal-rows", "0"], "--journal-rows 0: expected an integer from 1"),
        (["--journal-age-s", "0"], "--journal-age-s 0: expected a number from 1e-9"),
        (["--log-format", "xml"], "--log-format xml: expected text or json"),
    ],
)
def test_a_journal_that_cannot_be_is_one_line(one_config: Path, given: list[str], named: str) -> None:
    more = [word.format(config=one_config) for word in given]
    command = [*CONSOLE, "--config", str(one_config), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


# -- several processes


def test_workers_write_one_journal_that_goes_with_the_service(one_config: Path) -> None:
    server = start(one_config, "--enable-directives", "--workers", "2", how=CONSOLE)
    try:
        connections = [Connection(server.address) for _ in range(16)]
        for connection in connections:
            connection.send(fault_request(CHAT, STALL, **{"x-test-id": "many"}))
            connection.until(b"0002")
        assert eventually(lambda: len(journal(server, test="many")) == 16)
        victim = min(workers_of(server.pid))
        files = {path for path in files_of(victim) if "journal.sqlite" in str(path)}
        folder = next(iter(files)).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        mark = server.log.mark()
        subprocess.run(["kill", "-KILL", str(victim)], check=True)
        server.log.wait_for("starting another", since=mark)
        rows = journal(server, test="many")
        ends = [connection.until_end(timeout=0.05).end for connection in connections]
        assert 0 < ends.count(OPEN) < 16
        assert [row["state"] for row in rows].count("open") == ends.count(OPEN)
        assert {row["ending"] for row in rows} == {None, "server_lost"}
        for connection in connections:
            linger = struct.pack("ii", 1, 0)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sock.close()
        assert eventually(lambda: not [row for row in journal(server, test="many") if row["state"] == "open"])
    finally:
        server.stop()
    assert not folder.exists()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


# -- readers that take their time


@pytest.mark.parametrize("how", ["stays", "asks again", "is closed behind"])
def test_a_late_reader_that_takes_all_of_it_leaves_nothing_unsent(server: Server, how: str) -> None:
    test = f"late-{how.replace(' ', '-')}"
    big = "clean_eof;after_chunks=1;frame_bytes=3000000"
    headers = {"x-request-id": test, "x-test-id": test}
    if how == "is closed behind":
        headers["connection"] = "close"
    with Connection(server.address, receive_buffer=8192) as connection:
        connection.send(fault_request(CHAT, big, **headers))
        (early,) = journal(server, request_id=test, wait=20)
        assert (early["state"], early["bytes_unsent"] > 0) == ("ended", True)
        (unsure,) = ask(server.address, request("GET", f"/lab/verdict?test={test}")).json["data"]
        assert unsure["end"] == "dead"  # whatever was taken of it: it has no finish
        if how == "asks again":
            connection.send(request("GET", "/v1/models"))
        connection.until(b'"object":"list"' if how == "asks again" else b"\r\n0\r\n\r\n")
        assert eventually(lambda: row_of(server, test)["bytes_unsent"] == 0)
        exchange(server.address, fault_request(CHAT, "ok;delay_ms=0", **{"x-test-id": test}))
    assert eventually(lambda: len(journal(server, test=test)) == 2)
    (one,) = ask(server.address, request("GET", f"/lab/verdict?test={test}")).json["data"]
    assert [finding["kind"] for finding in one["findings"]] == ["restart"]


def test_a_stream_that_is_open_shows_what_it_has_sent_so_far(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": "so-far"}))
        connection.until(b"0002")
        row = row_of(server, "so-far")
        assert (row["state"], row["words"], row["content_frames"], row["frames"]) == ("open", 3, 3, 4)
        assert (row["ends_well"], row["finish"]) == (None, None)


def test_all_conversations_of_a_journal_are_judged_together(server: Server) -> None:
    for test in ("all-1", "all-2"):
        exchange(server.address, fault_request(CHAT, "reset;delay_ms=0", **{"x-test-id": test}))
    judged = ask(server.address, request("GET", "/lab/verdict?all=true")).json["data"]
    assert {"all-1", "all-2"} <= {one["test"] for one in judged}
    command = [str(BIN / "inference-lab"), "verdict", "--url", server.url, "--all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in {0, 2}, done.stderr  # the other tests of this server may have left findings
    for test in ("all-1", "all-2"):
        assert f"of test {test}: dead; legs 1; findings 0" in done.stdout
    for query in ("", "?all=false", "?all=true&test=all-1"):
        got = ask(server.address, request("GET", f"/lab/verdict{query}"))
        assert got.status == 400, got.raw


def test_what_a_killed_server_had_sent_is_not_known(filed: Filed) -> None:
    server = filed.server
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, "ok;delay_ms=300", **{"x-test-id": "lost"}))
        connection.until(b"0002")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
    server.stop()
    filed.begin()
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "dx0000 dx0001 dx0002"}]
    address = filed.server.address
    exchange(address, fault_request(CHAT, "ok", payload(CHAT, messages=said), **{"x-test-id": "lost"}))
    (lost, _) = journal(filed.server, test="lost", wait=10)
    assert (lost["ending"], lost["words"], lost["reached"], lost["ends_well"]) == (
        "server_lost",
        None,
        None,
        None,
    )
    (one,) = ask(address, request("GET", "/lab/verdict?test=lost")).json["data"]
    assert (one["end"], one["findings"], one["notes"]) == ("whole", [], [])
