"""A server under load: started as a child process, stopped by its own process id, weighed through /proc."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

OURS: Final = (str(Path(sys.executable).parent / "inference-lab"), "serve")
_READY: Final = re.compile(r"ready: \w+://[^:/\s]+:(?P<port>\d+)")
_PATIENCE_S: Final = 20.0
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Child(AbstractContextManager["Child"]):
    """A running server.

    `command` is started in a process group of its own. It is ready when its log says `ready: http://HOST:PORT` or,
    for a peer that says nothing of the kind, when the given `port` accepts a connection. Raises RuntimeError with the
    log if neither happens.
    """

    def __init__(self, command: Sequence[str], *, port: int | None = None) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in `stop`
        self._command = command
        started = time.monotonic()
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self.port = self._wait(self._port_in_log if port is None else lambda: _listening(port))
        except RuntimeError:
            self.stop()
            raise
        self.start_s = time.monotonic() - started
        """From the start of the process until it was seen to be ready, in seconds."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def log(self) -> str:
        """Everything it has written so far."""
        self._log.seek(0)
        return self._log.read()

    def pids(self) -> list[int]:
        """Its process and all descendants, for a server with workers."""
        found = [self.pid]
        for pid in found:
            found += _children(pid)
        return found

    def cpu_s(self) -> float:
        """User and system time so far, descendants included, in seconds (a tick is 10 ms)."""
        return sum(map(cpu_s, self.pids()))

    def rss_bytes(self) -> int:
        """Resident memory, descendants included."""
        return sum(_status_bytes(pid, "VmRSS") for pid in self.pids())

    def descriptors(self) -> int:
        """Open file descriptors, descendants included."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids())

    def send(self, number: int) -> None:
        """Send its process a signal."""
        self._process.send_signal(number)

    def wait(self, patience_s: float) -> None:
        """Wait for its end; raises subprocess.TimeoutExpired when it lasts."""
        self._process.wait(patience_s)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does nothing within five seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, ready: Callable[[], int | None]) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            port = ready()
            if port is not None:
                return port
            time.sleep(0.002)
        raise RuntimeError(f"{shlex.join(self._command)}: not ready:\n{self.log()}")

    def _port_in_log(self) -> int | None:
        found = _READY.search(self.log())
        return int(found["port"]) if found else None


def serve(*options: str) -> Child:
    """Our own server on a free port."""
    where = () if "--endpoint" in options else ("--port", "0")
    return Child([*OURS, *where, *options])


def cpu_s(pid: int) -> float:
    """User and system time of one process, in seconds; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _status_bytes(pid: int, key: str) -> int:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # gone meanwhile
        return []


def _listening(port: int) -> int | None:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return port
    except OSError:
        return None
