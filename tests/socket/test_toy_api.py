"""An API that a test alone registers: it dies as chat does wherever it has the parts for it, and is judged alike."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.apis.choices_reader import CHOICES
from inference_lab.core.faults.modes import MODES
from inference_lab.core.oracle import verify
from tests.reference_model.contract import CHAT
from tests.support import toy_api
from tests.support.axes_values import PAIRED, changes_of, directive_of, settings_for
from tests.support.rawclient import OPEN, Connection, Received, ask, complete, fault_request, request
from tests.support.server import start
from tests.support.toy_api import TOY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.apis.reading import FrameReader
    from tests.support.server import Server

BODIES: dict[str, dict[str, Any]] = {
    TOY.path: {"model": "lab", "stream": True, "prompt": "hello"},
    CHAT: {"model": "lab", "stream": True, "messages": [{"role": "user", "content": "hello"}]},
}
ASKED = {"max_tokens": 6, "stream_options": {"include_usage": True}}
LACKS = re.compile("is for an API with|is no spelling of toy|has no place for it")
READS = 300
"""Of a stream that never ends."""
SHORT = {"2500": "30", "9500": "95", "400": "10", "2000": "20"}
"""Silences and heartbeats, of which the order counts here and not the time."""


@pytest.fixture(scope="module")
def toy_server(configs: Path) -> Iterator[Server]:
    server = start(
        configs, "--enable-directives", how=(sys.executable, "-m", "tests.support.toy_api", "serve")
    )
    yield server
    server.stop()


def died(server: Server, path: str, directive: str) -> Received:
    with Connection(server.address, timeout=5) as connection:
        connection.send(fault_request(path, directive, json.dumps(BODIES[path] | ASKED).encode()))
        for _ in range(READS):
            end = connection.read()
            if end is not None or is_whole(connection.result(OPEN)):
                break
        return connection.result(end or OPEN)


def is_whole(got: Received) -> bool:
    try:
        return b"\r\n\r\n" in got.raw and complete(got)
    except ValueError:  # broken chunks
        return False


def directives() -> list[str]:
    values = [settings_for(key, value) for key in PAIRED for value in changes_of(key)]
    short = [{key: SHORT.get(word, word) for key, word in settings.items()} for settings in values]
    modes = [f"{mode};delay_ms=0" + ";heartbeat_ms=10" * (mode == "heartbeat_stall") for mode in MODES]
    return modes + [directive_of({"delay_ms": "0", **settings}.items()) for settings in short]


def judged(got: Received, reader: FrameReader) -> str:
    try:
        body = got.body
    except ValueError:
        body = got.after_head
    return verify(body, reader=reader).outcome


def test_it_dies_as_chat_does_or_is_refused_for_what_it_lacks(toy_server: Server) -> None:
    asked = [(path, directive) for directive in directives() for path in BODIES]
    with ThreadPoolExecutor(64) as pool:
        got = dict(zip(asked, pool.map(lambda one: died(toy_server, *one), asked), strict=True))
    refused = 0
    for directive in directives():
        toy, chat = got[TOY.path, directive], got[CHAT, directive]
        if toy.status == 400 != chat.status:
            assert LACKS.search(toy.error["message"]), directive
            refused += 1
            continue
        assert (toy.status, toy.end) == (chat.status, chat.end), directive
        assert judged(toy, TOY.reader) == judged(chat, CHOICES), directive
    assert len(directives()) - refused > 150, "most deaths are for every API"


@pytest.mark.parametrize(
    ("directive", "numbers"),
    [
        ("ok;after_chunks=2", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("ok;after_chunks=2;sequence=dup:2", [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9]),
        ("ok;after_chunks=2;then=rest;sequence=swap:2", [1, 2, 3, 4, 5, 7, 6, 8, 9, 10, 11, 12, 13]),
        ("ok;after_chunks=2;done=false", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("ok;at=role", [1, 2]),
    ],
)
def test_frames_are_numbered_as_they_are_written(
    toy_server: Server, directive: str, numbers: list[int]
) -> None:
    got = died(toy_server, TOY.path, f"{directive};delay_ms=0")
    assert [int(number) for number in re.findall(rb'"n":([0-9]+)', got.body)] == numbers


def test_healthy_answers_are_whole_streamed_or_not(toy_server: Server) -> None:
    for stream in (True, False):
        body = json.dumps(BODIES[TOY.path] | ASKED | {"stream": stream}).encode()
        got = ask(toy_server.address, request("POST", TOY.path, body))
        verdict = verify(got.body, tokens=6, ended="clean", reader=TOY.reader)
        assert (verdict.outcome, verdict.findings) == ("whole", ())


def test_an_api_is_little_to_write() -> None:
    assert len(Path(toy_api.__file__).read_text().splitlines()) < 150
