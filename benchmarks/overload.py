"""More healthy streams than a core can carry: the server must stay on time for everybody else.

    python benchmarks/overload.py [--seconds 60] [--only NAME] [-- OPTIONS OF THE SERVER]

For each case a server gets healthy streams of DeepSeek-V4-Flash that begin anew as they end. Beside them `/health` is
asked ten times a second, on connections of its own, and a fault of one second is met again and again; at the end, with
the load still there, comes SIGTERM. Exit status 1 if `/health` takes more than 100 ms in the median or 500 ms at the
worst, a fault does not end within 1.5 s, the process not within 1 s, resident memory grows by more than 8 MiB after a
sixth of the time, or the log holds a traceback. How far simulated time fell behind the clock is only said.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from child import serve
from loadgen import Load, LoadGenerator, scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from child import Child

HEALTH_MEDIAN_S: Final = 0.1
HEALTH_WORST_S: Final = 0.5
FAULT_S: Final = 1.5
SIGTERM_S: Final = 1.0
GROWTH_BYTES: Final = 8 << 20
_PATIENCE_S: Final = 30.0
_CONFIG: Final = Path(__file__).parent.parent / "configs" / "deepseek-v4-flash.toml"
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_FAULT: Final = "cut_between_frames;after_chunks=21;delay_ms=50"
"""Twenty gaps of 50 ms."""
_LAG: Final = re.compile(rb"^inference_lab_engine_lag_seconds\{[^}]*\} (\S+)", re.MULTILINE)


class Case(msgspec.Struct, frozen=True):
    """So many healthy streams at a speed."""

    name: str
    streams: int
    speed: float


CASES: Final = (Case("2000-streams", 2000, 1), Case("speed-10", 200, 10))


def body(tokens: int) -> str:
    """A request's body."""
    return json.dumps(
        {
            "model": "DeepSeek-V4-Flash",
            "stream": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": "hello"}],
        }
    )


def exchange(port: int, data: bytes) -> tuple[float, bytes]:
    """Send a request, read until the server closes; how long it took, in seconds, and what came."""
    begun = time.monotonic()
    received = b""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as connection:
        connection.sendall(data)
        while more := connection.recv(65_536):
            received += more
    return time.monotonic() - begun, received


class Watch:
    """Asks for something again and again, `every_s` after the last answer, until told to stop."""

    def __init__(self, port: int, data: bytes, sign: bytes, *, every_s: float) -> None:
        self.times_s: list[float] = []
        self.complaints: list[str] = []
        self._asked = (port, data)
        self._sign = sign
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the answer that is under way."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                took_s, received = exchange(*self._asked)
            except OSError as error:
                self.complaints.append(repr(error))
            else:
                self.times_s.append(took_s)
                if self._sign not in received:
                    self.complaints.append(f"no {self._sign!r} in {received[-300:]!r}")
            self._over.wait(self._every_s)


def measure(
    generator: LoadGenerator, child: Child, case: Case, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """Load the server; what was measured, and what was wrong."""
    load = Load(streams=case.streams, body=body(3000), spread_s=1.0, seconds=seconds + _PATIENCE_S)
    fault = body(3000).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nx-inference-lab-fault: {_FAULT}\r\n"
    faulted = f"{head}Content-Length: {len(fault)}\r\n\r\n".encode() + fault
    with generator.start(child.port, load) as loading:
        try:
            time.sleep(seconds / 6)
            before_bytes = child.rss_bytes()
            watches = [
                Watch(child.port, _HEALTH, b"200 OK", every_s=0.1),
                Watch(child.port, faulted, b"0020", every_s=0.5),
            ]
            time.sleep(seconds * 5 / 6)
            for watch in watches:
                watch.stop()
            after_bytes = child.rss_bytes()
            _, metrics = exchange(child.port, _HEALTH.replace(b"/health", b"/metrics"))
            if not metrics.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"no metrics: {metrics[:300]!r}")
            frames = sum(
                map(float, re.findall(rb"^inference_lab_frames_total\{[^}]*\} (\S+)", metrics, re.MULTILINE))
            )
            log = child.log()
            ended_s = terminated_s(child)
        finally:
            loading.kill()
    health, faults = (sorted(watch.times_s) or [_PATIENCE_S] for watch in watches)
    figures = {
        "frames": frames,
        "lag_s": max(map(float, _LAG.findall(metrics)), default=0.0),
        "health_median_s": statistics.median(health),
        "health_worst_s": health[-1],
        "fault_worst_s": faults[-1],
        "sigterm_s": ended_s,
        "memory_mib": before_bytes / 2**20,
        "growth_mib": (after_bytes - before_bytes) / 2**20,
        "lines_about_lateness": len(re.findall("behind the clock", log)),
    }
    complaints = [complaint for watch in watches for complaint in watch.complaints[:5]]
    limits = (
        ("health_median_s", HEALTH_MEDIAN_S),
        ("health_worst_s", HEALTH_WORST_S),
        ("fault_worst_s", FAULT_S),
        ("sigterm_s", SIGTERM_S),
        ("growth_mib", GROWTH_BYTES / 2**20),
    )
    complaints += [
        f"{name} {figures[name]:.3f}, at most {most:g}" for name, most in limits if figures[name] > most
    ]
    if "Traceback" in log:
        complaints.append("a traceback in the server's log")
    return figures, complaints


def terminated_s(child: Child) -> float:
    """Seconds from SIGTERM to the end of the process."""
    begun = time.monotonic()
    child.send(signal.SIGTERM)
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return _PATIENCE_S
    return time.monotonic() - begun


def main(arguments: Sequence[str]) -> int:
    """Run the cases; the status is 0 if all limits are kept."""
    options_of_server: Sequence[str] = ()
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, options_of_server = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=[case.name for case in CASES])
    options = parser.parse_args(arguments)
    status = 0
    with scratch() as folder:
        generator = LoadGenerator(Path(folder))
        for case in CASES:
            if options.only not in {None, case.name}:
                continue
            given = ("--config", str(_CONFIG), "--enable-directives", "--speed", str(case.speed))
            with serve(*given, *options_of_server) as child:
                figures, complaints = measure(generator, child, case, options.seconds)
            print(f"{case.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()))
            for complaint in complaints:
                print(f"  {complaint}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
