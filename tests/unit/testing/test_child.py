"""The lab's process: it ends with the block, and with whoever started it, however that ends."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from inference_lab.testing import ServerError, running_lab
from tests.support.server import eventually
from tests.support.tls import make_certificate

PARENT = """
import sys, time
from inference_lab.testing import running_lab
with running_lab() as lab:
    print(lab.url, flush=True)
    {then}
"""


def is_up(url: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def children() -> set[int]:
    """The labs of this process, whatever else it has started."""
    me = os.getpid()
    pids = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return {
        int(pid)
        for pid in pids
        if b"inference_lab.testing.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


def serve_and_fail() -> None:
    with running_lab("--speed", "2") as lab:
        assert is_up(lab.url)
        (pid,) = children()
        os.kill(pid, signal.SIGINT)  # what Ctrl-C also sends it; the tests may still have something to ask
        assert is_up(lab.url)
        raise ZeroDivisionError(lab.url)


def test_it_serves_as_long_as_the_block_and_leaves_no_process_however_that_ends() -> None:
    before = children()
    with pytest.raises(ZeroDivisionError) as caught:
        serve_and_fail()
    assert not is_up(str(caught.value))
    assert children() == before


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 puts the directory in front whatever it is told"
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_module_of_the_tests_folder_is_not_taken_for_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    (tmp_path / "secrets.py").write_text("raise RuntimeError('somebody else is meant')\n")
    monkeypatch.chdir(tmp_path)
    with running_lab("--workers", workers) as lab:
        assert is_up(lab.url)


def test_it_serves_on_any_endpoint_and_its_journal_is_asked_for_where_that_is(tmp_path: Path) -> None:
    for endpoint in ("tcp:0:interface=127.0.0.1", make_certificate(tmp_path).endpoint()):
        with running_lab("--endpoint", endpoint) as lab:
            assert lab.url.startswith("https:" if endpoint.startswith("ssl") else "http:")
            assert lab.journal(since=0, wait_s=0) == []
    with (
        running_lab(f"--endpoint=unix:{tmp_path / 'lab'}") as lab,
        pytest.raises(ValueError, match="over TCP"),
    ):
        lab.journal(since=0)


def test_what_keeps_it_from_starting_is_the_errors_message() -> None:
    before = children()
    with pytest.raises(ServerError) as caught, running_lab("--config", "none.toml"):
        pass
    assert str(caught.value) == "inference-lab: none.toml: no such file or directory"
    assert children() == before


def test_it_does_not_outlive_a_parent_that_is_killed() -> None:
    command = [sys.executable, "-c", PARENT.format(then="time.sleep(60)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert is_up(url)
        parent.kill()
    assert eventually(lambda: not is_up(url))
