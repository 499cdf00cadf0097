"""One server for all meetings, checked at the end for tracebacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients.meetings import CONFIG
from tests.support.server import start

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = tmp_path_factory.mktemp("clients") / "lab.toml"
    config.write_text(CONFIG)
    server = start(config, "--enable-directives")
    yield server.url
    server.stop()
    lines = [*server.log.since(), *server.errors.since()]
    assert not any("Traceback" in line for line in lines), "\n".join(lines)
