"""Whether the served engine keeps the simulation's time: first tokens of concurrent streams against `simulate`.

A real `inference-lab serve` with room for 20 running requests gets 200 streams with distinct prompts; the same arrivals
then go through the offline simulation. Run it from the project's root on an idle machine:
`python benchmarks/serve_matches_simulation.py [--streams N] [--seats N] [--json]`. Exit status 1 if a stream is off by
more than both limits.

An arrival is when the engine was handed the request, as the server's journal says: the same arrivals for both. When a
token reached the client is timed by the kernel (SO_TIMESTAMPNS), so a client that is late does not count. Server and
client have a core each: the kernel likes to wake a reader on the core of the sender, which then waits for milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from child import serve

from inference_lab.config.models import load
from inference_lab.core.engine.block_pool import block_ids
from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request

CONFIG: Final = """\
model = "llama-3.1-8b-instruct"
name = "lab"

[scheduler]
max_num_batched_tokens = 8192
max_num_seqs = {seats}
policy = "fcfs"
enable_chunked_prefill = true
block_size = 16

[hardware.gh200]
tp = 1
"""
LIMIT_MS: Final = 5.0
LIMIT_PERCENT: Final = 2.0
_PROMPT_TOKENS: Final = (100, 900)
_OUTPUT_TOKENS: Final = (16, 80)
_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python has no name for it
_TIMESPEC: Final = struct.Struct("qq")


@dataclass
class Stream:
    """One request and when what happened to it, in seconds of CLOCK_REALTIME, which is what the kernel stamps."""

    prompt: list[int]
    output_tokens: int
    arrival: float = 0.0
    first: float = 0.0
    received: bytes = b""

    def request(self, number: int) -> bytes:
        """The request's bytes; `number` is its name in the journal."""
        body = {"model": "lab", "prompt": self.prompt, "stream": True, "max_tokens": self.output_tokens}
        data = json.dumps(body).encode()
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nx-request-id: %d\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (number, len(data), data)
        )

    def take(self, data: bytes, now: float) -> None:
        """Note when the first frame came; of the rest nothing is kept."""
        if self.first:
            return
        self.received += data
        head, blank, rest = self.received.partition(b"\r\n\r\n")
        if blank and not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self.received.decode(errors="replace"))
        if b"data: " in rest:
            self.first = now
            self.received = b""


def make_streams(count: int) -> list[Stream]:
    """Prompts that share no block, with lengths that are spread but the same in every run."""

    def between(limits: tuple[int, int], number: int) -> int:
        return limits[0] + number * 7919 % (limits[1] - limits[0])

    return [
        Stream([1000 + number] * between(_PROMPT_TOKENS, number), between(_OUTPUT_TOKENS, number * 31))
        for number in range(count)
    ]


def play(port: int, streams: list[Stream], gap_s: float) -> None:
    """Send the requests `gap_s` apart on connections that are open already, and read all answers to their ends."""
    selector = selectors.DefaultSelector()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in streams]
    requests = [stream.request(number) for number, stream in enumerate(streams)]
    for opened, stream in zip(sockets, streams, strict=True):
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        selector.register(opened, selectors.EVENT_READ, stream)
    start = time.time() + 0.1
    sent = open_count = 0
    while sent < len(streams) or open_count:
        while sent < len(streams) and time.time() >= start + sent * gap_s:
            if sockets[sent].send(requests[sent]) != len(requests[sent]):
                raise RuntimeError("the kernel did not take a request at once")
            sent += 1
            open_count += 1
        wait_s = max(0.0, start + sent * gap_s - time.time()) if sent < len(streams) else 1.0
        for key, _ in selector.select(wait_s):
            assert isinstance(key.fileobj, socket.socket)  # noqa: S101 - what was registered
            connection = key.fileobj
            data, told, _, _ = connection.recvmsg(65_536, 128)
            key.data.take(data, _stamp(told))
            if not data:
                selector.unregister(connection)
                connection.close()
                open_count -= 1


def _stamp(told: list[tuple[int, int, bytes]]) -> float:
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return float(seconds) + float(nanoseconds) / 1e9
    return time.time()


def part(server_pid: int) -> None:
    """Give the server one core and this process another, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(server_pid, cores[1:2])
        os.sched_setaffinity(0, cores[:1])


def read_arrivals(port: int, streams: list[Stream]) -> None:
    """Ask the journal when each request was submitted to the engine."""
    query = f"http://127.0.0.1:{port}/lab/journal?wait=10&count={len(streams)}"
    with urllib.request.urlopen(query, timeout=20) as answer:
        for row in json.load(answer)["data"]:
            streams[int(row["request_id"])].arrival = row["time"] + row["engine"]["submitted_ms"] / 1e3


def simulated(config: str, streams: list[Stream]) -> list[float]:
    """Seconds from each arrival to the first token, as the simulation has them."""
    (model,) = load(config, None).models
    deployment = model.deployment
    if deployment is None:
        raise ValueError("the config has no deployment")
    origin = min(stream.arrival for stream in streams)
    requests = [
        Request(
            number,
            len(stream.prompt),
            stream.output_tokens,
            block_ids=block_ids(stream.prompt, deployment.scheduler.block_size),
        )
        for number, stream in enumerate(streams)
    ]
    timed = [(stream.arrival - origin, request) for stream, request in zip(streams, requests, strict=True)]
    timed.sort(key=lambda pair: pair[0])
    for _ in simulate(Cluster(deployment), timed):
        pass
    return [(request.first_token_s or 0.0) - request.arrival_s for request in requests]


def compare(streams: list[Stream], expected: list[float]) -> dict[str, float]:
    """Differences served - simulated of the times to first token."""
    served = [stream.first - stream.arrival for stream in streams]
    off_ms = [abs(is_ - should) * 1e3 for is_, should in zip(served, expected, strict=True)]
    percent = [off / (should * 10) for off, should in zip(off_ms, expected, strict=True)]
    outside = sum(ms > LIMIT_MS and rel > LIMIT_PERCENT for ms, rel in zip(off_ms, percent, strict=True))
    figures: dict[str, float] = {"ttft_max_ms": max(served) * 1e3}
    for name, values in (("ms", sorted(off_ms)), ("percent", sorted(percent))):
        for part in (50, 90, 99):
            figures[f"p{part}_{name}"] = values[(len(values) - 1) * part // 100]
        figures[f"max_{name}"] = values[-1]
    figures["outside"] = outside
    return figures


def main() -> int:
    """Measure once; the status is 0 if all streams are within a limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seats", type=int, default=20)
    parser.add_argument("--gap-ms", type=float, default=5.0, help="between two requests")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    streams = make_streams(options.streams)
    with tempfile.TemporaryDirectory() as folder:
        config = str(Path(folder) / "lab.toml")
        Path(config).write_text(CONFIG.format(seats=options.seats))
        with serve("--config", config, "--enable-directives") as child:
            part(child.pid)
            play(child.port, streams, options.gap_ms / 1e3)
            read_arrivals(child.port, streams)
        figures = compare(streams, simulated(config, streams))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"{options.streams} streams, {options.seats} seats, {options.gap_ms:g} ms between requests")
        print(f"longest time to first token {figures['ttft_max_ms']:,.0f} ms")
        for unit in ("ms", "percent"):
            parts = "  ".join(
                f"{part} {figures[f'{part}_{unit}']:.2f}" for part in ("p50", "p90", "p99", "max")
            )
            print(f"off by ({unit}): {parts}")
        print(f"outside {LIMIT_MS:g} ms and {LIMIT_PERCENT:g} %: {figures['outside']:.0f}")
    return 0 if figures["outside"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
