"""`inference-lab sim` as a user runs it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from inference_lab import cli
from inference_lab.commands import sim as sim_command
from inference_lab.commands.sim import main
from tests.support.paths import ROOT

HERE = ROOT / "tests" / "support"
CONFIGS = ROOT / "configs"
SCENARIOS: list[dict[str, Any]] = json.loads((HERE / "golden/schedule.json").read_text())["scenarios"]
# The two in which the reference leaves its queue unordered by priority.
SAMPLE = [
    scenario
    for scenario in SCENARIOS
    if scenario["name"] not in {"kv_preemption_priority", "priority_queue_is_fifo"}
]
LLAMA = ["--config", str(CONFIGS / "llama-3.1-8b-instruct.toml")]
COMMAND = [
    *(sys.executable, "-c"),
    "import sys; from inference_lab.commands.sim import main; sys.exit(main(sys.argv[1:]))",
    *(*LLAMA, "--trace"),
]
TRACE = '[{"id": "a", "arrival": 0.5, "prompt_tokens": 1000, "output_tokens": 24}]'


def settings(scenario: dict[str, Any]) -> list[str]:
    """The `--set` options that express a scenario."""
    changes = {key: scenario[key] for key in ("tp", "ep", "dp_attention", "replicas")}
    changes |= {f"scheduler.{key}": value for key, value in scenario["scheduler"].items()}
    changes |= {f"router.{key}": value for key, value in scenario["router"].items() if value is not None}
    options = []
    for key, value in reversed(changes.items()):  # the router's policy comes last here, and still goes first
        options += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return options


@pytest.mark.parametrize("scenario", SAMPLE, ids=lambda scenario: scenario["name"])
def test_every_scenario_can_be_expressed_and_runs_as_in_the_reference(
    scenario: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(scenario))
    config = str(CONFIGS / f"{scenario['config']}.toml")
    options = ["--config", config, "--hardware", scenario["hardware"], *settings(scenario)]
    assert main([*options, "--trace", str(trace), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for entry, result in zip(scenario["requests"], printed["requests"], strict=True):
        assert result["id"] == entry["id"]
        for key, value in entry["result"].items():
            assert result[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)
    summary = printed["summary"]
    assert summary["steps"] == scenario["num_steps"]
    assert summary["preemptions"] == scenario["preemptions"]
    assert summary["end_time"] == pytest.approx(scenario["end_time"], rel=1e-9)


def sim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trace: str, *options: str
) -> tuple[int, str, str]:
    """Status, stdout and stderr of the command with `trace` on its standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.encode())))
    status = main([*options, "--trace", "-"])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_tables_show_each_request_and_the_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = TRACE.replace("]", ', {"id": 2, "prompt_tokens": 9999999, "output_tokens": 1}]')
    status, out, err = sim(capsys, monkeypatch, trace, *LLAMA)
    assert (status, err) == (0, "")
    assert out == (
        "llama-3.1-8b-instruct on gh200\n"
        "\n"
        "id  arrival s  first token s  finish s   prompt  cached  output  preempted  worker\n"
        "a    0.500000       0.516504  0.609611     1000       0      24          0       0\n"
        "2    0.000000       rejected  0.000000  9999999       0       0          0       0\n"
        "\n"
        "ms                      mean      p50      p90      p95      p99      max\n"
        "time to first token   16.504   16.504   16.504   16.504   16.504   16.504\n"
        "time between tokens    4.048    4.048    4.048    4.048    4.049    4.049\n"
        "whole answer         109.611  109.611  109.611  109.611  109.611  109.611\n"
        "\n"
        "requests    1 completed, 1 rejected, 0 preemptions\n"
        "simulated   0.609611 s in 24 steps, 1.0 requests per step\n"
        "throughput  39.4 output tokens/s, 1640.4 prompt tokens/s, 1.640 requests/s\n"
        "utilisation busy 18.0%, compute 2.8%, memory bandwidth 15.9%, KV 0.0% (at most 0.2%)\n"
    )


def test_an_empty_trace_is_a_run_without_requests(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plot = tmp_path / "run.svg"
    status, out, _ = sim(capsys, monkeypatch, "[]", *LLAMA, "--json", "--plot", str(plot))
    assert status == 0
    assert json.loads(out)["summary"]["requests"] == 0
    assert "no step was run" in plot.read_text()


def test_the_plot_is_an_svg_with_four_curves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plot = tmp_path / "run.svg"
    assert sim(capsys, monkeypatch, TRACE, *LLAMA, "--plot", str(plot))[0] == 0
    root = ET.fromstring(plot.read_text())  # noqa: S314 - our own file
    svg = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{svg}polyline")) == 4
    labels = [text.text for text in root.iter(f"{svg}text")]
    assert labels[0] == "llama-3.1-8b-instruct on gh200: 1 requests"
    assert "KV blocks in use, %" in labels


def test_a_png_is_drawn_by_cairosvg(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def svg2png(bytestring: bytes, scale: int) -> bytes:
        return b"PNG of %d" % scale + bytestring[:4]

    monkeypatch.setitem(sys.modules, "cairosvg", SimpleNamespace(svg2png=svg2png))
    plot = tmp_path / "run.PNG"
    assert sim(capsys, monkeypatch, TRACE, *LLAMA, "--plot", str(plot))[0] == 0
    assert plot.read_bytes() == b"PNG of 2<svg"


def test_a_png_without_cairosvg_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    status, out, err = sim(capsys, monkeypatch, TRACE, *LLAMA, "--plot", "run.png")
    assert (status, out) == (1, "")
    assert "pip install cairosvg" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("trace", "options", "expected"),
    [
        (
            TRACE.replace("output_tokens", "output"),
            [],
            "standard input: [0].output is an unknown key, expected one of",
        ),
        (TRACE.replace("24", "-1"), [], "standard input: [0].output_tokens is -1, expected an integer >= 0"),
        (TRACE.replace("0.5", "-1"), [], "standard input: [0].arrival is -1, expected a number >= 0"),
        (TRACE.replace("0.5", "1e999"), [], "standard input: not valid JSON: "),
        (
            f'{{"requests": {TRACE.replace("1000", "1.5")}}}',
            [],
            "standard input: requests[0].prompt_tokens is 1.5, ",
        ),
        (
            TRACE.replace("}]", ', "max_output_tokens": 5}]'),
            [],
            "standard input: [0].output_tokens is 24, expected at most max_output_tokens (5)",
        ),
        (
            TRACE.replace("}]", "}," + TRACE[1:]),
            [],
            "standard input: [1].id is 'a', which an earlier request has already",
        ),
        (
            TRACE.replace("}]", ', "prompt_block_ids": [1, 2]}]'),
            ["--set", "scheduler.block_size=512"],
            "standard input: [0].prompt_block_ids has 2 ids, expected at most 1: the full blocks of 512 in",
        ),
        (TRACE, ["--plot", "run.pdf"], "--plot run.pdf: expected a name that ends in .svg or .png"),
        (
            TRACE,
            ["--plot", "/nowhere/run.svg"],
            "--plot /nowhere/run.svg: cannot be written: No such file",
        ),
        (
            TRACE,
            ["--set", "router.load_weight=1"],
            f"{LLAMA[1]} with --set: hardware.gh200.router.policy is missing",
        ),
        (
            TRACE,
            ["--set", "router.policy=near"],
            f'{LLAMA[1]} with --set: hardware.gh200.router.policy is "near", ',
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_status_1(
    trace: str,
    options: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, out, err = sim(capsys, monkeypatch, trace, *LLAMA, *options)
    assert (status, out) == (1, "")
    assert err.startswith(f"inference-lab sim: {expected}")
    assert err.count("\n") == 1


def test_a_model_with_constant_latency_only_cannot_be_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "x.toml"
    config.write_text('model = "llama-3-70b"\nlatency = {}')
    status, _, err = sim(capsys, monkeypatch, TRACE, "--config", str(config))
    assert status == 1
    assert err.endswith("x.toml: hardware is missing, without which there is nothing to compute\n")


def test_a_long_run_shows_a_bar_on_a_terminal_and_wipes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    ticks = iter(range(1000))
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sim_command, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    status, _, _ = sim(capsys, monkeypatch, TRACE, *LLAMA)
    assert status == 0
    shown = terminal.getvalue().split("\r")
    assert shown[1] == f"[{' ' * 40}] 0/1 requests, 0.500 s simulated"
    assert shown[-2].startswith(f"[{'#' * 40}] 1/1 requests")
    assert shown[-1] == "\x1b[K"


def test_a_reader_that_has_seen_enough_brings_no_traceback() -> None:
    with subprocess.Popen(
        [*COMMAND, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, err = child.communicate(TRACE.encode())
    assert (child.returncode, err) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(
            [*COMMAND, "-"], stdin=subprocess.PIPE, stdout=full, stderr=subprocess.PIPE, cwd=ROOT
        ) as child,
    ):
        _, err = child.communicate(TRACE.encode())
    assert (child.returncode, err) == (1, b"inference-lab sim: cannot write: No space left on device\n")


def test_a_closed_standard_input_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of one that is closed
    assert main([*LLAMA, "--trace", "-"]) == 1
    assert capsys.readouterr().err == "inference-lab sim: standard input: cannot be read: it is closed\n"


def test_an_interrupt_ends_a_run_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim_command, "simulate", interrupted)
    monkeypatch.setattr(sys, "argv", ["inference-lab", "sim", *LLAMA, "--trace", "-"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRACE.encode())))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
