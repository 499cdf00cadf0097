"""Child processes under test: started as a user starts them, stopped by their own process id."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from inference_lab.testing.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN = Path(sys.executable).parent
TWISTD = (str(BIN / "twistd"), "-n", "--pidfile=", "inference-lab")
CONSOLE = (str(BIN / "inference-lab"), "serve")
ADDRESS = re.compile(r"(?P<scheme>https?)://(?P<host>[^:/\s]+):(?P<port>\d+)")


def files_of(pid: int) -> set[Path]:
    """What a process has open; what it closes while one looks is not there."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(link.readlink())
    return found


def eventually(what: Callable[[], bool], timeout: float = 30.0) -> bool:
    """Poll something the kernel gives no event for (/proc figures), within a deadline."""
    deadline = time.monotonic() + timeout
    while not (good := what()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return good


class Server(Child):
    """One running server: where it listens, its log, and what /proc says about it."""

    def __init__(self, arguments: Sequence[str], *, how: Sequence[str] = TWISTD) -> None:
        super().__init__([*how, *arguments])
        self.scheme = self.host = ""
        self.port = 0
        self.ports: list[int] = []
        self._idle = 0

    def wait_until_ready(self) -> Server:
        found = [ADDRESS.match(url) for url in self.ready_urls()]
        self.ports = [int(one["port"]) for one in found if one]
        if found[0]:
            self.scheme, self.host, self.port = found[0]["scheme"], found[0]["host"], self.ports[0]
        self._idle = self._settled()
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

    def _settled(self) -> int:
        """Descriptors of the idle server, which may be loading files as it says that it is ready."""
        seen: list[int] = []

        def is_steady() -> bool:
            seen.append(self.descriptors())
            return len(seen) > 5 and len(set(seen[-5:])) == 1

        assert eventually(is_steady), seen
        return seen[-1]

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


def options(config: Path, *more: str) -> list[str]:
    """The options every test server is started with."""
    where = [] if "--endpoint" in more else ["--port", "0"]
    return ["--config", str(config), *where, *more]


def start(config: Path, *more: str, how: Sequence[str] = TWISTD) -> Server:
    """A server on a port the kernel picked, ready to answer."""
    return Server(options(config, *more), how=how).wait_until_ready()
