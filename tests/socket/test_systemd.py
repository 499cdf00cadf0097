"""What systemd is told: ready once the port answers, stopping when the server is told to end."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (str(Path(sys.executable).parent / "inference-lab"), "serve", "--port", "0")
CONFIG = 'model = "llama-3.1-8b-instruct"\n[latency]\n'
PATIENCE_S = 20


@pytest.fixture(params=["path", "abstract"])
def notified(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET, and the socket behind it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.settimeout(PATIENCE_S)
        if request.param == "path":
            name = str(tmp_path / "notify")
            ear.bind(name)
        else:
            name = f"@inference-lab-{secrets.token_hex(8)}"
            ear.bind("\0" + name[1:])
        yield name, ear


def test_systemd_hears_ready_when_the_port_answers_and_stopping_on_sigterm(
    notified: tuple[str, socket.socket], tmp_path: Path
) -> None:
    name, ear = notified
    config = tmp_path / "model.toml"
    config.write_text(CONFIG)
    with subprocess.Popen(
        [*COMMAND, "--config", str(config)], stdout=subprocess.PIPE, env={**os.environ, "NOTIFY_SOCKET": name}
    ) as child:
        try:
            assert ear.recv(1000) == b"READY=1"
            assert child.stdout is not None
            log = iter(child.stdout.readline, b"")
            url = next(found[1] for found in (re.search(rb"ready: (\S+)", line) for line in log) if found)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url.decode() + "/health", timeout=PATIENCE_S) as response:
                assert response.read() == b'{"status":"ok"}'
            child.send_signal(signal.SIGTERM)
            assert ear.recv(1000) == b"STOPPING=1"
            child.stdout.read()
            assert child.wait(PATIENCE_S) == 0
        finally:
            child.kill()


def test_a_notify_socket_that_nobody_reads_is_one_warning_and_the_server_serves(tmp_path: Path) -> None:
    config = tmp_path / "model.toml"
    config.write_text(CONFIG)
    with subprocess.Popen(
        [*COMMAND, "--config", str(config)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "nobody")},
    ) as child:
        try:
            assert child.stdout is not None
            warning = next(line for line in iter(child.stdout.readline, "") if "cannot notify" in line)
            assert str(tmp_path / "nobody") in warning
            assert child.poll() is None
        finally:
            child.terminate()
            child.stdout.read() if child.stdout else None
            assert child.wait(PATIENCE_S) == 0


def test_the_unit_file_starts_the_command_that_there_is_with_options_that_there_are() -> None:
    unit = (ROOT / "deploy" / "inference-lab.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, command, *arguments = line.split()
    assert (Path(program).name, command) == ("inference-lab", "serve")
    options = {argument for argument in arguments if argument.startswith("--")}
    listed = subprocess.run([*COMMAND[:2], "--help"], capture_output=True, text=True, check=True).stdout
    assert options <= set(re.findall(r"--[a-z-]+", listed))
    assert re.search(r"^Type=notify$", unit, re.MULTILINE)
    families = re.search(r"^RestrictAddressFamilies=(.*)$", unit, re.MULTILINE)
    assert families is not None
    assert "AF_UNIX" in families[1].split()
