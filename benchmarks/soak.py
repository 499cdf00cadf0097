"""A mixed load for a long time: memory and descriptors must end where they started.

    python benchmarks/soak.py [--minutes 10] [--clients 40] [-- OPTIONS OF THE SERVER]

Starts `inference-lab serve` and keeps clients at it that stream at a pace, stream without one, stall and leave, leave
in mid-stream by FIN or RST, read slowly, die in every mode, talk to the engine, and send nonsense. After a warm-up of a
tenth of the time it looks at the server's resident memory and descriptors, and again at the end, both times with no
client there. Exit status 1 if memory has grown by more than 8 MiB, a descriptor is left, an answer was not what was
expected, or the log holds a traceback.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from child import serve

from inference_lab.core.faults.modes import MODES

if TYPE_CHECKING:
    from collections.abc import Callable

    from child import Child

GROWTH_BYTES: Final = 8 << 20
_MODELS: Final = {
    "instant": 'model = "llama-3.1-8b-instruct"\nname = "instant"\n[latency]\nttft_ms = 0\nitl_ms = 0\n',
    "engine": 'model = "llama-3.1-8b-instruct"\nname = "engine"\n[scheduler]\nmax_num_batched_tokens = 8192\n'
    'max_num_seqs = 20\nblock_size = 16\npolicy = "fcfs"\nenable_chunked_prefill = true\n[hardware.gh200]\ntp = 1\n',
}
_NONSENSE: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n[]",
    b"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n",
)


class UnexpectedError(Exception):
    """An answer that is not what was asked for."""


def request(model: str, fault: str | None = None, tokens: int = 20, word: str = "hello") -> bytes:
    """A streaming chat request."""
    body = (
        f'{{"model":"{model}","stream":true,"max_tokens":{tokens},'
        f'"messages":[{{"role":"user","content":"{word}"}}]}}'
    ).encode()
    header = f"x-inference-lab-fault: {fault}\r\n" if fault else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_until(connection: socket.socket, sign: bytes, patience_s: float = 30) -> bytes:
    """Read until the sign has come, the end, or the end of patience."""
    data = b""
    deadline = time.monotonic() + patience_s
    while sign not in data[-70_000:] and time.monotonic() < deadline:
        more = connection.recv(65_536)
        if not more:
            break
        data += more
    return data


def reset(connection: socket.socket) -> None:
    """Close with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def paced(connection: socket.socket, chance: random.Random) -> None:
    """Two whole answers on one connection."""
    for _ in range(2):
        connection.sendall(request("instant", f"no_done;after_chunks={chance.randint(1, 60)};delay_ms=5"))
        expect(read_until(connection, b"0\r\n\r\n"), b'"finish_reason":"stop"', b"\r\n0\r\n\r\n")


def instant(connection: socket.socket, chance: random.Random) -> None:
    """A whole answer as fast as it comes."""
    connection.sendall(request("instant", tokens=chance.randint(1, 2000)))
    expect(read_until(connection, b"0\r\n\r\n"), b"[DONE]", b"\r\n0\r\n\r\n")


def engine(connection: socket.socket, chance: random.Random) -> None:
    """An answer of the simulated engine, waited for or not."""
    connection.sendall(request("engine", tokens=chance.randint(1, 60), word=f"w{chance.random()}"))
    if chance.random() < 0.7:
        expect(read_until(connection, b"0\r\n\r\n"), b"[DONE]", b"\r\n0\r\n\r\n")


def stalled(connection: socket.socket, chance: random.Random) -> None:
    """A stall that the client has enough of."""
    connection.sendall(request("instant", "stall;after_chunks=2;delay_ms=0"))
    expect(read_until(connection, b"0001"), b"0001")
    time.sleep(chance.uniform(0, 1))


def leaving(connection: socket.socket, chance: random.Random) -> None:
    """A client that leaves in the middle of an endless stream, politely or not."""
    pace = chance.choice((0, 1, 20))
    connection.sendall(request("instant", f"no_done;after_chunks=4294967295;delay_ms={pace}"))
    read_until(connection, b"0002")
    if chance.random() < 0.5:
        reset(connection)


def slow(connection: socket.socket, chance: random.Random) -> None:
    """A reader with a small buffer that takes its time."""
    connection.sendall(request("instant", "no_done;after_chunks=2000;delay_ms=0"))
    left = chance.choice((50_000, 200_000, 400_000))
    while left > 0:
        left -= len(connection.recv(4096)) or left
        time.sleep(0.002)


def dying(connection: socket.socket, chance: random.Random) -> None:
    """A death of any kind, seen to its end unless it is a silence."""
    mode = chance.choice(list(MODES))
    connection.sendall(request("instant", f"{mode};delay_ms=1"))
    connection.settimeout(0.5)
    try:
        expect(read_until(connection, b"0\r\n\r\n", 1), b"HTTP/1.")
    except (TimeoutError, ConnectionResetError):
        return


def nonsense(connection: socket.socket, chance: random.Random) -> None:
    """Something that is no request, or half of one."""
    data = chance.choice((*_NONSENSE, request("instant")[: chance.randint(1, 150)]))
    connection.sendall(data)
    connection.settimeout(0.2)
    try:
        connection.recv(65_536)
    except (TimeoutError, ConnectionResetError):
        return


_KINDS: Final = (paced, instant, engine, stalled, leaving, slow, dying, nonsense)


def expect(data: bytes, *signs: bytes) -> None:
    """Raise UnexpectedError unless all signs are there."""
    for sign in signs:
        if sign not in data:
            raise UnexpectedError(f"no {sign!r} in {data[-300:]!r}")


class Crowd:
    """So many clients, each doing one thing after another until told to go home."""

    def __init__(self, port: int, count: int) -> None:
        self.done: Counter[str] = Counter()
        self.complaints: list[str] = []
        self._port = port
        self._home = threading.Event()
        self._threads = [threading.Thread(target=self._live, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def send_home(self) -> None:
        """Let each finish what it is doing."""
        self._home.set()
        for thread in self._threads:
            thread.join()

    def _live(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - a mix that is the same every time
        while not self._home.is_set():
            kind: Callable[[socket.socket, random.Random], None] = chance.choice(_KINDS)
            try:
                with socket.create_connection(("127.0.0.1", self._port), 30) as connection:
                    if kind is slow:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    kind(connection, chance)
            except (OSError, UnexpectedError) as error:
                self.complaints.append(f"{kind.__name__}: {error!r}")
            self.done[kind.__name__] += 1


def settled(child: Child, descriptors: int, patience_s: float = 20.0) -> tuple[int, int]:
    """Resident bytes and descriptors once the clients' ends have been noticed."""
    deadline = time.monotonic() + patience_s
    while child.descriptors() > descriptors and time.monotonic() < deadline:
        time.sleep(0.1)
    return child.rss_bytes(), child.descriptors()


def main() -> int:
    """Soak; the status is 0 if everything is as it was."""
    arguments, server_options = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, server_options = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=40)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _MODELS.items():
            (Path(folder) / f"{name}.toml").write_text(text)
        # A journal that is full when the warm-up ends grows no further.
        given = ("--config", folder, "--enable-directives", "--journal-rows", "100", *server_options)
        with serve(*given) as child:
            idle = child.descriptors()
            complaints: list[str] = []
            figures = []
            for share in (0.1, 0.9):
                crowd = Crowd(child.port, options.clients)
                time.sleep(options.minutes * 60 * share)
                crowd.send_home()
                complaints += crowd.complaints
                figures.append(settled(child, idle))
                print(dict(sorted(crowd.done.items())), file=sys.stderr)
            if "Traceback" in child.log():
                complaints.append("a traceback in the server's log")
    (before, _), (after, left) = figures
    print(f"resident memory {before / 2**20:.1f} MiB after the warm-up, {after / 2**20:.1f} MiB at the end")
    print(f"descriptors {idle} at the start, {left} at the end")
    if after - before > GROWTH_BYTES:
        complaints.append(f"memory has grown by {(after - before) / 2**20:.1f} MiB")
    if left > idle:
        complaints.append(f"{left - idle} descriptors are left")
    for complaint in complaints[:20]:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
