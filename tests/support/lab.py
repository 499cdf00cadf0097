"""The whole application in memory, without latencies: requests in, bytes and how they ended out, no waiting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address

from inference_lab.config.models import load
from inference_lab.storage.attempts import Attempts
from inference_lab.web.answers import Answers
from inference_lab.web.app import Lab
from inference_lab.web.metrics_page import MetricsPage
from inference_lab.web.served import Served, ServedModels
from inference_lab.web.turn import Turns
from inference_lab.wire.counters import ModelCounters, RequestCounters
from inference_lab.wire.engine_driver import ConstantLatency
from inference_lab.wire.h1.channel import LabChannel, LabSite
from inference_lab.wire.h1.endings import Endings
from inference_lab.wire.pacer import Pacer
from inference_lab.wire.recording import Recorder
from inference_lab.wire.streams import Streams
from inference_lab.wire.turns import at_once
from tests.support.clients.resume_client import DeathError, Reply
from tests.support.memory import HalfClosing, TurnClock
from tests.support.rawclient import FIN, OPEN, Received, complete, request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from twisted.internet.testing import StringTransportWithDisconnection

    from inference_lab.core.journal.row import Row
    from inference_lab.wire.turns import Aside

MODEL = 'model = "llama-3.1-8b-instruct"\nname = "{name}"\n[latency]\nttft_ms = 0\nitl_ms = 0\n'
WORDS, REASONING = 48, 8
"""Words of a model's whole answer, and those of them that are reasoning where it thinks."""

FAMILIES = ("lab", "hermes", "dsv4")
_SILENCE_S = 30.0
_AFTERMATH_S = 0.01
"""How long a connection may take to close behind a whole response."""


def files(more: str = "", families: tuple[str, ...] = FAMILIES) -> dict[str, str]:
    """A model of each format that answers at once and one that thinks first, each 48 words: `lab`, `lab-thinks`."""
    found = {}
    for family in families:
        for name, reasoning in ((family, 0), (f"{family}-thinks", REASONING)):
            answer = f"[answer]\ntokens = {WORDS - reasoning}\nreasoning = {reasoning}\n"
            found[name] = f'format = "{family}"\n{MODEL.format(name=name)}{answer}{more}'
    return found


def write(folder: Path, models: Mapping[str, str]) -> Path:
    """The models as config files."""
    for name, text in models.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


class KeptRows(dict[int, "Row"]):
    """Rows by their numbers, the last of each; `batches` has those that came together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Row]] = []

    def put(self, rows: Mapping[int, Row], awaited: AbstractSet[int] = frozenset()) -> None:
        self.awaited = awaited
        self.update(rows)
        self.batches.append(list(rows.values()))


class MemoryLab:
    """A server of the models in a folder, whose engines are silent for `ttft_us`; `rows` has what it records."""

    def __init__(
        self,
        folder: Path,
        *,
        directives: bool = True,
        attempts: Attempts | None = None,
        ttft_us: int = 0,
        max_bodies_bytes: int | None = None,
        aside: Aside = at_once,
    ) -> None:
        self.clock = TurnClock()
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.handed_over = KeptRows()
        pacer = Pacer(self.clock, self.clock.seconds)
        self._recorder = recorder = Recorder(pacer, self.handed_over, lambda: 1_800_000_000.5)
        endings = Endings(pacer, flush_grace_us=1000, linger_us=30_000_000)
        loaded = load(str(folder), None)
        served = [
            Served(model, ConstantLatency(pacer, ttft_us=ttft_us, itl_us=0), ModelCounters(model.name))
            for model in loaded.models
        ]
        models = ServedModels(served)
        streams = Streams(pacer, reader_timeout_us=300_000_000)
        answers = Answers(
            streams,
            attempts or Attempts(),
            wall_seconds=lambda: 1_800_000_000.5,
            random_digits=lambda: "f" * 24,
        )
        counters = RequestCounters()
        metrics = MetricsPage(pacer, counters, streams, served, None)
        turns = Turns(models, streams, directives=directives, incidents=loaded.incidents)
        lab = Lab(turns, answers, metrics, aside=aside)
        self.site = LabSite(
            lab.resource(),
            endings=endings,
            max_body_bytes=2**24,
            max_bodies_bytes=max_bodies_bytes,
            recorder=recorder,
            counters=counters,
            reactor=self.clock,
        )

    @property
    def rows(self) -> KeptRows:
        """What has been recorded so far, which is handed over if it has not been."""
        self._recorder.flush()
        return self.handed_over

    def end(self) -> None:
        """What the end of the process does to the journal."""
        self._recorder.end_all("shutdown")

    def exchange(
        self, path: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None
    ) -> Received:
        """One request on a connection of its own, and all that comes of it; OPEN is an answer whole, or silence."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(request("POST", path, data, headers=dict(headers or {})))

    def connect(self) -> tuple[LabChannel, StringTransportWithDisconnection]:
        """A new connection and the transport that holds what was written to it."""
        channel = self.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        assert isinstance(channel, LabChannel)
        channel.callLater = self.clock.callLater
        transport = HalfClosing()
        transport.protocol = channel
        channel.makeConnection(transport)
        return channel, transport

    def send(self, data: bytes) -> Received:
        """See `exchange`, for the bytes of a request."""
        channel, transport = self.connect()
        channel.dataReceived(data)
        for step in (0, 0.002, _SILENCE_S):
            self.clock.advance(step)
            got = Received(transport.value(), OPEN if transport.connected else FIN)
            if got.end == FIN or _is_complete(got):
                break
        if transport.connected:
            self.clock.advance(_AFTERMATH_S)
            got = Received(transport.value(), OPEN if transport.connected else FIN)
        if transport.connected:
            transport.loseConnection()
        return got

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """The JSON of an answer that must be a 200."""
        got = self.exchange(path, body, headers)
        assert got.status == 200, got.raw
        return got.json

    def __call__(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """A transport for the resume client; what it asked is kept in `asked`."""
        self.asked.append((path, dict(headers), json.loads(body)))
        got = self.exchange(path, body, headers)
        return Reply(got.status, got.headers["content-type"], _blocks(got))


def _is_complete(got: Received) -> bool:
    """Whether nothing more will come; what breaks the framing is no end."""
    try:
        return complete(got)
    except ValueError:
        return False


def _blocks(got: Received) -> Iterator[bytes]:
    """The body chunk by chunk, and the death behind it, if it was one."""
    if "content-length" in got.headers:
        yield got.body
        return
    yield from got.chunked.chunks
    if not complete(got):
        raise DeathError("broken" if got.end == FIN else "silent")
