"""Every mode meets every client: what is asked for, what each makes of it, and the table that says so.

docs/clients.md is recorded from here by docs/clients.py.
"""

from __future__ import annotations

import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from inference_lab.core.faults.death import HEALTHY
from inference_lab.core.faults.leg_keys import leg_key
from inference_lab.core.faults.modes import MODES, OK
from inference_lab.web.turn import FAULT_HEADER
from tests.support.clients.libraries import CHAT, CLIENTS, COMPLETIONS, Ask, observe
from tests.support.clients.observation import CLEAN
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from inference_lab.core.faults.death import Death
    from tests.support.clients.observation import Observation

FILE: Final = ROOT / "docs" / "clients.md"
CONFIG: Final = 'model = "llama-3.1-8b-instruct"\nname = "lab"\n[latency]\nttft_ms = 0\nitl_ms = 0\n'
TOKENS: Final = 6
"""Words of a whole answer, each a frame."""

_ENDPOINTS: Final = {"chat": CHAT, "completions": COMPLETIONS}
SAID: Final = "dx0000 dx0001 dx0002 dx0003"
"""The words that a later leg's prompt holds already."""
_USER: Final = {"role": "user", "content": "hello"}
_PROMPT: Final = "<|user|>hello<|end|><|assistant|>"
_FIRST_LEG: Final = {"chat": {"messages": [_USER]}, "completions": {"prompt": _PROMPT}}
_LATER_LEG: Final = {
    "chat": {"messages": [_USER, {"role": "assistant", "content": SAID}]},
    "completions": {"prompt": _PROMPT + SAID},
}
_SHORT_S, _LONG_S = 0.4, 20.0
_BEAT_MS, _BEATS = 40, 20
_GOOD: Final = (CLEAN, "exit 0")
# A request on a connection that the server has just reset fails while it is written or while its answer is awaited.
_RACES: Final = {
    "httpx.ReadError": "httpx.TransportError",
    "httpx.WriteError": "httpx.TransportError",
    "httpx.RemoteProtocolError": "httpx.TransportError",
    "aiohttp.ClientOSError": "aiohttp.ClientConnectionError",
    "aiohttp.ClientConnectionResetError": "aiohttp.ClientConnectionError",
    "aiohttp.ServerDisconnectedError": "aiohttp.ClientConnectionError",
}
_BLOCK: Final = re.compile(r"(?P<open><!-- recorded -->\n).*?(?P<close><!-- /recorded -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the clients observed of one mode on one endpoint."""

    mode: str
    observed: Mapping[str, Observation]

    @property
    def death(self) -> Death:
        """The mode's."""
        return MODES[self.mode].death

    def cells(self) -> list[str]:
        """What the stream brought, as curl's raw bytes show it, then each client's cell."""
        raw = self.observed["curl"]
        seen = raw.seen()
        if leg_key(self.death) is not None:
            seen += f", from word {min(raw.words(), default=None)} on"
        return [seen, *(self._cell(client) for client in CLIENTS)]

    def _cell(self, client: str) -> str:
        """How the answer ended, and what was seen of it if that is not all there was."""
        observation = self.observed[client]
        cell = observation.end
        if cell in _GOOD and not is_whole(self.death):
            cell = f"**{cell}**"
        elif cell not in _GOOD and observation.finish is not None:
            cell = f"*{cell}*"
        if self.death.heartbeat != HEALTHY.heartbeat and observation.seconds >= _BEATS * _BEAT_MS / 1000:
            cell += " after the last beat"
        shows_done = client != "openai"
        seen, there = (of.seen(done=shows_done) for of in (observation, self.observed["curl"]))
        return cell if seen == there else f"{cell}, saw {seen}"


def is_whole(death: Death) -> bool:
    """Whether the answer of a stream is complete by its own account, and truly so."""
    told = death.finish is None and leg_key(death) is None
    return told and (death.status, death.answer_as, death.at) == (200, "asked", "frames")


def meet(url: str, mode: str, endpoint: str, *more: str) -> Meeting:
    """All clients at once, each with its own connection; `more` settings go with the mode."""
    death = MODES[mode].death
    settings = [*more, *["delay_ms=2"] * (mode != OK)]
    if death.heartbeat != HEALTHY.heartbeat:
        settings.append(f"heartbeat_ms={_BEAT_MS}")
        # Heartbeats keep a limit on silence from ever being reached: they stop, or the clients would not.
        settings += [f"beats={_BEATS}"] * (death.close == "hang")
    if (
        death.rest_delay_ms is not None
    ):  # a crawl that a test can wait for, in an answer that is long enough for it
        settings += ["rest_delay_ms=3", "after_chunks=3"]
    ask = Ask(
        url,
        _ENDPOINTS[endpoint],
        {FAULT_HEADER.decode(): ";".join([mode, *settings])},
        {
            "model": "lab",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": TOKENS,
            **(_FIRST_LEG if leg_key(death) is None else _LATER_LEG)[endpoint],
        },
        _SHORT_S if death.close == "hang" else _LONG_S,
    )
    stale = death.close == "stale"
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        results = pool.map(lambda client: observe(client, ask, 1 + stale), CLIENTS)
        observed = dict(zip(CLIENTS, results, strict=True))
    if stale:
        for observation in observed.values():
            observation.end = _RACES.get(observation.end, observation.end)
    return Meeting(mode, observed)


def meet_everywhere(url: str, mode: str) -> dict[str, Meeting]:
    """A mode's meeting on each endpoint."""
    return {endpoint: meet(url, mode, endpoint) for endpoint in _ENDPOINTS}


def rows(mode: str, meetings: Mapping[str, Meeting]) -> list[str]:
    """A mode's row of the table, or one for each endpoint if they differ."""
    met = {endpoint: meeting.cells() for endpoint, meeting in meetings.items()}
    if met["chat"] == met["completions"]:
        return [row([f"`{mode}`", *met["chat"]])]
    return [row([f"`{mode}` on {endpoint}", *cells]) for endpoint, cells in met.items()]


def written(text: str) -> dict[str, list[str]]:
    """The rows of the document, by mode."""
    block = _BLOCK.search(text)
    found: dict[str, list[str]] = {}
    for line in block.group().splitlines() if block else ():
        if mode := re.match(r"\| `(\w+)`", line):
            found.setdefault(mode[1], []).append(line)
    return found


def recorded(url: str, text: str) -> str:
    """The document with its table recorded anew."""
    block = "".join(f"{line}\n" for line in (f"Recorded with {_versions()}.", "", *_table(url)))
    return _BLOCK.sub(lambda found: found["open"] + block + found["close"], text)


def _versions() -> str:
    """What took part; only said, since the table should be the same with any that pyproject.toml admits."""
    curl = (
        subprocess.run(["curl", "-q", "--version"], capture_output=True, check=True)
        .stdout.decode()
        .split()[1]
    )
    libraries = [f"{client} {version(client)}" for client in CLIENTS if client != "curl"]
    return f"{', '.join(libraries)}, curl {curl} and Python {platform.python_version()}"


def _table(url: str) -> Iterator[str]:
    head = ["mode", "the stream brought", *CLIENTS]
    yield row(head)
    yield row(["---"] * len(head))
    for mode in MODES:
        yield from rows(mode, meet_everywhere(url, mode))


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
