"""A lab in a child process: started, heard until it is ready, ended by its standard input and its process id."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from inference_lab.testing.lab import CurrentTest, InferenceLab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inference_lab.core.faults.incident import Incidents

START_TIMEOUT_S: Final = 30.0
_END_TIMEOUT_S: Final = 10.0
_READY: Final = re.compile(r"ready: (?P<urls>.+?) serving ")

CONFIG: Final = Path(__file__).with_name("model.toml")
"""What is served unless the options say otherwise."""


class ServerError(RuntimeError):
    """The server did not start; the message is what it said."""


class Lines:
    """A stream of a child read by a thread, so that it never blocks: every line kept, and a line can be awaited."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
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
        """The child has ended."""
        self._thread.join(5)
        self._pipe.close()

    def mark(self) -> int:
        """The number of lines so far, to look only at later ones."""
        with self._news:
            return len(self._lines)

    def since(self, mark: int = 0) -> list[str]:
        """The lines after a mark."""
        with self._news:
            return self._lines[mark:]

    def wait_for(
        self, pattern: str | re.Pattern[str], *, since: int = 0, timeout: float = 30.0
    ) -> re.Match[str]:
        """The first match at or after a mark; `timeout` in seconds.

        Raises:
            AssertionError: none came in time, or the stream has ended; with the whole log since the mark.
        """
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


class Child:
    """A running server, its log (standard output) and its errors; `more` is added to its environment."""

    def __init__(self, command: Sequence[str], **more: str) -> None:
        self.command = list(command)
        self.process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **more},
        )
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        assert self.process.stderr is not None  # noqa: S101 - as above
        self.log = Lines(self.process.stdout)
        self.errors = Lines(self.process.stderr)

    def ready_urls(self) -> list[str]:
        """Wait for the ready line; the URLs in it, one for each port.

        Raises:
            ServerError: it has ended, or says nothing. It is stopped then.
        """
        try:
            return self.log.wait_for(_READY, timeout=START_TIMEOUT_S)["urls"].split(" and ")
        except AssertionError:
            status = self.stop()
            said = self.errors.since() or self.log.since() or [f"no ready line, exit status {status}"]
            raise ServerError("\n".join(said)) from None

    def stop(self) -> int:
        """End of input and SIGTERM, and SIGKILL if that does nothing; the exit status."""
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_TIMEOUT_S)
        self.log.close()
        self.errors.close()
        return self.process.returncode


def serve_options(options: Sequence[str]) -> list[str]:
    """The options of `inference-lab serve` after those that a test needs; a free port unless they name one."""
    port = () if any(_says_where(option) for option in options) else ("--port", "0")
    return ["--config", str(CONFIG), *port, "--enable-directives", *options]


def _says_where(option: str) -> bool:
    """Whether it is `--port` or `--endpoint`, cut short or not."""
    name = option.partition("=")[0]
    return len(name) > 2 and any(whole.startswith(name) for whole in ("--port", "--endpoint"))


@contextlib.contextmanager
def running_lab(*options: str, current: CurrentTest | None = None) -> Iterator[InferenceLab]:
    """A server in a child process on a free port; `options` are those of `inference-lab serve`.

    It serves one model, `lab`, unless `--config` says otherwise. It ends with the block, and with this process.

    Raises:
        ServerError: it does not start; the message is its reason.
    """
    given = serve_options(options)
    # A module of the tests' folder that is called as one of Python's is theirs (heeded since Python 3.11).
    child = Child([sys.executable, "-m", "inference_lab.testing.serve", *given], PYTHONSAFEPATH="1")
    try:
        url, *others = child.ready_urls()
        yield InferenceLab(url, current or CurrentTest(), lambda: _incidents(given), others)
    finally:
        child.stop()


def _incidents(options: list[str]) -> Incidents:
    """The incidents beside the config, which are modes too."""
    from inference_lab.config.incident_file import load_incidents  # noqa: PLC0415 - nothing is loaded before its use
    from inference_lab.tap import Options  # noqa: PLC0415

    parsed = Options()
    parsed.parseOptions(options)
    return load_incidents(Path(str(parsed["config"])))
