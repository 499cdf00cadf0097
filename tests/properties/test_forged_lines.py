"""Whatever a stream or a journal holds, a command prints as many lines as it has things to say, each printable."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogLevel

from inference_lab.commands.journal import as_line
from inference_lab.commands.step import main as step
from inference_lab.commands.verify import main as verify
from inference_lab.console import json_line, print_lines
from inference_lab.core.oracle import verify as judge
from inference_lab.core.oracle.verdict import Kind, Report
from inference_lab.service.logs import LineFormatter
from inference_lab.service.logs import json_line as json_log_line
from tests.support.rows import row

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = "whole: words 48 text; finish stop; findings 0"
STEERING = "\n\r\x0b\x0c\x1b\x00\x7f\x85\x9b\u200b\u2028\u2029\u202e\u2066\ufeff"
HOSTILE = st.lists(
    st.sampled_from([*STEERING, WHOLE, "\x1b[2K", "stop", " qu0000", "é", "'", '"', "\\"]), max_size=6
).map("".join)
FRAMES = st.fixed_dictionaries(
    {
        "id": HOSTILE,
        "model": HOSTILE,
        "choices": st.lists(
            st.fixed_dictionaries(
                {
                    "index": st.integers(0, 1) | HOSTILE,
                    "delta": st.fixed_dictionaries(
                        {}, optional={"content": HOSTILE, "role": HOSTILE, "reasoning_content": HOSTILE}
                    ),
                    "finish_reason": HOSTILE | st.none(),
                }
            ),
            max_size=2,
        ),
    },
    optional={"error": st.fixed_dictionaries({"message": HOSTILE, "code": HOSTILE})},
)


def printed(command: Callable[[], object]) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="")
    with redirect_stdout(out):
        command()
    out.seek(0)
    text = out.read()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    assert all(line.isprintable() for line in lines), lines
    return lines


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_a_stream_adds_no_line_to_its_verdict(frames: list[dict[str, Any]]) -> None:
    body = b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)
    verdict = judge([body])
    stdin = sys.stdin
    try:
        for arguments in ([], ["--json"]):
            sys.stdin = io.TextIOWrapper(io.BytesIO(body))
            lines = printed(lambda arguments=arguments: verify(arguments))  # type: ignore[misc]
            if arguments:
                assert len(lines) == 1
                assert json.loads(lines[0])["verdict"] == verdict.outcome
            else:
                assert len(lines) == 1 + len(verdict.findings) + (
                    verdict.finding_count > len(verdict.findings)
                )
                assert lines[0].startswith(verdict.outcome)
                assert not [line for line in lines[1:] if line.startswith(("whole", "honest prefix"))]
    finally:
        sys.stdin = stdin
    assert str(verdict).count("\n") == len(lines := list(verdict.lines())) - 1 + sum(
        line.count("\n") for line in lines
    )
    assert all(line.isprintable() for line in lines)


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_a_request_adds_no_line_to_the_journals(path: str, fault: str, error: str, ending: str) -> None:
    hostile = row(
        path=path, method=error, trigger="header", fault=fault, error=error, ending=ending, ending_asked=path
    )
    assert len(printed(lambda: print_lines([as_line(hostile)]))) == 1
    assert len(printed(lambda: sys.stdout.write(json_line({"path": path, fault: error})))) == 1


@given(HOSTILE)
def test_a_finding_is_a_line_whoever_words_it(text: str) -> None:
    report = Report()
    place = report.find(Kind.GAP, text)
    assert str(report.findings[place]).isprintable()
    report.relabel(place, Kind.GAP, Kind.REPEAT, text)
    assert str(report.findings[place]).isprintable()


@given(HOSTILE)
def test_a_peer_adds_no_event_to_a_log(text: str) -> None:
    event = {
        "log_format": "asked for {what}",
        "log_namespace": "lab",
        "log_level": LogLevel.info,
        "log_time": 0.0,
        "what": text,
    }
    for form in ("asked for {what}", "asked for {what()}"):
        line = LineFormatter()(
            {**event, "log_format": form, **({"what": lambda: text} if "()" in form else {})}
        )
        assert line is not None
        first, *more = line.removesuffix("\n").split("\n")
        assert first.isprintable() or "\t" in first
        assert all(rest.startswith("\t") and rest.replace("\t", "").isprintable() for rest in more)
    line = json_log_line(event)
    assert line[:-1].isprintable()
    assert json.loads(line)["what"] == text


def test_an_entry_of_a_config_adds_no_line_to_a_table_or_json(tmp_path: Path) -> None:
    known = Path("configs/qwen3-14b-fp8.toml").read_text()
    name = next(iter(tomli.loads(known)["hardware"]))
    hostile = "a\n" + WHOLE + "\x1b[2K\u202e\u2028"
    config, batch = tmp_path / "c.toml", tmp_path / "b.json"
    config.write_text(
        known.replace(f"[hardware.{name}]", f'[hardware.{json.dumps(hostile)}]\nspec = "{name}"')
    )
    batch.write_text('[{"context_tokens": 1, "new_tokens": 1, "phase": "decode"}]')
    plain, shown = (
        [
            printed(lambda: step(["--config", str(file), "--batch", str(batch), *options]))  # noqa: B023 - called at once
            for options in ([], ["--json"])
        ]
        for file in ("configs/qwen3-14b-fp8.toml", config)
    )
    assert [len(lines) for lines in plain] == [len(lines) for lines in shown]
    assert json.loads("".join(shown[1]))["hardware"] == hostile


BIG = "x" * 4_000_000
DIGITS = 10**4000


@pytest.mark.parametrize(
    "frames",
    [
        [{"choices": [{"index": 0, "delta": {}, "finish_reason": BIG}]}],
        [{"id": BIG, "choices": [{"index": DIGITS, "delta": {"content": BIG, "role": BIG}}]}, {"id": "b"}],
        [{"id": "a", "choices": [], "usage": dict.fromkeys(("prompt_tokens", "total_tokens"), DIGITS)}],
        [{"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": DIGITS, "total_tokens": DIGITS}}],
    ],
)
def test_a_line_has_an_end_and_says_what_is_cut(frames: list[dict[str, Any]]) -> None:
    verdict = judge([b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)])
    assert max(map(len, verdict.lines())) < 1200
    for line in verdict.lines():
        assert "…" in line or len(line) < 200
    body = b"".join(b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames)
    assert (verdict.finish is None) or "…" in next(verdict.lines())
    assert len(body) > 4000


def test_a_row_of_another_server_has_an_end_too() -> None:
    (line,) = printed(lambda: print_lines([as_line(row(path=BIG, ending="completed"))]))
    assert "more characters)" in line
    assert len(line) < 21_000
