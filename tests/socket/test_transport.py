"""What a connection of ours has left unsent when it closes behind its last bytes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.pollreactor import PollReactor
from twisted.internet.protocol import Factory, Protocol

from inference_lab.wire.transport import forget_unsent, install_transport, unsent_now, watch_unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = b"x" * 30_000  # more than the client's buffer holds, less than ours


@pytest.fixture
def close() -> Iterator[Callable[..., tuple[socket.socket, Any]]]:
    """Serves a client that does not read yet, and closes behind the last byte: the client, the transport that is gone.

    On a reactor of its own, turned by hand: pytest-twisted may be running the other.
    """
    reactor: Any = PollReactor()
    with ExitStack() as stack:

        def close(*, watched: bool) -> tuple[socket.socket, Any]:
            served = Protocol()
            factory = Factory()
            factory.buildProtocol = lambda _: served  # type: ignore[method-assign]
            port: Any = reactor.listenTCP(0, factory, interface="127.0.0.1")
            install_transport(port)
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(10)
            client.connect(("127.0.0.1", port.getHost().port))
            while not served.connected:
                reactor.iterate(0.1)
            transport: Any = served.transport
            stack.callback(
                forget_unsent, transport
            )  # or its socket is left to the collector, in some other test
            transport.write(BODY)
            if watched:
                watch_unsent(transport)
            transport.loseConnection()
            port.stopListening()
            while transport.loss is None or port.connected:
                reactor.iterate(0.1)
            return client, transport

        yield close
    reactor.removeAll()
    reactor.waker.connectionLost(None)


def read_all(client: socket.socket) -> bytes:
    """To the FIN, which the client's kernel acknowledges at once."""
    read = b"".join(iter(lambda: client.recv(65536), b""))
    client.close()
    return read


def test_what_the_client_reads_later_is_not_unsent_where_somebody_watches(close: Any) -> None:
    client, transport = close(watched=True)
    assert transport.loss.unsent > 0
    assert read_all(client) == BODY
    assert (unsent_now(transport), unsent_now(transport)) == (0, 0)


def test_what_the_client_never_reads_stays_unsent(close: Any) -> None:
    client, transport = close(watched=True)
    client.close()  # with bytes unread, which is a reset
    assert unsent_now(transport) > 0


def test_nothing_is_kept_where_nobody_watches(close: Any) -> None:
    client, transport = close(watched=False)
    assert read_all(client) == BODY
    assert unsent_now(transport) == transport.loss.unsent > 0
