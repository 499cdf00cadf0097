"""Large bodies: others are served while one is read, and of one whose client has left nothing stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.reference_model.contract import CHAT
from tests.support.rawclient import Connection, ask, exchange, payload, request
from tests.support.server import eventually, start

if TYPE_CHECKING:
    from tests.support.server import Server

WORDS = 300_000
FEW = 40_000
"""Still a large body, of frames that are read one by one."""
MIB = 1 << 20


def echo_of(words: int) -> bytes:
    said = '<<respond:{"text":"' + "a " * words + '"}>>'
    return request("POST", CHAT, payload(CHAT, messages=[{"role": "user", "content": said}]))


ECHO = echo_of(WORDS)


def resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_an_echo_is_held_once_while_it_is_sent_and_not_at_all_once_its_client_has_left(
    one_config: Path,
) -> None:
    server = start(one_config, "--enable-directives")
    try:
        ask(server.address, request("GET", "/health"))
        before = resident_bytes(server)
        for _ in range(4):
            with Connection(server.address) as connection:
                connection.send(ECHO)
                connection.until(b"data: ")
                assert ask(server.address, request("GET", "/health")).status == 200
                # Once the text, and what sockets hold. All frames made at once would be 72 MiB.
                assert eventually(lambda: resident_bytes(server) - before < 2 * len(ECHO) + 24 * MIB)
        assert server.has_let_go()
        assert eventually(lambda: resident_bytes(server) - before < 24 * MIB)
    finally:
        server.stop()


def test_an_echo_that_is_read_beside_the_reactor_has_every_frame(server: Server) -> None:
    got = exchange(server.address, echo_of(FEW))
    assert got.status == 200
    assert len(got.chunked.chunks) == FEW + 4  # role, a last blank, finish, [DONE]
    assert got.body.endswith(b"data: [DONE]\n\n")
