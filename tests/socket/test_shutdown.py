"""SIGTERM ends at once and says what it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT
from tests.support.rawclient import FIN, RST, Connection, ask, fault_request, payload, request
from tests.support.server import BIN, CONSOLE, TWISTD, eventually, start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STREAMS = {
    "stalls": (fault_request(CHAT, "stall;delay_ms=0"), b"0002"),
    "waits": (fault_request(CHAT, "no_done;delay_ms=60000"), b"assistant"),
    "engine": (request("POST", CHAT, payload(CHAT, model="slow")), b"0000"),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", [TWISTD, CONSOLE])
def test_open_streams_are_logged_as_ended_by_shutdown(
    configs: Path, how: Sequence[str], number: signal.Signals
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # for the child, should we run under nohup
    try:
        server = start(configs, "--enable-directives", how=how)
    finally:
        signal.signal(number, before)
    try:
        with ExitStack() as stack:
            connections = [stack.enter_context(Connection(server.address)) for _ in STREAMS]
            for connection, (data, sign) in zip(connections, STREAMS.values(), strict=True):
                connection.send(data)
                connection.until(sign)
            mark = server.log.mark()
            server.process.send_signal(number)
            server.process.wait(5)
            ends = [connection.until_end().end for connection in connections]
        assert not [end for end in ends if end not in {FIN, RST}]
    finally:
        server.stop()
    said = [
        line
        for line in server.log.since(mark)
        if "/v1/chat/completions" in line and "shutdown" in line.lower()
    ]
    assert len(said) == len(STREAMS), server.log.since(mark)
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_it_does_not_wait_for_readers_that_do_not_read(one_config: Path) -> None:
    server = start(one_config, "--enable-directives")
    try:
        with ExitStack() as stack:
            for fault in (
                "reset;after_chunks=5000",
                "cut_between_frames;after_chunks=5000",
                "stall;after_chunks=4294967295",
            ):
                connection = stack.enter_context(Connection(server.address, receive_buffer=4096))
                connection.send(fault_request(CHAT, f"{fault};delay_ms=0"))
                connection.until(b"0000")
            server.process.terminate()
            server.process.wait(5)
    finally:
        server.stop()
    assert not [line for line in server.log.since() + server.errors.since() if "Traceback" in line]


def test_a_port_is_free_again_at_once(one_config: Path) -> None:
    """The next server of a CI job listens where the last one did, connections in TIME_WAIT or not."""
    first = start(one_config, "--enable-directives")
    ask(first.address, fault_request(CHAT, "no_done;delay_ms=0"))
    first.stop()
    endpoint = f"tcp:{first.port}:interface=127.0.0.1"
    second = start(one_config, "--endpoint", endpoint)
    try:
        assert second.port == first.port
        assert ask(second.address, request("GET", "/health")).status == 200
    finally:
        second.stop()


def test_the_daemon_serves_and_stops(one_config: Path, tmp_path: Path) -> None:
    """SIGTERM comes while the answer's log line is written: Twisted's handler logs too, and the lock is one."""
    pidfile, logfile = tmp_path / "twistd.pid", tmp_path / "twistd.log"
    command = [str(BIN / "twistd"), f"--pidfile={pidfile}", f"--logfile={logfile}", "inference-lab"]
    options = ["--config", str(one_config), "--port", "0"]
    started = subprocess.run(
        [*command, *options], cwd=tmp_path, timeout=20, check=False, stdin=subprocess.DEVNULL
    )
    assert started.returncode == 0
    pid = int(pidfile.read_text())
    try:
        assert eventually(lambda: "ready: " in logfile.read_text())
        found = re.search(r"ready: http://127\.0\.0\.1:(\d+)", logfile.read_text())
        assert found
        assert ask(("127.0.0.1", int(found[1])), request("GET", "/health")).status == 200
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not pidfile.exists()), "twistd removes it when it has ended"
    finally:
        if pidfile.exists():
            os.kill(pid, signal.SIGKILL)
