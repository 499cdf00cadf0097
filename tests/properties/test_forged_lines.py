"""Whatever a stream or a journal holds, a command prints as many lines as it has things to say, each printable."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.commands.journal import as_line
from inference_lab.commands.verify import main as verify
from inference_lab.console import json_line, print_lines
from inference_lab.core.oracle import verify as judge
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
