"""Child processes under test: started as a user starts them, stopped by their own process id."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN = Path(sys.executable).parent
TWISTD = (str(BIN / "twistd"), "-n", "--pidfile=", "inference-lab")
CONSOLE = (str(BIN / "inference-lab"), "serve")
START_TIMEOUT = 20.0
READY = re.compile(r"ready: (?P<scheme>https?)://(?P<host>[^:/\s]+):(?P<port>\d+)")


def eventually(what: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Poll something the kernel gives no event for (/proc figures), within a deadline."""
    deadline = time.monotonic() + timeout
    while not (good := what()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return good


class Lines:
    """A stream of a child read by a thread: every line kept, and a line can be awaited."""

    def __init__(self, stream: subprocess.Popen[bytes], name: str) -> None:
        self._pipe = getattr(stream, name)
        self._lines: list[str] = []
        self._open = True
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for raw in self._pipe:
            with self._news:
                self._lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._open = False
            self._news.notify_all()

    def close(self) -> None:
        self._thread.join(5)
        self._pipe.close()

    def mark(self) -> int:
        """The number of lines so far, to look only at later ones."""
        with self._news:
            return len(self._lines)

    def since(self, mark: int = 0) -> list[str]:
        with self._news:
            return self._lines[mark:]

    def wait_for(
        self, pattern: str | re.Pattern[str], *, since: int = 0, timeout: float = 10.0
    ) -> re.Match[str]:
        """The first match at or after a mark; the whole log in the error if none comes."""
        deadline = time.monotonic() + timeout
        seen = since
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if not self._open or left <= 0 or not self._news.wait(left):
                    if seen < len(self._lines):
                        continue
                    log = "\n".join(self._lines[since:])
                    raise AssertionError(f"no line with {pattern!r} within {timeout} s; the log:\n{log}")


class Server:
    """One running server: where it listens, its log, and what /proc says about it."""

    def __init__(self, arguments: Sequence[str], *, how: Sequence[str] = TWISTD) -> None:
        self.command = [*how, *arguments]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log = Lines(self.process, "stdout")
        self.errors = Lines(self.process, "stderr")
        self.scheme = self.host = ""
        self.port = 0
        self._idle = 0

    def wait_until_ready(self) -> Server:
        try:
            line = self.log.wait_for(r"ready: .*", timeout=START_TIMEOUT).group()
        except AssertionError as failure:
            self.stop()
            raise AssertionError(f"{self.command}: {failure}\nstderr: {self.errors.since()}") from None
        if found := READY.search(line):
            self.scheme, self.host, self.port = found["scheme"], found["host"], int(found["port"])
        self._idle = self.descriptors()
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def connections(self) -> int:
        """Descriptors beyond those of the idle server."""
        return self.descriptors() - self._idle

    def has_let_go(self, timeout: float = 12.0) -> bool:
        """Whether the child comes back to the descriptors it started with."""
        return eventually(lambda: self.connections() <= 0, timeout)

    def rss(self) -> int:
        """Resident bytes now."""
        return self._status("VmRSS")

    def forget_peak(self) -> int:
        """Begin to measure the peak anew (proc(5), clear_refs); resident bytes now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.peak_rss()

    def peak_rss(self) -> int:
        """The most resident bytes there ever were, or since the peak was forgotten."""
        return self._status("VmHWM")

    def _status(self, key: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
        assert found, text
        return int(found[1]) * 1024

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that does nothing; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.log.close()
        self.errors.close()
        return self.process.returncode


def options(config: Path, *more: str) -> list[str]:
    """The options every test server is started with."""
    where = [] if "--endpoint" in more else ["--port", "0"]
    return ["--config", str(config), *where, *more]


def start(config: Path, *more: str, how: Sequence[str] = TWISTD) -> Server:
    """A server on a port the kernel picked, ready to answer."""
    return Server(options(config, *more), how=how).wait_until_ready()
