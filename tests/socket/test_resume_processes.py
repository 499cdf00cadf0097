"""One answer from several processes: the client splices over real sockets, and no leg meets the process before it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.oracle import verify
from tests.support.clients.families import FAMILIES
from tests.support.clients.resume_client import CHAT, COMPLETIONS, DeathError, Reply, ResumeClient
from tests.support.lab import REASONING, WORDS, files, write
from tests.support.rawclient import OPEN, Connection, complete, request
from tests.support.server import CONSOLE, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.server import Server

SILENCE_S = 0.3
CHAIN = (
    "cut_between_frames;after_chunks=5;delay_ms=1, cut_mid_frame;after_chunks=4;delay_ms=1, "
    "stall;after_chunks=3;delay_ms=1, reset;after_chunks=2;delay_ms=1"
)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two processes that share nothing but their config files."""
    config = write(tmp_path_factory.mktemp("replicas"), files())
    servers = [start(config, "--enable-directives", **how) for how in ({}, {"how": CONSOLE})]
    yield servers
    for server in servers:
        server.stop()
    lines = [line for server in servers for line in server.log.since() + server.errors.since()]
    assert not [line for line in lines if "Traceback" in line]


class RoundRobin:
    """A transport that asks one process after the other."""

    def __init__(self, servers: list[Server]) -> None:
        self.completions = 0
        self._servers = servers
        self._turn = count()

    def __call__(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.completions += path == COMPLETIONS
        server = self._servers[next(self._turn) % len(self._servers)]
        with Connection(server.address, timeout=SILENCE_S) as connection:
            connection.send(request("POST", path, body, headers=dict(headers)))
            end = None
            while end is None and not (connection.received and complete(connection.result(OPEN))):
                end = connection.read()
            got = connection.result(end or OPEN)
        return Reply(got.status, got.headers["content-type"], _blocks(got.body, end))


def _blocks(body: bytes, end: str | None) -> Iterator[bytes]:
    yield body
    if end is not None:
        raise DeathError(end)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", files())
def test_legs_answered_by_different_processes_make_one_answer(
    replicas: list[Server], model: str, path: str
) -> None:
    thinking = model.endswith("-thinks")
    transport = RoundRobin(replicas)
    client = ResumeClient(transport, FAMILIES[model.partition("-")[0]], thinking)
    text = f"hello <<fault:{CHAIN}>>"
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    data = b"".join(client.answer(path, body))
    hidden = 2 if (model, path) == ("dsv4-thinks", CHAT) else 0
    verdict = verify(data, tokens=WORDS - REASONING * thinking, ended="clean", hidden_tokens=hidden)
    assert (verdict.outcome, verdict.findings) == ("whole", ())
    assert transport.completions == 4 + (path == COMPLETIONS)
