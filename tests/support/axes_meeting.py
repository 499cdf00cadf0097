"""A directive on a real socket: the bytes behind the head are those of the model, and the ending is what it says.

The bytes are worked out in tests/reference_model/model.py; endings are told by FIN, errno or a second request.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from tests.reference_model.contract import CHAT, HELLO, Stream, tag_of
from tests.reference_model.frames import Answer
from tests.reference_model.model import Response, respond
from tests.support.rawclient import FIN, OPEN, RST, Connection, fault_request, payload, request

if TYPE_CHECKING:
    from tests.support.server import Server

CREATED = 1_700_000_000
WORDS = 10
HEALTH = request("GET", "/health")
SILENCE_S = 0.15
NO_ID = "none"
MEETINGS = count()
CHUNK_EDGE = re.compile(rb"\r\n[0-9a-f]+\r\n")


def answer_to(endpoint: str, wire: bytes, *, usage: bool = True) -> Answer:
    """The healthy answer, with the id that the response gave itself."""
    prefix = "chatcmpl-" if endpoint == CHAT else "cmpl-"
    pattern = re.compile(rb'"id": ?"(%b[0-9a-f]{24})"' % prefix.encode())
    found = pattern.search(wire) or pattern.search(CHUNK_EDGE.sub(b"", wire))
    ident = found[1].decode() if found else NO_ID
    stream = Stream(endpoint, ident, CREATED, "lab", tag_of(HELLO[endpoint]))
    return Answer(stream, WORDS, "length", len(HELLO[endpoint]), usage)


def asked(endpoint: str, directive: str, **more: object) -> bytes:
    body = payload(endpoint, max_tokens=WORDS, stream_options={"include_usage": True}, **more)
    own = {"x-test-id": f"meeting-{next(MEETINGS)}"}  # `times` counts for each test
    return fault_request(endpoint, directive.encode().decode("latin-1"), body, **own)


def receive(connection: Connection, endpoint: str, directive: str) -> tuple[Response, bytes]:
    """What comes until the model's bytes are there, and what the model says of it."""
    answer = answer_to(endpoint, b"")
    wanted = respond(directive, answer)
    while True:
        if (wanted.status or connection.received) and b"\r\n\r\n" in connection.received:
            wire = connection.result(OPEN).after_head
            if answer.stream.ident == NO_ID:
                answer = answer_to(endpoint, wire)
                wanted = respond(directive, answer)
            if len(wire) >= len(wanted.wire):
                return wanted, wire
        elif not wanted.status:
            return wanted, b""
        end = connection.read()
        assert end is None, f"{end} after {bytes(connection.received)!r}, wanted {wanted.wire!r}"


def check_head(connection: Connection, wanted: Response) -> None:
    got = connection.result(OPEN)
    assert got.status == wanted.status
    assert {name: got.headers.get(name) for name, _ in wanted.headers} == dict(wanted.headers)


def check_end(connection: Connection, wanted: Response, directive: str) -> None:
    """The ending, by what only this one shows."""
    tls = connection.tls
    size = len(connection.received)
    if wanted.infinite_pieces:
        connection.until(wanted.wire[-7:], after=size)
    elif wanted.end in {"fin", "rst"}:
        got = connection.until_end()
        assert got.end == {"fin": FIN, "rst": RST}[wanted.end]
        assert len(got.raw) == size, "bytes behind the last"
        assert got.close_notify == (tls and wanted.end == "fin" and "close=tls_raw" not in directive)
    elif wanted.end == "open":
        got = connection.until_end(timeout=SILENCE_S)
        assert (got.end, len(got.raw)) == (OPEN, size)
    elif wanted.end == "idle":
        assert connection.until_end().end == FIN
        assert len(connection.received) == size
    elif wanted.end == "stale":
        connection.send(HEALTH)
        got = connection.until_end()
        assert (got.end, len(got.raw)) == (RST, size)
    elif "length=" in directive:  # the connection is in no state to say
        return
    else:
        connection.send(HEALTH)
        assert connection.response().json == {"status": "ok"}


def meet(server: Server, endpoint: str, *directives: str, tls: bool = False, stream: bool = True) -> None:
    """All of them at once, each on a connection of its own, so that their waits pass together."""
    with ExitStack() as stack:
        connections = []
        for directive in directives:
            connection = stack.enter_context(Connection(server.address, tls=tls))
            connection.send(asked(endpoint, directive, stream=stream))
            connections.append(connection)
        for connection, directive in zip(connections, directives, strict=True):
            try:
                check(connection, endpoint, directive)
            except AssertionError as failure:
                raise AssertionError(f"{directive}: {failure}") from failure
            connection.sock.close()


def check(connection: Connection, endpoint: str, directive: str) -> None:
    """The response to a directive that was asked for."""
    wanted, wire = receive(connection, endpoint, directive)
    assert wire[: len(wanted.wire)] == wanted.wire
    if not wanted.infinite_pieces:
        assert len(wire) == len(wanted.wire)
    if wanted.status:
        check_head(connection, wanted)
    check_end(connection, wanted, directive)
