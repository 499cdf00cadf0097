"""nginx in front of the server, as Debian ships it: what its client gets of every basic mode, judged by `verify`.

The table in docs/clients.md is recorded from here by `docs/clients.py --nginx`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from inference_lab.core.oracle import Ended, Verdict, verify
from tests.reference_model.contract import CHAT, MODES
from tests.support.clients import meetings
from tests.support.clients.meetings import is_whole, row
from tests.support.rawclient import Received, exchange, fault_request, payload
from tests.support.server import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NGINX: Final = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))
"""The program; None where there is none."""
CONFIG: Final = meetings.CONFIG

WAYS: Final = {"stock": "", "`proxy_http_version 1.1`": "proxy_http_version 1.1;"}
"""What stands beside `proxy_pass`, under what the table calls it."""

# One process that its pid ends. It listens on a Unix socket, so that no port has to be found for it; everything that it
# writes lies in its own folder. A stall is shown within a second, not the minute of its default.
_CONF: Final = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log info;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    proxy_read_timeout 1s;
    upstream lab {{ {servers} }}
    server {{
        listen unix:{socket};
        location / {{ proxy_pass http://lab; {more} }}
    }}
}}
"""
_ERROR: Final = re.compile(r"\[(?:error|crit|alert|emerg)\].*")
_REASON: Final = re.compile(r"\((\d+: [^)]+)\) while reading|(prematurely closed)")
_BLOCK: Final = re.compile(r"(?P<open><!-- nginx -->\n).*?(?P<close><!-- /nginx -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running nginx."""

    folder: Path

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self.folder / "socket")

    def errors(self) -> list[str]:
        """The errors in its log so far."""
        return _ERROR.findall((self.folder / "error.log").read_text())

    def ask(self, directive: str, **headers: str) -> Received:
        """The answer to a chat that is to die so."""
        body = payload(CHAT, max_tokens=meetings.TOKENS, stream_options={"include_usage": True})
        return exchange(self.address, fault_request(CHAT, directive, body, Connection="close", **headers))


@contextmanager
def nginx(urls: Sequence[str], more: str = "") -> Iterator[Proxy]:
    """nginx before a server on each of some URLs; `more` stands beside its `proxy_pass`."""
    assert NGINX is not None
    with tempfile.TemporaryDirectory() as name:
        proxy = Proxy(Path(name))
        servers = " ".join(f"server {urlsplit(url).netloc};" for url in urls)
        conf = proxy.folder / "nginx.conf"
        conf.write_text(_CONF.format(servers=servers, socket=proxy.address, more=more))
        said = proxy.folder / "said"
        with said.open("wb") as out:
            process = subprocess.Popen([NGINX, "-p", name, "-c", str(conf)], stdout=out, stderr=out)
        try:
            listens = eventually(lambda: _takes(proxy.address) or process.poll() is not None)
            assert listens, "nginx does not listen"
            assert process.poll() is None, said.read_text()
            yield proxy
        finally:
            process.terminate()
            process.wait(10)


def _takes(address: str) -> bool:
    """Whether it takes connections: the socket's file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


@dataclass(frozen=True, slots=True)
class Passed:
    """What nginx's client got of a mode, and what nginx's log says of it."""

    mode: str
    got: Received
    errors: list[str]

    @property
    def ends(self) -> bool:
        """Whether the client has no reason to doubt that it is over: it had the last chunk."""
        return self.got.chunked.terminated

    @property
    def verdict(self) -> Verdict:
        """The body, judged as it ended."""
        ended: Ended = "clean" if self.ends else "broken"
        return verify([self.got.body], ended=ended)

    def cell(self) -> str:
        """The end, the words and the verdict, and why nginx thinks that it was cut."""
        verdict = self.verdict
        end = "cut"
        if self.ends:
            end = "ends" if is_whole(meetings.MODES[self.mode].death) else "**ends**"
        kinds = ", ".join(dict.fromkeys(f"`{finding.kind.value}`" for finding in verdict.findings))
        told = f"**wrong**: {kinds}" if kinds else verdict.outcome
        reasons = [first or last for line in self.errors for first, last in _REASON.findall(line)]
        logged = "".join(f"; logged: {reason}" for reason in reasons)
        return f"{end}: {sum(verdict.words.values())} words, {told}{logged}"


def passed_on(proxy: Proxy, mode: str) -> Passed:
    """What comes of a mode."""
    before = len(proxy.errors())
    got = proxy.ask(f"{mode};delay_ms=2")
    return Passed(mode, got, proxy.errors()[before:])


def met(url: str) -> dict[str, list[Passed]]:
    """Every basic mode, in each way."""
    found: dict[str, list[Passed]] = {mode: [] for mode in MODES}
    for more in WAYS.values():
        with nginx([url], more) as proxy:
            for mode in MODES:
                found[mode].append(passed_on(proxy, mode))
    return found


def rows(found: dict[str, list[Passed]]) -> Iterator[str]:
    """The rows of the table."""
    for mode, ways in found.items():
        yield row([f"`{mode}`", *(passed.cell() for passed in ways)])


def recorded(url: str, text: str) -> str:
    """The document with its table recorded anew."""
    head = ["mode", *WAYS]
    lines = [f"Recorded with {_version()}.", "", row(head), row(["---"] * len(head)), *rows(met(url))]
    block = "".join(f"{line}\n" for line in lines)
    return _BLOCK.sub(lambda block_there: block_there["open"] + block + block_there["close"], text)


def written(text: str) -> list[str]:
    """The rows of the document."""
    block = _BLOCK.search(text)
    return re.findall(r"^\| `.*", block.group(), re.MULTILINE) if block else []


def _version() -> str:
    """What took part; only said, since the table should be the same with any that Debian ships."""
    assert NGINX is not None
    said = subprocess.run([NGINX, "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\d+\.\d+)", said)
    return f"nginx {found[1]}" if found else "nginx"
