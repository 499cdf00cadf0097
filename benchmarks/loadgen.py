"""The load generator: sseload built from its source beside this file, run, and its figures read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE: Final = Path(__file__).parent / "sseload.c"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for: `streams` at once, their starts spread over `spread_s`, counted for `seconds` after `warm_up_s`.

    `delay_ms` is the pace asked for, 0 for none.
    """

    streams: int
    body: str
    headers: tuple[str, ...] = ()
    seconds: float = 3.0
    warm_up_s: float = 1.0
    spread_s: float = 0.0
    delay_ms: float = 0.0
    tls: bool = False
    once: bool = False


class LoadGenerator:
    """A built sseload; `has_tls` says whether it can speak TLS."""

    def __init__(self, folder: Path) -> None:
        self._binary = folder / "sseload"
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise SystemExit("a C compiler is needed for the load generator (CC=... names one)")
        build = [compiler, "-O2", "-o", str(self._binary), str(_SOURCE)]
        self.has_tls = not subprocess.run(
            [*build, "-lssl", "-lcrypto"], capture_output=True, check=False
        ).returncode
        if not self.has_tls:
            subprocess.run([*build, "-DNO_TLS"], check=True)

    def start(self, port: int, load: Load, pids: Sequence[int] = ()) -> subprocess.Popen[str]:
        """Begin to load the server at `port`, whose processes are `pids`."""
        command = [str(self._binary), "-p", str(port), "-c", str(load.streams), "-b", load.body]
        command += ["-d", str(load.seconds), "-w", str(load.warm_up_s), "-s", str(load.spread_s)]
        command += ["-g", str(load.delay_ms)]
        for pid in pids:
            command += ["-P", str(pid)]
        for header in load.headers:
            command += ["-H", header]
        command += ["-t"] * load.tls + ["-1"] * load.once
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, port: int, load: Load, pids: Sequence[int] = ()) -> dict[str, Any]:
        """Load the server and wait for the figures."""
        return figures(self.start(port, load, pids))


def figures(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a load generator has to say once it has ended; raises RuntimeError if it failed."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"sseload ended with status {process.returncode}")
    result: dict[str, Any] = json.loads(output)
    return result


def certificate(folder: Path) -> str:
    """A fresh self-signed certificate, as the arguments of a Twisted `ssl:` endpoint."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-days", "2", "-newkey", "rsa:2048", "-nodes"]
    where = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", "req", "-x509", *subject, *where], check=True, capture_output=True)
    return f"ssl:0:interface=127.0.0.1:backlog=4096:privateKey={key}:certKey={cert}"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for what a run builds and writes."""
    return tempfile.TemporaryDirectory(prefix="inference-lab-bench-")
