"""The first frame goes out at once, each further one after the delay, what follows the last without one.

The delay is for ever here, so that no clock is needed: what is due at once comes, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS, GRACEFUL
from tests.support.rawclient import FIN, OPEN, RST, Connection, exchange, fault_request, payload

if TYPE_CHECKING:
    from tests.support.server import Server

FOREVER = "delay_ms=18446744073709551615"
USAGE = {"stream_options": {"include_usage": True}}
NO_TEXT = ("cut_between_frames", "reset", "mid_reasoning", "mid_tool_call")

AT_ONCE = [
    *((CHAT, mode, 0, 1) for mode in NO_TEXT),
    *((COMPLETIONS, mode, 0, 0) for mode in NO_TEXT),
    *((COMPLETIONS, mode, 1, 1) for mode in NO_TEXT),
    (COMPLETIONS, "cut_mid_frame", 0, 1),
    (COMPLETIONS, "cut_mid_frame;utf8=true", 0, 1),
    (COMPLETIONS, "error_envelope_200", 0, 2),
    (COMPLETIONS, "error_400_in_sse", 0, 1),
    (COMPLETIONS, "cancelled_499", 0, 1),
    (COMPLETIONS, "no_usage", 0, 2),
    (COMPLETIONS, "no_done", 0, 1),
]


@pytest.mark.parametrize(("endpoint", "mode", "count", "chunks"), AT_ONCE)
def test_an_ending_follows_its_last_frame_without_a_further_delay(
    server: Server, endpoint: str, mode: str, count: int, chunks: int
) -> None:
    fault = f"{mode};after_chunks={count};{FOREVER}"
    got = exchange(server.address, fault_request(endpoint, fault, Connection="close"), timeout=5)
    assert got.end == (RST if mode == "reset" else FIN)
    assert len(got.chunked.chunks) == chunks
    assert got.chunked.terminated == (mode in GRACEFUL)


HELD = [
    *((CHAT, mode, count) for mode in (*GRACEFUL, *NO_TEXT, "stall", "cut_mid_frame") for count in (1, 5)),
    *((CHAT, mode, 0) for mode in (*GRACEFUL, "cut_mid_frame", "cut_mid_frame;utf8=true")),
    *((COMPLETIONS, mode, 1) for mode in (*GRACEFUL, "cut_mid_frame")),
    *((COMPLETIONS, mode, 2) for mode in NO_TEXT),
]


def test_every_kind_of_further_frame_waits_for_its_delay(server: Server) -> None:
    """Role, content, torn, error, finish alike; all at the same time, to wait for the silence only once."""
    connections = []
    try:
        for endpoint, mode, count in HELD:
            connections.append(Connection(server.address))
            connections[-1].send(fault_request(endpoint, f"{mode};after_chunks={count};{FOREVER}"))
        for connection in connections:
            connection.until(b"\n\n\r\n")
        connections[0].until_end(timeout=0.5)
        seen = [connection.until_end(timeout=0.01) for connection in connections]
    finally:
        for connection in connections:
            connection.sock.close()
    wrong = [
        case for case, got in zip(HELD, seen, strict=True) if (got.end, len(got.chunked.chunks)) != (OPEN, 1)
    ]
    assert wrong == []


def test_a_usage_frame_waits_for_its_delay_too(server: Server) -> None:
    data = fault_request(COMPLETIONS, f"no_done;after_chunks=0;{FOREVER}", payload(COMPLETIONS, **USAGE))
    got = exchange(server.address, data, timeout=0.4)
    assert got.end == OPEN
    assert len(got.chunked.chunks) == 1
