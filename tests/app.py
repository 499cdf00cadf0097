"""The whole application in memory: requests in, bytes out, on a clock that runs as fast as the test wants."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address

from inference_lab.config import load
from inference_lab.web.answers import Answers
from inference_lab.web.app import Lab
from inference_lab.web.checks import Checks
from inference_lab.web.served import Served, ServedModels
from inference_lab.wire.endings import Endings
from inference_lab.wire.engine_driver import ConstantLatency
from inference_lab.wire.http import LabChannel, LabSite
from inference_lab.wire.pacer import Pacer
from inference_lab.wire.streams import Streams
from tests.memory import HalfClosing, TurnClock

if TYPE_CHECKING:
    from pathlib import Path

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONFIG = 'model = "llama-3.1-8b-instruct"\nname = "m"\n[latency]\nttft_ms = 0\nitl_ms = 0\n'


class App:
    """A server for one model, `m`; each request gets a connection of its own."""

    def __init__(self, folder: Path, more_config: str = "", *, directives: bool = True) -> None:
        path = folder / "m.toml"
        path.write_text(CONFIG + more_config)
        self.clock = TurnClock()
        pacer = Pacer(self.clock, self.clock.seconds)
        endings = Endings(pacer, flush_grace_us=25_000, linger_us=30_000_000)
        engine = ConstantLatency(pacer, ttft_us=0, itl_us=0)
        models = ServedModels([Served(model, engine) for model in load(str(path), None).models])
        answers = Answers(
            Streams(pacer, endings, reader_timeout_us=10**15),
            directives=directives,
            wall_seconds=lambda: 1_800_000_000.5,
            random_digits=lambda: "f" * 24,
        )
        lab = Lab(models, Checks(models, directives=directives), answers)
        self.site = LabSite(lab.app.resource(), endings=endings, max_body_bytes=10_000, reactor=self.clock)

    def send(self, data: bytes, *, seconds: float = 0.0) -> bytes:
        """Everything that comes back within so many seconds on the clock, without the head's Date line."""
        channel = self.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        assert isinstance(channel, LabChannel)
        channel.callLater = self.clock.callLater
        transport = HalfClosing()
        transport.protocol = channel
        channel.makeConnection(transport)
        channel.dataReceived(data)
        self.clock.pump([0.001] * 4)
        self.clock.advance(seconds)
        self.clock.pump([0.001] * 4)
        if transport.connected:
            transport.loseConnection()
        head, blank, body = transport.value().partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")]
        return b"\r\n".join(lines) + blank + body

    def ask(
        self, path: str, fault: str | None, *, seconds: float = 10.0, stream: bool = True, **more: object
    ) -> bytes:
        """The response to a small request."""
        asked = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
        body = json.dumps({"model": "m", "stream": stream, **asked, **more}).encode()
        header = b"" if fault is None else f"x-inference-lab-fault: {fault}\r\n".encode()
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n".encode()
        return self.send(head + header + b"\r\n" + body, seconds=seconds)
