"""The dialects on a real socket: the document's frames, each a chunk, behind the document's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.dialect_blocks import ASKED, EACH, LITERAL, PATHS, literal
from tests.support.rawclient import ask, fault_request, payload

if TYPE_CHECKING:
    from tests.support.server import Server


@pytest.mark.parametrize(("name", "endpoint"), EACH)
def test_a_dialect_on_the_wire(server: Server, name: str, endpoint: str) -> None:
    path = PATHS[endpoint]
    body = payload(path, stream_options={"include_usage": True}, **ASKED[endpoint])
    got = ask(server.address, fault_request(path, f"ok;after_chunks=2;delay_ms=0;dialect={name}", body))
    text = literal(got, "lab")
    assert text == LITERAL[name, endpoint]
    assert got.chunked.terminated
    blocks = text.split("\n\n")[1:]
    assert len(got.chunked.chunks) == len([block for block in blocks if block])
