"""Several processes on one port: spread, replaced when they die, ended with their parent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.journal.filters import EVERYTHING
from inference_lab.storage.database import read_file
from tests.reference_model.contract import CHAT
from tests.support.processes import has_ended, workers_of
from tests.support.prometheus import samples_of
from tests.support.rawclient import OPEN, Connection, ask, fault_request, request
from tests.support.server import BIN, CONSOLE, TWISTD, Server, eventually, options, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def pair(one_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Two workers under the console script; what they share is in `tmp_path`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start(one_config, "--enable-directives", "--workers", "2", how=CONSOLE)
    yield server
    server.stop()


@pytest.mark.parametrize("how", [TWISTD, CONSOLE], ids=["twistd", "console script"])
def test_workers_answer_alike_and_end_with_the_service(one_config: Path, how: Sequence[str]) -> None:
    server = start(one_config, "--enable-directives", "--workers", "2", how=how)
    try:
        workers = workers_of(server.pid)
        assert len(workers) == 2
        quiet = {pid: descriptors(pid) for pid in workers}
        data = fault_request(CHAT, "stall;delay_ms=0")
        with ExitStack() as stack:
            connections = [stack.enter_context(Connection(server.address)) for _ in range(32)]
            bodies = set()
            for connection in connections:
                connection.send(data)
                connection.until(b"0002")
                bodies.add(bytes(connection.result(OPEN).chunked.body))
            assert len(bodies) == 1, "the same request, the same bytes, whichever worker answers"
            assert all(descriptors(pid) > quiet[pid] for pid in workers), "the kernel spreads connections"
        assert eventually(lambda: "client left" in "\n".join(server.log.since()))
        server.process.terminate()
        server.process.wait(10)
        assert all(has_ended(pid) for pid in workers)
    finally:
        server.stop()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 puts the directory in front whatever it is told"
)
def test_a_worker_takes_its_modules_from_where_its_parent_does(
    one_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets.py").write_text("raise RuntimeError('somebody else is meant')\n")
    monkeypatch.chdir(tmp_path)
    server = start(one_config, "--workers", "2", how=CONSOLE)
    try:
        assert ask(server.address, request("GET", "/health")).status == 200
    finally:
        server.stop()


def test_a_killed_worker_loses_its_own_streams_only_and_nobody_who_arrives_meanwhile(pair: Server) -> None:
    victim, other = sorted(workers_of(pair.pid))
    with ExitStack() as stack:
        live = [stack.enter_context(Connection(pair.address)) for _ in range(24)]
        for connection in live:
            connection.send(fault_request(CHAT, "stall;delay_ms=0"))
            connection.until(b"0002")
        mark = pair.log.mark()
        os.kill(victim, signal.SIGKILL)
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: ask(pair.address, request("GET", "/health")), range(200)))
        assert [answer.status for answer in answers] == [200] * 200
        pair.log.wait_for(r"worker \d ended with signal 9: starting another", since=mark)
        ends = [connection.until_end(timeout=0.05).end for connection in live]
    assert OPEN in ends, "the streams of the other worker go on"
    assert set(ends) != {OPEN}, "those of the dead one are gone"
    workers = workers_of(pair.pid)
    assert len(workers) == 2
    assert other in workers
    assert victim not in workers


def test_a_worker_that_is_stopped_keeps_no_other_from_ending_well(one_config: Path, tmp_path: Path) -> None:
    journal = str(tmp_path / "journal")
    server = start(one_config, "--enable-directives", "--workers", "2", "--journal", journal, how=CONSOLE)
    try:
        stopped = min(workers_of(server.pid))
        with ExitStack() as stack:
            for _ in range(24):
                connection = stack.enter_context(Connection(server.address))
                connection.send(fault_request(CHAT, "stall;delay_ms=0"))
                connection.until(b"0002")
            assert eventually(lambda: len(read_file(journal, EVERYTHING)) == 24)
            os.kill(stopped, signal.SIGSTOP)
            server.process.terminate()
            assert server.process.wait(20) == 0
    finally:
        server.stop()
    assert len([line for line in server.log.since() if "does not end: killed" in line]) == 1
    endings = Counter(json.loads(row)["ending"] for row in read_file(journal, EVERYTHING))
    assert endings.keys() == {"shutdown", "server_lost"}


def test_a_worker_that_does_not_answer_is_told_of_and_that_it_does_again(pair: Server) -> None:
    stopped = min(workers_of(pair.pid))
    os.kill(stopped, signal.SIGSTOP)
    try:
        pair.log.wait_for(rf"\(process {stopped}\) has not answered for 5 s")
    finally:
        os.kill(stopped, signal.SIGCONT)
    pair.log.wait_for(rf"\(process {stopped}\) answers again")
    assert stopped in workers_of(pair.pid)


def test_attempts_are_those_of_the_whole_service_in_a_private_folder_that_goes_with_it(
    pair: Server, tmp_path: Path
) -> None:
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700

    def met(test: str) -> Counter[int]:
        data = fault_request(CHAT, "ok;status=429;times=7", **{"x-test-id": test})
        with ThreadPoolExecutor(8) as pool:
            return Counter(answer.status for answer in pool.map(lambda _: ask(pair.address, data), range(24)))

    assert met("a") == met("b") == {429: 7, 200: 17}
    for worker in workers_of(pair.pid):
        os.kill(worker, signal.SIGKILL)
    assert ask(pair.address, request("GET", "/health")).status == 200
    assert met("a") == {200: 24}, "a worker's death forgets nothing"
    assert ask(pair.address, request("DELETE", "/lab/attempts?test=a")).json == {"deleted": 1}
    assert met("a") == {429: 7, 200: 17}
    for file in folder.glob("attempts*"):
        file.unlink()
    mark = pair.log.mark()
    for worker in workers_of(pair.pid):
        os.kill(worker, signal.SIGKILL)
    for index in range(2):
        pair.log.wait_for(rf"worker {index} ended with signal 9", since=mark)
    assert met("a") == {503: 24}, "better none than each its own"
    assert pair.stop() == 0
    assert not list(tmp_path.iterdir())


def test_metrics_are_those_of_all_workers_the_dead_ones_counts_included(pair: Server) -> None:
    assert samples_of(pair)["inference_lab_live_streams", ()] == 0
    with ExitStack() as stack:
        for _ in range(12):
            connection = stack.enter_context(Connection(pair.address))
            connection.send(fault_request(CHAT, "stall;after_chunks=2;delay_ms=0"))
            connection.until(b"0001")
        # Each worker tells the others once a second.
        assert eventually(lambda: samples_of(pair)["inference_lab_stalled_streams", ()] == 12)
        mark = pair.log.mark()
        victim = min(workers_of(pair.pid))
        os.kill(victim, signal.SIGKILL)
        pair.log.wait_for(r"worker \d ended with signal 9", since=mark)
        left = samples_of(pair)["inference_lab_stalled_streams", ()]
        assert left < 12, "what a dead worker had open is gone"
    labels = {"route": CHAT, "model_name": "lab", "trigger": "header", "ending": "client_left"}
    key = ("inference_lab_requests_total", tuple(sorted(labels.items())))
    assert eventually(lambda: samples_of(pair).get(key) == left)
    frames = ("vllm:inter_token_latency_seconds_count", (("model_name", "lab"),))
    assert samples_of(pair)[frames] == 12, "also those of the dead worker, as it told them last"


def test_three_deaths_of_one_worker_end_the_service_with_status_1(one_config: Path) -> None:
    server = start(one_config, "--workers", "2", how=CONSOLE)
    try:
        first = min(workers_of(server.pid))
        others = workers_of(server.pid) - {first}
        for _ in range(3):
            (worker,) = workers_of(server.pid) - others
            os.kill(worker, signal.SIGKILL)
            assert eventually(
                lambda dead=worker: (
                    server.process.poll() is not None  # type: ignore[misc]
                    or (len(workers_of(server.pid)) == 2 and dead not in workers_of(server.pid))
                )
            )
        assert server.process.wait(10) == 1
    finally:
        server.stop()
    server.log.wait_for(r"worker \d ended 3 times within 10 s, at last with signal 9: giving up")


def test_workers_that_die_together_end_the_service_without_a_traceback(one_config: Path) -> None:
    server = start(one_config, "--workers", "2", how=CONSOLE)
    try:
        for _ in range(3):
            workers = workers_of(server.pid)
            os.kill(server.pid, signal.SIGSTOP)  # so that it meets all the deaths in one turn
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            assert eventually(lambda dead=workers: all(map(has_ended, dead)))  # type: ignore[misc]
            os.kill(server.pid, signal.SIGCONT)
            assert eventually(
                lambda dead=workers: (
                    server.process.poll() is not None  # type: ignore[misc]
                    or (len(workers_of(server.pid)) == 2 and not dead & workers_of(server.pid))
                )
            )
        assert server.process.wait(10) == 1
    finally:
        server.stop()
    server.log.wait_for(r"worker \d ended 3 times within 10 s, at last with signal 9: giving up")
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_workers_do_not_outlive_their_parent_and_tidy_up_after_it(pair: Server, tmp_path: Path) -> None:
    workers = workers_of(pair.pid)
    with Connection(pair.address) as connection:
        connection.send(fault_request(CHAT, "stall"))
        connection.until(b"0000")
        pair.process.kill()
        assert eventually(lambda: all(has_ended(pid) for pid in workers))
    assert not list(tmp_path.iterdir())


def test_the_daemon_has_workers_too(one_config: Path, tmp_path: Path) -> None:
    pidfile, logfile = tmp_path / "twistd.pid", tmp_path / "twistd.log"
    command = [str(BIN / "twistd"), f"--pidfile={pidfile}", f"--logfile={logfile}", "inference-lab"]
    started = subprocess.run(
        [*command, *options(one_config, "--workers", "2")],
        cwd=tmp_path,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert started.returncode == 0
    pid = int(pidfile.read_text())
    try:
        assert eventually(lambda: "ready: " in logfile.read_text(), 20)
        workers = workers_of(pid)
        found = re.search(r"ready: http://127\.0\.0\.1:(\d+)", logfile.read_text())
        assert found
        assert ask(("127.0.0.1", int(found[1])), request("GET", "/health")).status == 200
        assert eventually(lambda: re.search(r"worker \d: .*/health 200", logfile.read_text()) is not None)
    finally:
        os.kill(pid, signal.SIGTERM)
    assert eventually(lambda: has_ended(pid))
    assert all(has_ended(worker) for worker in workers)


@pytest.mark.parametrize("how", [TWISTD, CONSOLE], ids=["twistd", "console script"])
def test_a_port_that_is_taken_is_not_shared_with_a_stranger(one_config: Path, how: Sequence[str]) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*how, "--config", str(one_config), "--workers", "2", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr == f"inference-lab: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is a Linux thing")
def test_systemd_hears_of_the_service_once_and_from_the_parent_alone(
    one_config: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.settimeout(20)
        ear.bind(str(tmp_path / "notify"))
        command = [*CONSOLE, *options(one_config, "--workers", "2")]
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as child:
            try:
                assert ear.recv(1000) == b"READY=1"
                child.send_signal(signal.SIGTERM)
                assert ear.recv(1000) == b"STOPPING=1"
                assert child.wait(20) == 0
            finally:
                child.kill()
        ear.setblocking(False)
        with pytest.raises(BlockingIOError):
            ear.recv(1000)
