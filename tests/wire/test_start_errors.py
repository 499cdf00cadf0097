"""What stops the start: one line on stderr that names what and where, status 1, however it is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import INSTANT, MODEL, SCHEDULER
from .server import BIN, CONSOLE, TWISTD, start

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS = ("twistd -n", "twistd", "inference-lab serve")
LAB = f'{MODEL}name = "lab"\n{INSTANT}'
ENGINE = f"{MODEL}{SCHEDULER}[hardware.gh200]\ntp = 1\n"


def _prefix(way: str, tmp_path: Path) -> list[str]:
    if way == "twistd":
        daemon = [f"--pidfile={tmp_path / 'twistd.pid'}", f"--logfile={tmp_path / 'twistd.log'}"]
        return [str(BIN / "twistd"), *daemon, "inference-lab"]
    return list(TWISTD if way == "twistd -n" else CONSOLE)


Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def runner(way: str, tmp_path: Path) -> Run:
    """Run to the end; the working directory is the test's own."""

    def run_once(*options: str) -> Done:
        command = [*_prefix(way, tmp_path), *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)

    return run_once


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Each of the three ways in turn."""
    return runner(request.param, tmp_path)


@pytest.fixture
def run_n(tmp_path: Path) -> Run:
    """`twistd -n` alone, where the way makes no difference beyond what the others show."""
    return runner("twistd -n", tmp_path)


def one_line(done: Done, *named: str) -> None:
    lines = done.stderr.splitlines()
    assert done.returncode == 1, done
    assert len(lines) == 1, done.stderr
    assert not [word for word in named if word not in lines[0]], (named, lines[0])


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


def test_a_busy_port(run: Run, lab: str, busy: int) -> None:
    one_line(run("--config", lab, "--port", str(busy)), str(busy), "127.0.0.1")


def test_a_busy_port_of_an_endpoint(run_n: Run, lab: str, busy: int) -> None:
    one_line(run_n("--config", lab, "--endpoint", f"tcp:{busy}:interface=127.0.0.1"), str(busy))


VALUES = (
    ("--port", "70000"),
    ("--port", "-1"),
    ("--port", "http"),
    ("--endpoint", "nonsense:1"),
    ("--endpoint", "tcp:70000"),
    ("--endpoint", ""),
    ("--endpoint", "ssl:0:privateKey=/nowhere/key.pem"),
    ("--linger-s", "-1"),
    ("--reader-timeout-s", "nan"),
    ("--flush-grace-ms", "x"),
    ("--max-body-bytes", "1.5"),
    ("--speed", "0"),
)


@pytest.fixture(scope="module")
def values_refused(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Done]:
    """Every bad value tried, as many at a time as there are processors."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "lab.toml").write_text(LAB)
    run = runner("twistd -n", folder)

    def refused(options: tuple[str, str]) -> Done:
        port = () if options[0] in {"--port", "--endpoint"} else ("--port", "0")
        return run("--config", "lab.toml", *port, *options)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(VALUES, pool.map(refused, VALUES), strict=True))


@pytest.mark.parametrize("options", VALUES, ids=" ".join)
def test_a_bad_value_is_named_with_its_option(
    values_refused: dict[tuple[str, str], Done], options: tuple[str, str]
) -> None:
    option, value = options
    one_line(values_refused[options], *((value,) if option == "--endpoint" else (option.lstrip("-"), value)))


@pytest.mark.parametrize("options", [("--port", "70000"), ("--endpoint", "nonsense:1")], ids=" ".join)
def test_a_bad_port_or_endpoint_in_all_three_ways(run: Run, lab: str, options: tuple[str, str]) -> None:
    one_line(run("--config", lab, *options), *options)


@pytest.mark.parametrize("other", [("--port", "8080"), ("--host", "127.0.0.1")])
def test_an_endpoint_goes_with_neither_host_nor_port_even_at_their_defaults(
    run_n: Run, lab: str, other: tuple[str, str]
) -> None:
    one_line(
        run_n("--config", lab, "--endpoint", "tcp:0:interface=127.0.0.1", *other), "--endpoint", other[0]
    )


def test_a_host_that_is_not_ours(run_n: Run, lab: str) -> None:
    one_line(run_n("--config", lab, "--host", "192.0.2.1", "--port", "0"), "192.0.2.1")


def test_a_config_that_is_not_there(run: Run) -> None:
    one_line(run("--config", "nowhere", "--port", "0"), "nowhere")


def test_a_folder_without_configs(run_n: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one_line(run_n("--config", "empty", "--port", "0"), "empty")


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


@pytest.fixture(scope="module")
def configs_refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Every bad config tried, as many at a time as there are processors."""
    folder = tmp_path_factory.mktemp("bad")
    run = runner("twistd -n", folder)

    def refused(name: str) -> Done:
        (folder / f"{name}.toml").write_bytes(CONFIGS[name][0].encode("utf-8", "surrogateescape"))
        return run("--config", f"{name}.toml", "--port", "0")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(CONFIGS, pool.map(refused, CONFIGS), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bad_config_is_named_with_its_key(configs_refused: dict[str, Done], name: str) -> None:
    one_line(configs_refused[name], f"{name}.toml", *CONFIGS[name][1])


@pytest.mark.parametrize("config", ["bad.toml", "."])
def test_a_bad_config_in_all_three_ways(run: Run, tmp_path: Path, config: str) -> None:
    """The file may be named itself or found in a folder."""
    (tmp_path / "bad.toml").write_text(f"{LAB}colour = 3\n")
    one_line(run("--config", config, "--port", "0"), "bad.toml", "colour")


def test_an_unknown_hardware_in_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text(ENGINE)
    one_line(run("--config", "engine.toml", "--port", "0", "--hardware", "abacus"), "abacus", "engine.toml")


def test_an_unknown_hardware_in_a_folder_leaves_no_model(run_n: Run, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "engine.toml").write_text(ENGINE)
    one_line(run_n("--config", "c", "--port", "0", "--hardware", "abacus"), "abacus")


@pytest.mark.parametrize(
    ("first", "second"),
    [('name = "twin"', 'name = "twin"'), ('name = "twin"', 'name = "x"\naliases = ["twin"]')],
)
def test_two_files_with_one_name_or_alias_are_both_named(
    run_n: Run, tmp_path: Path, first: str, second: str
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "one.toml").write_text(f"{MODEL}{first}\n{INSTANT}")
    (tmp_path / "c" / "two.toml").write_text(f"{MODEL}{second}\n{INSTANT}")
    one_line(run_n("--config", "c", "--port", "0"), "one.toml", "two.toml", "twin")


def test_a_static_reset_where_there_is_no_reset(run_n: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(f"{LAB}[fault]\nmode = 'reset'\n")
    one_line(run_n("--config", "lab.toml", "--endpoint", "unix:lab.sock"), "lab.toml", "reset")


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
    source = Path(__file__).parents[2] / "inference_lab" / "__init__.py"
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
