"""What the options do to the wire, with the console script; all other servers are told theirs through twistd."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.service.settings import settings_from
from inference_lab.tap import Options
from tests.reference_model.contract import CHAT
from tests.support.rawclient import OPEN, Connection, fault_request
from tests.support.server import CONSOLE, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import Server
    from tests.support.tls import Certificate

GRACE_MS = 1500


@pytest.fixture(scope="module")
def graceful(one_config: Path) -> Iterator[Server]:
    """A long flush grace, and an engine a thousand times as fast."""
    more = ("--enable-directives", "--flush-grace-ms", str(GRACE_MS), "--speed", "1000")
    server = start(one_config, *more, how=CONSOLE)
    yield server
    server.stop()


@pytest.mark.parametrize("fault", ["reset", "cut_between_frames"])
def test_an_abrupt_death_waits_for_the_flush_grace_even_if_all_is_acknowledged(
    graceful: Server, fault: str
) -> None:
    with Connection(graceful.address) as connection:
        connection.send(fault_request(CHAT, fault + ";delay_ms=0"))
        connection.until(b"0002")
        last = time.monotonic()
        assert connection.until_end().end != OPEN
        assert time.monotonic() - last > GRACE_MS / 1000 - 0.1


def test_a_graceful_death_does_not_wait(graceful: Server) -> None:
    """Bounded from above only by the grace itself, which is long here."""
    with Connection(graceful.address) as connection:
        connection.send(fault_request(CHAT, "cancelled_499;delay_ms=0"))
        start_of_it = time.monotonic()
        assert connection.response().chunked.terminated
        assert time.monotonic() - start_of_it < GRACE_MS / 1000


def test_the_speed_of_the_engine_does_not_change_the_delay_of_a_fault(graceful: Server) -> None:
    with Connection(graceful.address) as connection:
        connection.send(fault_request(CHAT, "stall;after_chunks=2;delay_ms=60000"))
        connection.until(b"assistant")
        assert connection.until_end(timeout=0.4).end == OPEN
        assert len(connection.result(OPEN).chunked.chunks) == 1


@pytest.mark.parametrize("kind", ["port", "tcp", "ssl"])
def test_only_a_server_with_tls_loads_what_tls_needs(
    one_config: Path, certificate: Certificate, kind: str
) -> None:
    endpoints = {"port": [], "tcp": ["tcp:0:interface=127.0.0.1"], "ssl": [certificate.endpoint()]}
    more = [part for endpoint in endpoints[kind] for part in ("--endpoint", endpoint)]
    server = start(one_config, *more, how=CONSOLE)
    loaded = Path(f"/proc/{server.pid}/maps").read_text()
    server.stop()
    assert ("/cryptography/" in loaded) is (kind == "ssl")
    assert "/msgspec/" in loaded


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("unix:/run/lab", "unix:/run/lab:mode=600"),
        ("unix:address=/run/lab", "unix:address=/run/lab:mode=600"),
        (r"unix:/run/a\:mode=666", r"unix:/run/a\:mode=666:mode=600"),
        ("unix:/run/lab:backlog=5", "unix:/run/lab:backlog=5:mode=600"),
        ("unix:/run/lab:mode=666", "unix:/run/lab:mode=666"),
        ("unix:/run/lab:660", "unix:/run/lab:660"),
        ("tcp:80", "tcp:80"),
        ("unix", "unix"),
    ],
)
def test_a_unix_socket_is_for_its_user_alone_unless_the_endpoint_says_otherwise(given: str, own: str) -> None:
    options: Any = Options()
    options.parseOptions(["--endpoint", given])
    assert settings_from(options).endpoints == (own,)
