"""What stops the start: one line on stderr that names what and where, status 1, however it is started.

The three ways to start meet in `makeService`. A few cases are started in each of them; all others go there at once.
"""

from __future__ import annotations

import re
import socket
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.tap import Options, makeService
from tests.support.models import INSTANT, MODEL, SCHEDULER
from tests.support.paths import ROOT
from tests.support.server import BIN, CONSOLE, TWISTD, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS = ("twistd -n", "twistd", "inference-lab serve")
LAB = f'{MODEL}name = "lab"\n{INSTANT}'
ENGINE = f"{MODEL}{SCHEDULER}[hardware.gh200]\ntp = 1\n"


def _prefix(way: str, tmp_path: Path) -> list[str]:
    if way == "twistd":
        daemon = [f"--pidfile={tmp_path / 'twistd.pid'}", f"--logfile={tmp_path / 'twistd.log'}"]
        return [str(BIN / "twistd"), *daemon, "inference-lab"]
    return list(TWISTD if way == "twistd -n" else CONSOLE)


def run(way: str, tmp_path: Path, *options: str) -> str:
    """Started and run to the end in the test's own directory; the line it ends with."""
    command = [*_prefix(way, tmp_path), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert not done.stdout
    return one_line(done.returncode, done.stderr)


@pytest.fixture(params=WAYS)
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Each of the three ways in turn."""
    return partial(run, request.param, tmp_path)


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Where all ways lead, in this process: the line it ends with."""
    monkeypatch.chdir(tmp_path)

    def make(*given: str) -> str:
        options: Any = Options()
        options.parseOptions(given)
        with pytest.raises(SystemExit) as stop:
            makeService(options)
        return one_line(stop.value.code, capfd.readouterr().err)

    return make


def one_line(status: object, stderr: str) -> str:
    assert status == 1, stderr
    assert len(stderr.splitlines()) == 1, stderr
    return stderr


def names(line: str, *words: str) -> bool:
    missing = [word for word in words if word not in line]
    assert not missing, line
    return True


@pytest.fixture
def lab(tmp_path: Path) -> str:
    file = tmp_path / "lab.toml"
    file.write_text(LAB)
    return str(file)


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_busy_port(started: Callable[..., str], lab: str, busy: int) -> None:
    assert names(started("--config", lab, "--port", str(busy)), str(busy), "127.0.0.1")


def test_a_bad_config(started: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(f"{LAB}colour = 3\n")
    assert names(started("--config", "bad.toml", "--port", "0"), "bad.toml", "colour")


def test_a_bad_config_in_a_folder(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(f"{LAB}colour = 3\n")
    assert names(refused("--config", ".", "--port", "0"), "bad.toml", "colour")


def test_a_model_that_there_is_not(started: Callable[..., str], lab: str) -> None:
    line = started("--config", lab, "--port", "0", "--model", "lab", "--model", "nobody")
    assert names(line, '--model "nobody"', "lab.toml, expected one of lab")


def test_a_model_without_the_named_hardware(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name, entry in (("one", "gh200"), ("two", "b200")):
        text = f'name = "{name}"\n{ENGINE}'.replace("gh200", entry)
        (tmp_path / "c" / f"{name}.toml").write_text(text)
    line = refused("--config", "c", "--port", "0", "--hardware", "gh200", "--model", "one", "--model", "two")
    assert names(line, "gh200", "expected one of")


def test_a_bad_option(started: Callable[..., str], lab: str) -> None:
    """One that only opening the port finds out, where Twisted leaves a socket behind."""
    assert names(started("--config", lab, "--endpoint", "tcp:70000"), "tcp:70000")


@pytest.mark.parametrize("given", ["--colour", "stray"])
def test_an_option_that_there_is_not(started: Callable[..., str], given: str) -> None:
    assert names(started(given), given, "--help lists the options")


def test_a_busy_port_of_an_endpoint(refused: Callable[..., str], lab: str, busy: int) -> None:
    assert names(refused("--config", lab, "--endpoint", f"tcp:{busy}:interface=127.0.0.1"), str(busy))


def test_each_busy_port_of_several_is_named(started: Callable[..., str], lab: str, busy: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = taken.getsockname()[1]
        line = started("--config", lab, "--port", "0", "--port", str(busy), "--port", str(other))
    assert names(line, f"127.0.0.1:{busy}", f"127.0.0.1:{other}")
    assert line.count("cannot listen on") == 2


def test_a_port_that_is_given_twice(refused: Callable[..., str], lab: str, busy: int) -> None:
    line = refused("--config", lab, "--port", str(busy), "--port", "0", "--port", str(busy))
    assert line == f"inference-lab: --port {busy} was given twice: leave one out\n"


def test_what_one_of_several_ports_cannot_do_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f"{LAB}[fault]\nmode = 'reset'\n")
    endpoints = ("--endpoint", "tcp:0:interface=127.0.0.1", "--endpoint", "unix:lab.sock")
    line = run("inference-lab serve", tmp_path, "--config", "own.toml", *endpoints)
    assert names(line, "own.toml", "a Unix socket has no reset")


VALUES = (
    ("--port", "70000"),
    ("--port", "-1"),
    ("--port", "http"),
    ("--endpoint", "nonsense:1"),
    ("--endpoint", ""),
    ("--endpoint", "ssl:0:privateKey=/nowhere/key.pem"),
    ("--linger-s", "-1"),
    ("--reader-timeout-s", "nan"),
    ("--flush-grace-ms", "x"),
    ("--max-body-bytes", "1.5"),
    ("--speed", "0"),
)


@pytest.mark.parametrize("options", VALUES, ids=" ".join)
def test_a_bad_value_is_named_with_its_option(
    refused: Callable[..., str], lab: str, options: tuple[str, str]
) -> None:
    option, value = options
    named = (value,) if option == "--endpoint" else (option.lstrip("-"), value)
    port = () if option in {"--port", "--endpoint"} else ("--port", "0")
    assert names(refused("--config", lab, *port, *options), *named)


WORKERS = {
    ("--workers", "0"): "--workers 0: expected an integer from 1 to 256",
    ("--workers", "2", "--endpoint", "unix:x"): "--workers 2: workers share --host and --port",
    ("--max-streams", "0"): "--max-streams 0: expected an integer",
    ("--max-bodies-bytes", "0"): "--max-bodies-bytes 0: expected an integer",
    ("--max-bodies-bytes", "1000"): "--max-bodies-bytes 1000: expected --max-body-bytes at least",
    ("--request-timeout-s", "0"): "--request-timeout-s 0: expected a number from 1e-9",
    ("--allow-origin", "null"): "--allow-origin null: expected * or an origin",
    ("--allow-origin", "http://a/b"): "--allow-origin http://a/b: expected * or an origin",
    ("--drain-s", "-1"): "--drain-s -1: expected 0 or a number from 1e-9",
}


@pytest.mark.parametrize("options", WORKERS, ids=" ".join)
def test_a_bad_option_of_many_streams_or_workers_says_what_would_be_right(
    refused: Callable[..., str], lab: str, options: tuple[str, ...]
) -> None:
    assert names(refused("--config", lab, *options), WORKERS[options])


def test_a_bad_port_among_good_ones_is_the_one_named(refused: Callable[..., str], lab: str) -> None:
    assert names(refused("--config", lab, "--port", "0", "--port", "x"), "--port x: expected an integer")


@pytest.mark.parametrize("other", [("--port", "8080"), ("--host", "127.0.0.1")])
def test_an_endpoint_goes_with_neither_host_nor_port_even_at_their_defaults(
    refused: Callable[..., str], lab: str, other: tuple[str, str]
) -> None:
    assert names(
        refused("--config", lab, "--endpoint", "tcp:0:interface=127.0.0.1", *other), "--endpoint", other[0]
    )


def test_a_host_that_is_not_ours(refused: Callable[..., str], lab: str) -> None:
    assert names(refused("--config", lab, "--host", "192.0.2.1", "--port", "0"), "192.0.2.1")


def test_a_config_that_is_not_there(refused: Callable[..., str]) -> None:
    assert names(refused("--config", "nowhere", "--port", "0"), "nowhere")


def test_a_folder_without_configs(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert names(refused("--config", "empty", "--port", "0"), "empty")


CONFIGS = {
    "torn": ('model = "llama', ()),
    "not UTF-8": ("# \udcff", ()),
    "an unknown mode": (f"{LAB}[fault]\nmode = 'rest'\n", ("fault", "mode", "rest")),
    "no mode": (f"{LAB}[fault]\nafter_chunks = 3\n", ("fault", "mode")),
    "a string for a number": (
        f"{LAB}[fault]\nmode = 'reset'\nafter_chunks = '3'\n",
        ("fault", "after_chunks"),
    ),
    "beyond u32": (f"{LAB}[fault]\nmode = 'reset'\nafter_chunks = 4294967296\n", ("fault", "after_chunks")),
    "utf8 with another mode": (f"{LAB}[fault]\nmode = 'reset'\nutf8 = false\n", ("fault", "utf8")),
    "an unknown fault key": (f"{LAB}[fault]\nmode = 'reset'\nspeed = 1\n", ("fault", "speed")),
    "an unknown model": (f'model = "no-such-model"\n{INSTANT}', ("model", "no-such-model")),
    "no model": (f'name = "lab"\n{INSTANT}', ("model",)),
    "a negative latency": (
        f'{MODEL}name = "lab"\n[latency]\nttft_ms = -1\nitl_ms = 0\n',
        ("latency", "ttft_ms"),
    ),
    "half a word": (f"{LAB}[answer]\ntokens = 1.5\n", ("answer", "tokens")),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bad_config_is_named_with_its_key(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    text, named = CONFIGS[name]
    (tmp_path / f"{name}.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert names(refused("--config", f"{name}.toml", "--port", "0"), f"{name}.toml", *named)


def test_an_unknown_hardware_in_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text(ENGINE)
    assert names(
        refused("--config", "engine.toml", "--port", "0", "--hardware", "abacus"), "abacus", "engine.toml"
    )


def test_an_unknown_hardware_in_a_folder_leaves_no_model(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "engine.toml").write_text(ENGINE)
    assert names(refused("--config", "c", "--port", "0", "--hardware", "abacus"), "abacus")


@pytest.mark.parametrize(
    ("first", "second"),
    [('name = "twin"', 'name = "twin"'), ('name = "twin"', 'name = "x"\naliases = ["twin"]')],
)
def test_two_files_with_one_name_or_alias_are_both_named(
    refused: Callable[..., str], tmp_path: Path, first: str, second: str
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "one.toml").write_text(f"{MODEL}{first}\n{INSTANT}")
    (tmp_path / "c" / "two.toml").write_text(f"{MODEL}{second}\n{INSTANT}")
    assert names(refused("--config", "c", "--port", "0"), "one.toml", "two.toml", "twin")


def test_a_static_reset_where_there_is_no_reset(tmp_path: Path) -> None:
    """A port that was open for a moment: a process of its own, which closes it."""
    file = tmp_path / ("d" * 200) / ("e" * 200) / "lab.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{LAB}[[fault.legs]]\nmode = 'stall'\n[[fault.legs]]\nmode = 'reset'\n")
    line = run("twistd -n", tmp_path, "--config", str(file), "--endpoint", "unix:lab.sock")
    assert names(line, "lab.toml: fault.legs[1]: reset needs TCP")
    assert len(line.rstrip("\n")) <= 300


@pytest.mark.parametrize(
    "command",
    [
        ("twistd", "inference-lab", "--version"),
        ("inference-lab", "--version"),
        ("inference-lab", "serve", "--version"),
    ],
    ids=" ".join,
)
def test_version_is_the_programs_own(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], capture_output=True, text=True, timeout=20, check=False
    )
    source = ROOT / "inference_lab" / "__init__.py"
    version = re.search(r'__version__.*"(.+)"', source.read_text())
    assert version
    assert done.returncode == 0
    assert len((done.stdout + done.stderr).splitlines()) == 1
    assert version[1] in done.stdout
    assert "twisted" not in done.stdout.lower()


@pytest.mark.parametrize("how", [TWISTD, CONSOLE])
def test_the_ready_line_names_url_and_models(configs: Path, how: tuple[str, ...]) -> None:
    server = start(configs, how=how)
    try:
        line = server.log.wait_for(r"ready: .*").group()
        assert not [name for name in ("lab", "slow", "nine", "static") if name not in line]
        assert server.port > 0
    finally:
        server.stop()


@pytest.mark.parametrize("how", [TWISTD, CONSOLE])
def test_of_a_folder_the_models_that_are_named_are_served(configs: Path, how: tuple[str, ...]) -> None:
    server = start(configs, "--model", "org/lab", "--model=nine", "--workers", "2", how=how)
    try:
        assert server.log.wait_for(r"ready: \S+ serving nine, lab \(2 workers\)")
    finally:
        server.stop()
