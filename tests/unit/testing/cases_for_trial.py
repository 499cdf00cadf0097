"""Labs in trial's own reactor, left in every state: trial fails a case that leaves anything behind.

Run by `test_in_process.py`, in a process of trial's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import TestCase

from inference_lab.testing import ServerError
from inference_lab.testing.reactor import ReactorLab
from inference_lab.testing.trial import InferenceLabMixin
from tests.support.paths import ROOT

SLOW = 'model = "llama-3.1-8b-instruct"\nname = "slow"\n[latency]\nttft_ms = 60000\nitl_ms = 0\n'
SIMULATED = ROOT / "configs" / "llama-3.1-8b-instruct.toml"


class Client(Protocol):
    """A client that sends a request and keeps its connection open."""

    def __init__(self) -> None:
        self.got = b""
        self.heard: list[tuple[bytes, Deferred[bytes]]] = []

    def ask(self, body: str, headers: dict[str, str]) -> None:
        assert self.transport is not None
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n{head}\r\n{body}".encode()
        )

    def until(self, sign: bytes) -> Deferred[bytes]:
        """Fires once `sign` has come."""
        fired: Deferred[bytes] = Deferred()
        self.heard.append((sign, fired))
        self._look()
        return fired

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.got += data
        self._look()

    def _look(self) -> None:
        for sign, fired in list(self.heard):
            if sign in self.got:
                self.heard.remove((sign, fired))
                fired.callback(self.got)


def body(model: str = "lab", stream: str = "true") -> str:
    return f'{{"model":"{model}","stream":{stream},"messages":[{{"role":"user","content":"hello"}}]}}'


class LabTests(InferenceLabMixin, TestCase):
    timeout = 30

    async def connect(self, lab: ReactorLab | None = None) -> Client:
        port = int((lab or self.inference_lab).url.rpartition(":")[2])
        client: Client = await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), Client())
        return client

    async def test_nothing_was_asked(self) -> None:
        pass

    async def test_a_stream_stalls(self) -> None:
        client = await self.connect()
        client.ask(body(), self.inference_lab.fault("stall"))
        await client.until(b"0002")

    async def test_a_stream_waits_for_its_next_frame(self) -> None:
        client = await self.connect()
        client.ask(body(), self.inference_lab.fault("no_done;delay_ms=60000"))
        await client.until(b"0000")

    async def test_an_answer_is_whole_and_its_connection_idle(self) -> None:
        client = await self.connect()
        client.ask(body(), {})
        got = await client.until(b"0\r\n\r\n")
        assert b"[DONE]" in got

    async def test_a_request_is_half_sent(self) -> None:
        client = await self.connect()
        client.transport.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-le")  # type: ignore[union-attr]

    def slow(self) -> Path:
        path = Path(self.mktemp())
        path.write_text(SLOW)
        return path

    async def test_an_engine_works_on_answers_streamed_and_whole(self) -> None:
        for config, model in ((self.slow(), "slow"), (SIMULATED, "llama-3.1-8b-instruct")):
            lab = ReactorLab(reactor, "--config", str(config), "--speed", "0.001")
            self.addCleanup(lab.close)
            for stream in ("true", "false"):
                client = await self.connect(lab)
                client.ask(body(model, stream), {})
            last = await self.connect(lab)
            last.ask(body("none"), {})
            await last.until(b" 404 ")  # so the others have been read

    async def test_the_ids_name_the_test(self) -> None:
        headers = self.inference_lab.fault("reset")
        assert headers["x-test-id"].startswith("test_the_ids_name_the_test-")

    async def test_the_journal_is_asked_without_blocking_the_server(self) -> None:
        client = await self.connect()
        client.ask(body(), self.inference_lab.fault("error_400_in_sse"))
        (row,) = await self.inference_lab.journal()
        assert row["test"] == self.inference_lab.test
        assert row["state"] == "ended"
        with pytest.raises(ValueError, match="the journal says 400: colour: no such filter"):
            await self.inference_lab.journal(colour="red")

    async def test_a_question_to_the_journal_waits_for_what_never_comes(self) -> None:
        asked = self.inference_lab.journal(test="t1", wait_s=60)
        asked.addErrback(lambda _: None)  # it is cut off with the server
        last = await self.connect()
        last.ask(body("none"), {})
        await last.until(b" 404 ")

    async def test_a_config_that_cannot_be_served_is_an_error(self) -> None:
        for options, reason in (
            (("--config", "none.toml"), r"^none\.toml: no such file or directory$"),
            (("--workers", "3"), r"^--workers and --log-format are for a server in a process of its own"),
            (("--sped", "3"), r"option --sped not recognized"),
            (("--journal", "/none/journal"), r"^--journal .*/none/journal"),
        ):
            with pytest.raises(ServerError, match=reason):
                ReactorLab(reactor, *options)


class OptionsTests(InferenceLabMixin, TestCase):
    inference_lab_options = ("--max-streams", "1")
    timeout = 30

    def setUp(self) -> Deferred[None]:  # noqa: N802 - unittest's name
        super().setUp()
        return self.inference_lab.close()  # twice is as good as once

    async def test_a_lab_may_be_closed_early(self) -> None:
        assert self.inference_lab.url.startswith("http://127.0.0.1:")

    async def test_a_journal_is_written_to_its_file(self) -> None:
        path = self.mktemp()
        lab = ReactorLab(reactor, "--journal", path)
        await lab.close()
        assert Path(path).exists()  # noqa: ASYNC240 - nothing else waits for it
