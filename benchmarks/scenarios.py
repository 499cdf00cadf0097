"""What is measured, and on which servers."""

from __future__ import annotations

import http.client
import json
import pstats
import shlex
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec
from child import OURS, Child
from loadgen import Load, certificate, figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen import LoadGenerator

ROOT: Final = Path(__file__).parent.parent
_INSTANT: Final = 'model = "llama-3.1-8b-instruct"\nname = "lab"\n[latency]\nttft_ms = 0\nitl_ms = 0\n'
_SIMULATED: Final = {"engine": "llama-3.1-8b-instruct", "flash": "deepseek-v4-flash"}
"""Models that the engine answers, by their names: a dense one, and one whose steps are short and dear to price."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """So many streams of answers with so many content frames, `delay_ms` apart.

    `model` is who answers where the engine does. `journal` says whether a file is written, for a death that the model's
    own file asks for; None: one that the request asks for, and the journal in memory that goes with directives.
    """

    name: str
    kind: Literal["frames", "engine", "stalled", "start"] = "frames"
    model: str = "engine"
    streams: int = 1
    frames: int = 100
    delay_ms: int = 10
    seconds: float = 5.0
    spread_s: float = 1.0
    tls: bool = False
    quick: bool = False
    journal: bool | None = None

    @property
    def fault(self) -> str:
        """What the frames are asked for with."""
        return f"no_done;after_chunks={self.frames};delay_ms={self.delay_ms}"

    @property
    def message(self) -> str:
        """The request's last message, by which a peer knows what to answer."""
        return f"frames={self.frames} delay={self.delay_ms}"

    def body(self) -> str:
        """The request's body."""
        return json.dumps(
            {
                "model": self.model if self.kind == "engine" else "lab",
                "stream": True,
                "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": self.message}],
                "max_tokens": self.frames,
            }
        )

    def load(self, *, quick: bool) -> Load:
        """What the load generator is told."""
        by_header = self.kind != "engine" and self.journal is None
        return Load(
            streams=self.streams,
            body=self.body(),
            headers=(f"x-inference-lab-fault: {self.fault}",) if by_header else (),
            seconds=1.0 if quick else self.seconds,
            warm_up_s=self.spread_s + 0.2,
            spread_s=self.spread_s,
            delay_ms=0 if self.kind == "engine" else self.delay_ms,
            tls=self.tls,
        )


SCENARIOS: Final = (
    Scenario(name="paced-1", quick=True),
    Scenario(name="paced-100", streams=100, quick=True),
    Scenario(name="paced-400", streams=400, quick=True),
    Scenario(name="paced-500", streams=500),
    Scenario(name="paced-400-long", streams=400, frames=500, spread_s=5.0),
    Scenario(name="paced-1000", streams=1000, spread_s=2.0),
    Scenario(name="paced-1000-no-journal", streams=1000, spread_s=2.0, journal=False),
    Scenario(name="paced-1000-journal", streams=1000, spread_s=2.0, journal=True),
    # Ten seconds a stream: begun over ten seconds, so that as many begin and end in any second.
    Scenario(
        name="long-1000-no-journal", streams=1000, frames=1000, spread_s=10.0, seconds=20.0, journal=False
    ),
    Scenario(name="long-1000-journal", streams=1000, frames=1000, spread_s=10.0, seconds=20.0, journal=True),
    Scenario(name="paced-5000-slow", streams=5000, delay_ms=100, spread_s=8.0),
    # One content frame: what a frame costs here is what a request does.
    Scenario(name="request", streams=32, frames=1, delay_ms=0, spread_s=0.2, quick=True),
    Scenario(name="burst-100", streams=32, delay_ms=0, spread_s=0.2, quick=True),
    Scenario(name="burst-1000", streams=32, frames=1000, delay_ms=0, spread_s=0.2, quick=True),
    Scenario(name="engine-200", kind="engine", streams=200, quick=True),
    # Long answers, as the requests would hide what a frame costs; begun over what one takes.
    Scenario(name="healthy-100", kind="engine", model="flash", streams=100, frames=2000),
    Scenario(name="healthy-400", kind="engine", model="flash", streams=400, frames=2000),
    Scenario(name="tls-100", streams=100, tls=True, quick=True),
    Scenario(name="stalled-10000", kind="stalled", streams=10_000, spread_s=6.0),
    Scenario(name="start", kind="start", quick=True),
)


class Subject(Protocol):
    """A server that is measured."""

    name: str

    def can(self, scenario: Scenario) -> bool:
        """Whether the scenario means anything to it."""

    def start(self, scenario: Scenario) -> Child:
        """Start it, ready for the scenario."""

    def command(self, port: int) -> list[str]:
        """What starts it on `port` with everything it serves, for the start time."""


class Ours:
    """Our own server, with further `options`."""

    name = "inference-lab"

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        self._options = list(options)
        self._configs = folder / "configs"
        self._configs.mkdir()
        (self._configs / "lab.toml").write_text(_INSTANT)
        for name, config in _SIMULATED.items():
            text = (ROOT / "configs" / f"{config}.toml").read_text()
            (self._configs / f"{name}.toml").write_text(f'name = "{name}"\n{text}')
        self._endpoint: str | None = None

    def can(self, scenario: Scenario) -> bool:
        """See `Subject.can`."""
        del scenario
        return True

    def start(self, scenario: Scenario) -> Child:
        """See `Subject.start`."""
        return Child([*OURS, *self.arguments(scenario)])

    def command(self, port: int) -> list[str]:
        """See `Subject.command`."""
        return [*OURS, *self.arguments_at(port)]

    def arguments_at(self, port: int) -> list[str]:
        """The options of a server with everything it serves."""
        return [
            "--config",
            str(ROOT / "configs"),
            "--hardware",
            "b200",
            "--port",
            str(port),
            *self._options,
        ]

    def profile(self, generator: LoadGenerator, scenario: Scenario) -> tuple[dict[str, Any], pstats.Stats]:
        """Run a scenario under cProfile, which makes small functions look dearer than they are."""
        file = self._folder / "profile"
        under = [sys.executable, "-m", "cProfile", "-o", str(file)]
        child = Child([*under, *OURS, *self.arguments(scenario)])
        try:
            result = generator.run(child.port, scenario.load(quick=False), child.pids())
        finally:
            child.stop()
        return result, pstats.Stats(str(file))

    def arguments(self, scenario: Scenario) -> list[str]:
        """The options of a server that is ready for the scenario."""
        where = ["--port", "0"]
        if scenario.tls:
            self._endpoint = self._endpoint or certificate(self._folder)
            where = ["--endpoint", self._endpoint]
        if scenario.journal is None:
            return ["--config", str(self._configs), "--enable-directives", *where, *self._options]
        mode, *settings = scenario.fault.split(";")
        table = "\n".join(
            [f'[fault]\nmode = "{mode}"', *(setting.replace("=", " = ") for setting in settings)]
        )
        config = self._folder / "dying.toml"
        config.write_text(f"{_INSTANT}{table}\n")
        journal = ["--journal", str(self._folder / "journal.sqlite")] if scenario.journal else []
        return ["--config", str(config), *journal, *where, *self._options]


class Peer:
    """Another server, started by a command with `{port}` and perhaps `{fixtures}` in it."""

    name = "peer"

    def __init__(self, command: str, fixtures: Path) -> None:
        self._command = command
        self._fixtures = fixtures

    def can(self, scenario: Scenario) -> bool:
        """See `Subject.can`: a peer is asked for plain frames, and to start."""
        return scenario.kind in {"frames", "start"} and not scenario.tls

    def start(self, scenario: Scenario) -> Child:
        """See `Subject.start`."""
        del scenario
        port = free_port()
        return Child(self.command(port), port=port)

    def command(self, port: int) -> list[str]:
        """See `Subject.command`."""
        return shlex.split(self._command.format(port=port, fixtures=self._fixtures))


class Sibling:
    """Another version of our own server, started by a command with `{options}` in it: what we can it can."""

    name = "peer"

    def __init__(self, command: str, ours: Ours) -> None:
        self._before, self._after = map(shlex.split, command.split("{options}", 1))
        self._ours = ours

    def can(self, scenario: Scenario) -> bool:
        """See `Subject.can`."""
        return self._ours.can(scenario)

    def start(self, scenario: Scenario) -> Child:
        """See `Subject.start`."""
        return Child([*self._before, *self._ours.arguments(scenario), *self._after])

    def command(self, port: int) -> list[str]:
        """See `Subject.command`."""
        return [*self._before, *self._ours.arguments_at(port), *self._after]


def fixtures(scenarios: Sequence[Scenario]) -> str:
    """What aimock is to answer: texts that it cuts into as many frames, as far apart, as ours."""
    answers = {scenario.message: scenario for scenario in scenarios if scenario.kind == "frames"}
    return json.dumps(
        {
            "fixtures": [
                {
                    "match": {"userMessage": message},
                    "response": {"content": " qx0000" * scenario.frames},
                    "chunkSize": len(" qx0000"),
                    "latency": scenario.delay_ms,
                }
                for message, scenario in answers.items()
            ]
        }
    )


def stalled(generator: LoadGenerator, child: Child, scenario: Scenario) -> dict[str, Any]:
    """Memory and descriptors of streams that have fallen silent, and the pace of a live stream beside them."""
    live = Scenario(name="live", streams=1, seconds=2.0, spread_s=0.1).load(quick=False)
    before = generator.run(child.port, live, child.pids())
    rss, descriptors = child.rss_bytes(), child.descriptors()
    silent = Load(
        streams=scenario.streams,
        body=scenario.body(),
        headers=("x-inference-lab-fault: stall;after_chunks=1;delay_ms=0",),
        spread_s=scenario.spread_s,
        warm_up_s=0,
        seconds=scenario.spread_s + 9,
        once=True,
    )
    with generator.start(child.port, silent) as loading:
        arrived_by = time.monotonic() + scenario.spread_s + 6
        while child.descriptors() - descriptors < scenario.streams and time.monotonic() < arrived_by:
            time.sleep(0.2)
        time.sleep(0.5)
        held_bytes, held = child.rss_bytes() - rss, child.descriptors() - descriptors
        beside = generator.run(child.port, live, child.pids())
        result = figures(loading)
    if result["content_frames"] != scenario.streams:
        print(
            f"only {result['content_frames']} of {scenario.streams} streams came to their stall",
            file=sys.stderr,
        )
    return {
        "stalled": result["open"],
        "bytes_per_stream": held_bytes / max(1, held),
        "descriptors_per_stream": held / scenario.streams,
        "late_ms": beside["late_ms"],
        "gap_ms": beside["gap_ms"],
        "late_ms_without": before["late_ms"],
    }


def start_s(subject: Subject, times: int) -> float:
    """From exec to the first answer, in seconds: the median of several starts."""
    return statistics.median(
        _one_start_s(subject.command(port)) for port in (free_port() for _ in range(times))
    )


def _one_start_s(command: list[str]) -> float:
    port = (
        int(command[command.index("--port") + 1])
        if "--port" in command
        else int(command[command.index("-p") + 1])
    )
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and time.monotonic() < begun + 20:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                try:
                    connection.request("GET", "/v1/models")
                    connection.getresponse().read()
                    return time.monotonic() - begun
                except OSError:
                    time.sleep(0.001)
                finally:
                    connection.close()
        finally:
            process.terminate()
    raise RuntimeError(f"{shlex.join(command)}: no answer")


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
