"""A journal file that several servers want, or that is harmed under the server that has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from inference_lab.core.journal.filters import EVERYTHING
from inference_lab.storage.database import prepare, read_file
from tests.reference_model.contract import CHAT
from tests.support.processes import has_ended, workers_of
from tests.support.rawclient import Connection, ask, exchange, fault_request, request
from tests.support.server import BIN, CONSOLE, Server, eventually, options, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STALL = "stall;after_chunks=3;delay_ms=0"


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in read_file(str(file), EVERYTHING)]


def asked(server: Server, **query: Any) -> list[dict[str, Any]]:
    got = ask(server.address, request("GET", f"/lab/journal?{urlencode(query)}"))
    assert got.status == 200, got.raw
    found: list[dict[str, Any]] = got.json["data"]
    return found


def refused(config: Path, file: Path, *more: str) -> str:
    """What a second server says, in its one line."""
    arguments = options(config, "--journal", str(file), *more)
    done = subprocess.run([*CONSOLE, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    (line,) = (done.stderr + done.stdout).splitlines()
    return line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(params=["1", "2"], ids=["one process", "workers"])
def owner(request: pytest.FixtureRequest, one_config: Path, file: Path) -> Iterator[Server]:
    more = ("--enable-directives", "--workers", request.param, "--journal", str(file))
    server = start(one_config, *more, how=CONSOLE)
    yield server
    server.stop()


def test_a_second_server_is_refused_and_the_first_ones_streams_stay_open(
    one_config: Path, file: Path, owner: Server
) -> None:
    with Connection(owner.address) as connection:
        connection.send(fault_request(CHAT, STALL))
        connection.until(b"0002")
        assert eventually(lambda: [row["state"] for row in rows(file)] == ["open"])
        line = refused(one_config, file)
        assert f"--journal {file}: in use by process {owner.pid}; end that server first" in line
        for command in ("journal", "verdict"):
            more = ["--all"] if command == "verdict" else []
            given = [str(BIN / "inference-lab"), command, "--file", str(file), *more]
            subprocess.run(given, capture_output=True, timeout=30, check=False)
        assert [row["state"] for row in asked(owner)] == ["open"]
        # Whatever is left of a service that is killed has the file until it is gone.
        children = workers_of(owner.pid)
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait(10)
        assert eventually(lambda: all(has_ended(pid) for pid in children))
    start(one_config, "--journal", str(file), how=CONSOLE).stop()
    (row,) = rows(file)
    assert row["ending"] in {"server_lost", "shutdown"}  # workers that are left without their parent end well


def _remove(file: Path) -> None:
    for one in file.parent.glob("journal*"):
        one.unlink()


def _replace(file: Path) -> None:
    other = file.with_name("other")
    prepare(str(other))
    other.replace(file)


def _write_over(file: Path) -> None:
    file.write_bytes(os.urandom(40_000))


@pytest.mark.parametrize(
    ("harm", "said"),
    [(_remove, "was removed"), (_replace, "was replaced"), (_write_over, "was written over")],
)
def test_a_file_that_is_harmed_is_told_of_and_live_streams_end_in_a_new_one(
    owner: Server, file: Path, harm: Callable[[Path], None], said: str
) -> None:
    with Connection(owner.address) as connection:
        connection.send(fault_request(CHAT, STALL, **{"x-request-id": "live"}))
        connection.until(b"0002")
        exchange(owner.address, fault_request(CHAT, "reset;delay_ms=0", **{"x-request-id": "before"}))
        assert eventually(lambda: {row["state"] for row in rows(file)} == {"open", "ended"})
        harm(file)
        for number in range(24):  # some for each process
            exchange(
                owner.address, fault_request(CHAT, "reset;delay_ms=0", **{"x-request-id": f"after-{number}"})
            )
        owner.log.wait_for(said)
        assert eventually(lambda: [row["state"] for row in named(file, "live")] == ["open"])
    assert eventually(lambda: [row["ending"] for row in named(file, "live")] == ["client_left"])
    assert eventually(lambda: len([row for row in rows(file) if row["request_id"].startswith("after")]) == 24)
    assert named(file, "before") == []
    assert len(asked(owner)) == 25
    owner.stop()
    told = [line for line in owner.log.since() if "under the server" in line]
    assert 1 <= len(told) <= 2
    assert all("a new file is begun" in line for line in told)


def named(file: Path, request_id: str) -> list[dict[str, Any]]:
    return [row for row in rows(file) if row["request_id"] == request_id]
