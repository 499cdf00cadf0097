"""What a user, a peer or a file gets wrong is one line on stderr and a status, in every command: never a traceback."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from inference_lab import cli
from inference_lab.storage.database import Database, prepare
from tests.support.paths import ROOT
from tests.support.rows import row
from tests.support.server import BIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG: Final = str(ROOT / "configs" / "qwen3.5-4b.toml")
FORGED: Final = "\nwhole: findings 0\x1b[2K\x9b2K"
OK: Final = b"HTTP/1.1 200 OK\r\n"

# What answers where a server of ours is expected, or a server to record from.
PEERS: Final = {
    "nothing": b"",
    "an SSH server": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a forged line": FORGED.encode() + b"\r\n\r\n",
    "half an answer": OK + b'Content-Length: 100\r\n\r\n{"data":[',
    "broken chunks": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a header line of 100 KB": OK + b"x: " + b"a" * 100_000 + b"\r\n\r\n",
    "a status line of 100 KB": b"HTTP/1.1 200 " + b"a" * 100_000 + b"\r\n\r\n",
    "1,000 headers": OK + b"x: a\r\n" * 1000 + b"\r\n",
    "a status below 100": b"HTTP/1.1 099 x\r\n\r\n",
    "a status above 599": b"HTTP/1.1 999 x\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "a length beyond all memory": OK + b"Content-Length: 1000000000000000\r\n\r\n{}",
    "a length that is no size": OK + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "no JSON": OK + b"\r\n{]",
    "JSON too deep": OK + b'\r\n{"data":[{"body":' + b"[" * 100_000,
    "JSON of something else": OK + b'\r\n{"data":[{"time":1}]}',
    "bytes that are no text": OK + b'\r\n{"data":[{"time":"\xff"}]}',
    "a refusal": b"HTTP/1.1 500 a\x1b[2Kb\r\n\r\n",
    "a long refusal": b'HTTP/1.1 500 no\r\n\r\n{"error":{"message":"\\n\\u001b[2K' + b"a" * 5000 + b'"}}',
    "half a refusal": b'HTTP/1.1 500 no\r\nContent-Length: 100\r\n\r\n{"err',
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:x/\r\n\r\n",
}
# Those that are responses, if odd ones, and so are recorded.
RECORDED: Final = {
    *(name for name, answer in PEERS.items() if answer.startswith((OK, b"HTTP/1.1 500", b"HTTP/1.1 302"))),
} - {"a header line of 100 KB"}

URLS: Final = (
    "http://127.0.0.1:x",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:-1",
    "http://127.0.0.1:1/ a",
    "http://127.0.0.1:1/\0",
    f"http://127.0.0.1:1/{FORGED}",
    "http://127.0.0.1:1/é",
    "http://[::1",
    "http://",
    "http://a..b/",
    f"http://{'a' * 300}/",
    "ftp://127.0.0.1/",
    "\udcff",
)

# Files that are no file of ours: what they hold, None for what is there already.
PATHS: Final = ("/", "/dev/null", "/nowhere/at/all", "a\0b", "\udcff", "x" * 300)
CONTENTS: Final = {
    "empty": b"",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "an object": b"{}",
    "a word": b"word",
    "forged": b'[{"id":"\\n\\u001b[2K","prompt_tokens":-1}]',
    "a long number": b"9" * 5000,
}


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Run the program with arguments; what it says on stdout and on stderr."""

    def run(*arguments: str, status: int = 1) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["inference-lab", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr()
        assert stop.value.code == status, said.err
        return said.out, said.err

    return run


@pytest.fixture
def refused(run: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Run the program with arguments that it refuses; its one line."""

    def refused(*arguments: str, status: int = 1) -> str:
        out, line = run(*arguments, status=status)
        assert out == ""
        assert line.startswith("inference-lab")
        assert line.endswith("\n")
        assert line[:-1].isprintable(), line
        assert len(line) < 2000
        return line

    return refused


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of what answers each connection with the same bytes, and closes."""
    answer = PEERS[request.param]
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with suppress(OSError), connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("command", [("journal",), ("verdict", "--test", "t")], ids=["journal", "verdict"])
@pytest.mark.parametrize("peer", PEERS, indirect=True)
def test_a_peer_that_is_no_lab(refused: Callable[..., str], peer: str, command: tuple[str, ...]) -> None:
    assert f"{peer}/lab/journal" in refused(*command, "--url", peer)


@pytest.mark.parametrize("peer", sorted(PEERS.keys() - RECORDED), indirect=True)
def test_a_peer_that_cannot_be_recorded(refused: Callable[..., str], peer: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_text("{}")
    refused("record", peer, "--body", str(tmp_path / "body"), "-o", str(tmp_path / "o.toml"))
    assert not (tmp_path / "o.toml").exists()


@pytest.mark.parametrize("peer", sorted(RECORDED), indirect=True)
def test_an_odd_peer_that_is_recorded(run: Callable[..., tuple[str, str]], peer: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_text("{}")
    output = str(tmp_path / "o.toml")
    out, errors = run("record", peer, "--body", str(tmp_path / "body"), "-o", output, status=0)
    assert (errors, out.replace("\n", "").isprintable()) == ("", True)


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_is_none(refused: Callable[..., str], url: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_text("{}")
    refused("journal", "--url", url)
    refused("verdict", "--test", "t", "--url", url)
    refused("record", url, "--body", str(tmp_path / "body"), "-o", str(tmp_path / "o.toml"))


@pytest.mark.parametrize("path", [*PATHS, *CONTENTS])
def test_a_file_that_is_no_file_of_ours(refused: Callable[..., str], path: str, tmp_path: Path) -> None:
    if path in CONTENTS:
        (tmp_path / "file").write_bytes(CONTENTS[path])
        path = str(tmp_path / "file")
    refused("journal", "--file", path)
    refused("verdict", "--test", "t", "--file", path)
    refused("sim", "--config", path, "--trace", path)
    refused("sim", "--config", CONFIG, "--trace", path)
    refused("step", "--config", path, "--batch", path)
    refused("step", "--config", CONFIG, "--batch", path)
    refused("record", "http://127.0.0.1:1/", "--body", path, "-o", str(tmp_path / "o.toml"))
    refused("record", "http://127.0.0.1:1/", "--body", CONFIG, "-o", path)
    refused("record", "http://127.0.0.1:1/", "--body", CONFIG, "-o", f"{path}/o.toml")
    refused("serve", "--port", "0", "--config", path)
    refused("serve", "--port", "0", "--config", CONFIG, "--journal", f"{path}/nowhere/journal")


GOOD: Final = msgspec.json.encode(row(1.0, test="t", prompt="0" * 16, progress=0)).decode()


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., str]:
    """Makes a journal of one row; a document takes the place of what is written of it."""

    def make(document: str | bytes, **values: object) -> str:
        path = str(tmp_path / "journal")
        prepare(path)
        with closing(Database(path, 1)) as database:
            database.write({1: row(1.0, test="t", **values)}, most_rows=10, oldest=0)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE rows SET document = ?", (document,))
        return path

    return make


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "x" * 100,
        '{"id":0,"time":1.0}',
        b"\xff\xfe",
        '{"id":0,' + "[" * 100_000,
        GOOD.replace("1.0", '"1"'),
    ],
    ids=range(7),
)
def test_a_row_that_cannot_be_read(
    refused: Callable[..., str], journal: Callable[..., str], document: str | bytes
) -> None:
    path = journal(document, state="open")
    assert path in refused("journal", "--file", path)
    assert path in refused("verdict", "--file", path, "--test", "t")
    assert path in refused("serve", "--port", "0", "--config", CONFIG, "--journal", path)


@pytest.mark.parametrize("time", ["1e300", "-1e300", "1e12"])
def test_a_row_of_no_time(
    run: Callable[..., tuple[str, str]], journal: Callable[..., str], time: str
) -> None:
    out, _ = run("journal", "--file", journal(GOOD.replace('"time":1.0', f'"time":{time}')), status=0)
    assert float(out.split()[0]) == float(time)


def test_what_a_row_holds_cannot_be_taken_for_a_line(
    run: Callable[..., tuple[str, str]], journal: Callable[..., str]
) -> None:
    told: dict[str, Any] = dict.fromkeys(("path", "method", "fault", "tag", "ending", "error"), FORGED)
    forged = row(1.0, test="t", prompt="0" * 16, progress=0, trigger="header", **told)
    path = journal(msgspec.json.encode(forged).decode())
    for command, lines in ((("journal",), 1), (("journal", "--json"), 1), (("verdict", "--test", "t"), 2)):
        out, _ = run(*command, "--file", path, status=0)
        assert out.count("\n") == len(out.splitlines()) == lines
        assert out.replace("\n", "").isprintable()


def test_an_id_of_a_trace_cannot_be_taken_for_a_line(
    run: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text(json.dumps([{"id": FORGED, "prompt_tokens": 1, "output_tokens": 1}]))
    out, _ = run("sim", "--config", CONFIG, "--trace", str(tmp_path / "trace"), status=0)
    assert r"\nwhole: findings 0\x1b[2K\x9b2K" in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize("latency", ["ttft_ms = 1e308", "itl_ms = 1e308", "ttft_ms = -1"])
def test_a_latency_beyond_all_measure(refused: Callable[..., str], tmp_path: Path, latency: str) -> None:
    config = tmp_path / "lab.toml"
    config.write_text(f'model = "llama-3.1-8b-instruct"\n[latency]\n{latency}\n')
    assert latency.split(maxsplit=1)[0] in refused("serve", "--port", "0", "--config", str(config))


def test_a_speed_beyond_all_measure(refused: Callable[..., str]) -> None:
    assert "--speed" in refused("serve", "--port", "0", "--config", CONFIG, "--speed", "1e-300")


# Standard streams as a shell may set them up, and what the program then says.
REDIRECTED: Final = (
    ("faults >/dev/full", 1, "inference-lab faults: cannot write: No space left on device"),
    ("faults --json >/dev/full", 1, "inference-lab faults: cannot write: No space left on device"),
    ("faults --help >/dev/full", 1, "inference-lab: cannot write: No space left on device"),
    ("serve --help >/dev/full", 1, "inference-lab: cannot write: No space left on device"),
    ("--version >/dev/full", 1, "inference-lab: cannot write: No space left on device"),
    ("--help >&-", 1, "inference-lab: standard output is closed"),
    ("faults >&-", 1, "inference-lab: standard output is closed"),
    ("faults explode 2>&-", 1, ""),
    ("verify </dev/null >/dev/full", 74, "inference-lab verify: cannot write: No space left on device"),
    ("verify </dev/null >&-", 74, "inference-lab: standard output is closed"),
    ("verify </proc/self/mem", 74, "inference-lab verify: standard input cannot be read: Input/output error"),
    ("verify <&-", 74, "inference-lab verify: standard input cannot be read: it is closed"),
    ("verify </dev/null | true", 0, ""),
    ("faults | true", 0, ""),
    (
        "record http://127.0.0.1:1/ --body - -o o.toml <&-",
        1,
        "inference-lab record: --body -: cannot be read",
    ),
    (
        "sim --config $CONFIG --trace - <&-",
        1,
        "inference-lab sim: standard input: cannot be read: it is closed",
    ),
    (
        "sim --config $CONFIG --trace - </proc/self/mem",
        1,
        "inference-lab sim: standard input: cannot be read: Input/output error",
    ),
    ("step --config $CONFIG --batch $BATCH >/dev/full", 1, "inference-lab step: cannot write: No space left"),
    ("journal --file $JOURNAL >/dev/full", 1, "inference-lab journal: cannot write: No space left on device"),
    ("verdict --file $JOURNAL --test t >/dev/full", 1, "inference-lab verdict: cannot write: No space left"),
)


@pytest.mark.parametrize(("command", "status", "line"), REDIRECTED, ids=[row[0] for row in REDIRECTED])
def test_standard_streams_that_do_not_work(
    journal: Callable[..., str], tmp_path: Path, command: str, status: int, line: str
) -> None:
    (tmp_path / "batch").write_text('[{"context_tokens":1,"new_tokens":1,"phase":"decode"}]')
    names = {"CONFIG": CONFIG, "BATCH": str(tmp_path / "batch"), "JOURNAL": journal(GOOD)}
    done = subprocess.run(
        ["sh", "-c", f"{BIN / 'inference-lab'} {command}"],
        env={**os.environ, **names, "PYTHONUNBUFFERED": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == bool(line)


@pytest.mark.parametrize("command", [("journal",), ("journal", "--json")])
def test_a_terminal_that_knows_ascii_only(journal: Callable[..., str], command: tuple[str, ...]) -> None:
    path = journal(msgspec.json.encode(row(1.0, path="/é", headers={"user-agent": "é\u2028"})).decode())
    done = subprocess.run(
        [str(BIN / "inference-lab"), *command, "--file", path],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"/\u00e9" in done.stdout or rb"/\xe9" in done.stdout
    if "--json" in command:
        assert json.loads(done.stdout)["headers"] == {"user-agent": "é\u2028"}
