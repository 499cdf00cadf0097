"""`inference-lab step` as a user runs it."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.commands.step import main
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HERE = ROOT / "tests" / "support"
CONFIGS = ROOT / "configs"
RECORDS: list[dict[str, Any]] = json.loads((HERE / "golden/step_times.json").read_text())["records"]
LLAMA = ["--config", str(CONFIGS / "llama-3.1-8b-instruct.toml")]
KIMI = ["--config", str(CONFIGS / "kimi-k2.6.toml"), "--hardware", "b200"]
BATCH = '[{"context_tokens": 1024, "new_tokens": 1, "phase": "decode", "count": 2}]'


def step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, batch: str, *options: str
) -> tuple[int, str, str]:
    """Status, stdout and stderr of the command with `batch` on its standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(batch.encode())))
    status = main([*options, "--batch", "-"])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("record", RECORDS[::15], ids=lambda record: f"{record['config']}-{record['kind']}")
def test_the_json_is_the_reference_record(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps(record["batch"]))
    options = ["--config", str(CONFIGS / f"{record['config']}.toml"), "--hardware", record["hardware"]]
    for key in ("tp", "ep", "dp_attention"):
        options += ["--set", f"{key}={json.dumps(record[key])}"]
    assert main([*options, "--batch", str(batch), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = {
        key: value for key, value in record.items() if key not in {"kind", "placement", "shipped_layout"}
    }
    assert set(printed) == set(expected)
    for key, value in expected.items():
        if key == "streams":
            for dtype, stream in value.items():
                assert printed["streams"][dtype] == pytest.approx(stream, rel=1e-9)
        elif isinstance(value, float) or key == "rank_attention_seconds":
            assert printed[key] == pytest.approx(value, rel=1e-9, abs=1e-18)
        else:
            assert printed[key] == value


def test_entries_without_a_rank_are_dealt_out_in_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = """[{"context_tokens": 777, "new_tokens": 1, "phase": "decode", "count": 10},
                {"context_tokens": 7492, "new_tokens": 700, "phase": "prefill"},
                {"context_tokens": 5, "new_tokens": 1, "phase": "decode", "rank": 7}]"""
    status, out, _ = step(capsys, monkeypatch, batch, *KIMI, "--json")
    assert status == 0
    placed = [(entry["context_tokens"], entry["rank"], entry["count"]) for entry in json.loads(out)["batch"]]
    assert placed == [
        (777, 0, 2),
        (777, 1, 2),
        *((777, rank, 1) for rank in range(2, 8)),
        (7492, 2, 1),
        (5, 7, 1),
    ]


def test_the_table_shows_the_parts_of_the_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = (
        '[{"context_tokens": 1024, "new_tokens": 1, "phase": "decode", "count": 2},'
        ' {"context_tokens": 4096, "new_tokens": 2048, "phase": "prefill"}]'
    )
    status, out, err = step(capsys, monkeypatch, batch, *LLAMA, "--set", "time_correction.beta=0.5")
    assert (status, err) == (0, "")
    assert out == (
        "llama-3.1-8b-instruct on gh200, tp 1, ep 1: 2050 new tokens\n"
        "\n"
        "dtype        FLOPs        bytes  compute ms  memory ms  roofline ms\n"
        "bf16   3.84216e+13  1.69998e+10   38.848972   4.249947    38.848972\n"
        "\n"
        "of which attention 5.49863e+12 FLOPs, KV reads 9.39786e+08 bytes, state reads 0 bytes\n"
        "\n"
        "part                               ms\n"
        "sum of dtypes               38.848972\n"
        "collectives                  0.000000\n"
        "time correction            500.000000\n"
        "wait for the slowest rank    0.000000\n"
        "step                       538.848972\n"
    )


@pytest.mark.parametrize(
    ("batch", "options", "expected"),
    [
        ("[", LLAMA, "standard input: not valid JSON: "),
        ("[" * 5000, LLAMA, "standard input: nested too deeply"),
        ("[]", LLAMA, "standard input: the batch is empty, expected at least one entry"),
        ("{}", LLAMA, "standard input: the top level is a table, expected an array"),
        ("null", LLAMA, "standard input: the top level is null, expected an array"),
        (BATCH.replace("2}", "0}"), LLAMA, "standard input: [0].count is 0, expected an integer >= 1"),
        (
            BATCH.replace("decode", "d"),
            LLAMA,
            'standard input: [0].phase is "d", expected one of decode, prefill',
        ),
        (BATCH.replace("count", "rank"), LLAMA, "standard input: [0].rank is 2, expected less than 1"),
        (
            BATCH.replace("2}", "8}").replace("count", "rank"),
            KIMI,
            "standard input: [0].rank is 8, expected less",
        ),
        (BATCH, ["--config", "none.toml"], "none.toml: cannot be read: No such file or directory"),
        (
            BATCH,
            [*LLAMA, "--hardware", "b200"],
            f'{LLAMA[1]}: no [hardware] entry named "b200", expected one of gh200',
        ),
        (BATCH, [*LLAMA, "--set", "tp"], "--set tp: expected KEY=VALUE, as in scheduler.max_num_seqs=4"),
        (BATCH, [*LLAMA, "--set", "tp.x=2"], "--set tp.x: tp is 1, not a table"),
        (
            BATCH,
            [*LLAMA, "--set", "tp=[1]"],
            f"{LLAMA[1]} with --set: hardware.gh200.tp is an array, expected an",
        ),
        (
            BATCH,
            [*LLAMA, "--set", "ep=3"],
            f"{LLAMA[1]} with --set: hardware.gh200.ep is 3, expected a divisor",
        ),
        (
            BATCH,
            [*LLAMA, "--set", "seats=1"],
            f"{LLAMA[1]} with --set: hardware.gh200.seats is an unknown key",
        ),
        (
            BATCH,
            [*LLAMA, "--set", "time_correction.alpha=inf"],
            f"{LLAMA[1]} with --set: hardware.gh200.time_correction.alpha is inf, expected a finite number",
        ),
        (
            BATCH,
            [*LLAMA, "--set", "scheduler.block_size=0"],
            f"{LLAMA[1]} with --set: hardware.gh200.scheduler.block_size is 0, expected an integer >= 1",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_status_1(
    batch: str,
    options: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, out, err = step(capsys, monkeypatch, batch, *options)
    assert (status, out) == (1, "")
    assert err.startswith(f"inference-lab step: {expected}")
    assert err.count("\n") == 1


def test_a_batch_is_counted_and_not_laid_out_for_cascade_attention_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = BATCH.replace("2}", "4000000000}")  # a list of so many would not fit in memory
    cascade = "scheduler.enable_cascade_attention=true"
    alone = step(capsys, monkeypatch, batch, *LLAMA)
    assert alone[0] == 0
    assert step(capsys, monkeypatch, batch, *LLAMA, "--set", cascade) == alone


@pytest.mark.parametrize("arguments", [[], ["--config"], [*LLAMA, "--batch", "-", "--speed", "2"]])
def test_a_wrong_option_is_one_line_and_status_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("inference-lab step: ")
    assert err.endswith("(inference-lab step --help lists the options)\n")
    assert err.count("\n") == 1


def test_the_worked_example_in_the_docs_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = (ROOT / "docs/engine.md").read_text()
    batch = docs.partition("$ echo '")[2].partition("'")[0]
    _, out, _ = step(capsys, monkeypatch, batch, *LLAMA)
    assert "".join(f"    {line}\n" if line else "\n" for line in out.splitlines()) in docs
