"""The whole application in memory, as trial runs it: no reactor, no socket, a clock that the test advances."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase

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
from inference_lab.wire.streams import Streams
from tests.support.memory import HalfClosing, TurnClock, body_of

CONFIG = 'model = "llama-3.1-8b-instruct"\nname = "m"\n[latency]\nttft_ms = 250\nitl_ms = 125\n'
TTFT_S = 0.25
ITL_S = 0.125


class ServiceTests(SynchronousTestCase):
    """Requests in, bytes out."""

    def setUp(self) -> None:  # noqa: N802 - unittest's name
        self.start("")

    def start(self, more_config: str) -> None:
        """A fresh server and a connection to it."""
        folder = (
            TemporaryDirectory()
        )  # under pytest, trial's own mktemp would write into the working directory
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "m.toml"
        path.write_text(CONFIG + more_config)
        self.clock = TurnClock()
        pacer = Pacer(self.clock, self.clock.seconds)
        endings = Endings(pacer, flush_grace_us=25_000, linger_us=30_000_000)
        engine = ConstantLatency(pacer, ttft_us=round(TTFT_S * 1e6), itl_us=round(ITL_S * 1e6))
        served = [Served(model, engine, ModelCounters(model.name)) for model in load(str(path), None).models]
        models = ServedModels(served)
        streams = Streams(pacer, reader_timeout_us=300_000_000)
        attempts = Attempts()
        answers = Answers(
            streams,
            attempts,
            wall_seconds=lambda: 1_800_000_000.5,
            random_digits=lambda: "f" * 24,
        )
        metrics = MetricsPage(pacer, RequestCounters(), streams, served, None)
        lab = Lab(Turns(models, streams, directives=True), answers, metrics)
        site = LabSite(lab.resource(), endings=endings, max_body_bytes=10_000, reactor=self.clock)
        channel = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        assert isinstance(channel, LabChannel)
        channel.callLater = self.clock.callLater
        self.channel = channel
        self.transport = HalfClosing()
        self.transport.protocol = channel
        channel.makeConnection(self.transport)

    def post(self, path: str, body: dict[str, object], fault: str | None = None) -> None:
        """Send a request."""
        data = json.dumps({"model": "m", **body}).encode()
        header = f"x-inference-lab-fault: {fault}\r\n" if fault else ""
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\n{header}content-length: {len(data)}\r\n\r\n"
        self.channel.dataReceived(head.encode() + data)

    def frames(self) -> list[str]:
        """The frames written since the last look, without their chunk framing."""
        return [line for line in body_of(self.transport).decode().split("\r\n") if line.startswith("data: ")]

    def test_a_healthy_stream_is_paced_by_the_engine_and_leaves_no_timer(self) -> None:
        """Role and first word with the first token, then a word per token, then finish and [DONE]."""
        self.post("/v1/completions", {"prompt": "p", "stream": True, "max_tokens": 3})
        assert self.frames() == []
        self.clock.advance(TTFT_S)
        assert len(self.frames()) == 1
        self.clock.advance(ITL_S)
        assert len(self.frames()) == 1
        self.clock.advance(ITL_S)
        last = self.frames()
        assert len(last) == 3
        assert '"finish_reason":"length"' in last[1]
        assert '"id":"cmpl-ffffffffffffffffffffffff"' in last[1]
        assert '"created":1800000000' in last[1]
        assert last[2] == "data: [DONE]\n\n"
        self.transport.loseConnection()
        assert self.clock.getDelayedCalls() == []

    def test_a_whole_answer_comes_when_its_last_token_is_due(self) -> None:
        """Nothing is written before."""
        self.post("/v1/completions", {"prompt": "p", "max_tokens": 3})
        self.clock.advance(TTFT_S + ITL_S)
        assert self.transport.value() == b""
        self.clock.advance(ITL_S)
        answer = json.loads(body_of(self.transport))
        assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}

    def test_a_client_that_leaves_an_answer_cancels_the_engine_request(self) -> None:
        """Streamed or not."""
        for stream in (True, False):
            self.start("")
            self.post("/v1/completions", {"prompt": "p", "stream": stream})
            self.clock.advance(TTFT_S)
            self.transport.loseConnection()
            assert self.clock.getDelayedCalls() == [], stream

    def test_a_slow_reader_pauses_only_itself_and_the_engine_goes_on(self) -> None:
        """What the engine produced meanwhile is there when the reader comes back."""
        self.post("/v1/completions", {"prompt": "p", "stream": True, "max_tokens": 5})
        self.clock.advance(TTFT_S)
        assert len(self.frames()) == 1
        self.channel.pauseProducing()
        self.clock.advance(3 * ITL_S)
        assert self.transport.value() == b""
        self.channel.resumeProducing()
        assert len(self.frames()) == 3

    def test_a_fault_takes_no_part_in_the_engine(self) -> None:
        """It starts at once and keeps its own pace."""
        self.post("/v1/completions", {"prompt": "p", "stream": True}, "cut_between_frames;delay_ms=500")
        assert len(self.frames()) == 1
        self.clock.advance(0.5)
        assert len(self.frames()) == 1
        self.clock.advance(0.5)
        assert len(self.frames()) == 1
        self.clock.advance(0.0625)
        assert not self.transport.connected
        assert self.transport.value() == b""
        assert self.clock.getDelayedCalls() == []

    def test_reasoning_comes_first_and_is_counted_with_its_markup(self) -> None:
        """On chat too `max_tokens` counts the ids of the raw text; markup is split only where nothing else fits."""
        chat: dict[str, object] = {"messages": [{"role": "user", "content": "p"}]}
        for max_tokens, reasoning, content, used in (
            (2, [], [], 2),  # `<think>`, which no delta shows
            (3, ["0000"], [], 3),
            (5, ["0000", "0001"], [], 4),  # nor do `</think>` and a word fit any more
            (7, ["0000", "0001"], ["0000"], 7),
            (8, ["0000", "0001"], ["0000", "0001"], 8),
        ):
            self.start("[answer]\nreasoning = 2\n")
            self.post("/v1/chat/completions", {**chat, "max_tokens": max_tokens})
            self.clock.advance(TTFT_S + 8 * ITL_S)
            answer = json.loads(body_of(self.transport))
            (choice,) = answer["choices"]
            message = choice["message"]
            assert [word[2:] for word in message.get("reasoning_content", "").split()] == reasoning
            assert [word[2:] for word in message["content"].split()] == content
            assert answer["usage"]["completion_tokens"] == used
            assert choice["finish_reason"] == "length"
