"""Servers shared by the whole session, each checked after every test for tracebacks; no test may hang."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.models import INSTANT, MODEL, PLAIN, SCHEDULER, SHIFTED, SLOW, TEST_SECONDS
from tests.support.server import Server, start
from tests.support.tls import make_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.tls import Certificate


_watched: list[Server] = []


class HangError(Exception):
    """A test took too long; no TimeoutError, since clients under test may handle that."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Turn a hang into a failure, and a traceback in any shared server's log too."""

    def too_long(*_: object) -> None:
        raise HangError(f"{item.nodeid} still runs after {TEST_SECONDS} s")

    marks = [(server, server.log.mark(), server.errors.mark()) for server in _watched]
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TEST_SECONDS)
    try:
        result = yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    for server, log, errors in marks:
        lines = server.log.since(log) + server.errors.since(errors)
        if any("Traceback" in line for line in lines):
            pytest.fail("a traceback in the server's log:\n" + "\n".join(lines), pytrace=False)
        if server.process.poll() is not None:
            pytest.fail(
                f"the server died with {server.process.returncode}:\n" + "\n".join(lines), pytrace=False
            )
    return result


def _serve(config: Path, *more: str) -> Iterator[Server]:
    server = start(config, *more)
    _watched.append(server)
    yield server
    _watched.remove(server)
    server.stop()


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models: lab (instant), slow (a minute between words), and one for each thing a file can say."""
    folder = tmp_path_factory.mktemp("configs")
    files = {
        "lab": f'{MODEL}name = "lab"\naliases = ["org/lab"]\n{INSTANT}',
        "document": f'{MODEL}name = "DeepSeek-V4-Flash"\n{INSTANT}',
        "slow": f'{MODEL}name = "slow"\n{SLOW}',
        "answer": f'{MODEL}name = "nine"\n{INSTANT}[answer]\ntokens = 9\n',
        "thinks": f'{MODEL}name = "thinks"\n{INSTANT}[answer]\ntokens = 4\nreasoning = 3\n',
        "short": f'{MODEL}name = "short"\n{INSTANT}{SCHEDULER}max_model_len = 64\n',
        "quoted": f"{MODEL}name = 'say \"é\" \\ / 😀'\n{INSTANT}",
        "plain": f'{MODEL}name = "{PLAIN}"\n{INSTANT}',
        "shifted": f'{MODEL}name = "{SHIFTED}"\n{INSTANT}',
        "static": f'{MODEL}name = "static"\n{INSTANT}[fault]\nmode = "cut_mid_frame"\nafter_chunks = 5\n'
        "delay_ms = 0\nutf8 = true\n",
        "static-reset": f'{MODEL}name = "static-reset"\n{INSTANT}[fault]\nmode = "reset"\n',
    }
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture(scope="session")
def one_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A single file, given to --config as such."""
    file = tmp_path_factory.mktemp("one") / "lab.toml"
    file.write_text(f'{MODEL}name = "lab"\n{INSTANT}')
    return file


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def server(configs: Path) -> Iterator[Server]:
    """The server most tests talk to: directives on, everything at its default."""
    yield from _serve(configs, "--enable-directives")


@pytest.fixture(scope="session")
def no_directives(configs: Path) -> Iterator[Server]:
    """The same without --enable-directives."""
    yield from _serve(configs)


@pytest.fixture(scope="session")
def impatient(configs: Path) -> Iterator[Server]:
    """One that gives up on readers after a second, and takes bodies of one MiB at most."""
    more = (
        "--enable-directives",
        "--linger-s",
        "1",
        "--reader-timeout-s",
        "1",
        "--max-body-bytes",
        "1048576",
    )
    yield from _serve(configs, *more)


@pytest.fixture(scope="session")
def tls_server(configs: Path, certificate: Certificate) -> Iterator[Server]:
    """The first server behind an ssl: endpoint."""
    yield from _serve(configs, "--endpoint", certificate.endpoint(), "--enable-directives")


@pytest.fixture(scope="session")
def impatient_tls_server(configs: Path, certificate: Certificate) -> Iterator[Server]:
    """One behind an ssl: endpoint that gives up on readers after a second."""
    more = ("--enable-directives", "--linger-s", "1", "--reader-timeout-s", "1")
    yield from _serve(configs, "--endpoint", certificate.endpoint(), *more)
