"""A death met with a socket of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.rawclient import OPEN, Connection, Received, complete

if TYPE_CHECKING:
    from tests.support.server import Server


def death(server: Server, data: bytes) -> Received:
    """The whole death; a graceful one or a stall leaves the connection open and is cut off by us."""
    with Connection(server.address) as connection:
        connection.send(data)
        connection.until(b"\r\n\r\n")
        while not complete(got := connection.result(OPEN)):
            end = connection.read()
            if end is not None:
                return connection.result(end)
        return got


def first_answer(server: Server, data: bytes) -> Received:
    """A refusal whole; of a stream no more than its beginning, since it may have no end."""
    with Connection(server.address) as connection:
        connection.send(data)
        got = connection.until(b"\r\n\r\n")
        length = int(got.headers.get("content-length", 0))
        while got.status != 200 and len(got.after_head) < length:
            assert connection.read() is None
            got = connection.result("open")
        return got
