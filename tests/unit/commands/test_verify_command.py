"""The verify command: its lines, its JSON, its exit status."""

import io
import json
import sys

import pytest

from inference_lab.commands.verify import main
from tests.support.streams import chunk, stream, usage_frame, words


def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], data: bytes, *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status = main(arguments)
    return status, capfd.readouterr().out


@pytest.mark.parametrize(
    ("data", "arguments", "status", "out"),
    [
        (stream(words([0, 1])), (), 0, "whole: words 2 text; finish stop; findings 0\n"),
        (stream(words([0, 1]), None), (), 1, "honest prefix: words 2 text; finish none; findings 0\n"),
        (
            b'data: {"error":"M"}\n\ndata: [DONE]\n\n',
            ("--ended", "clean"),
            1,
            "honest prefix: words none; finish error frame; findings 0\n",
        ),
        (b"", ("--ended", "broken"), 1, "honest prefix: words none; finish none; findings 0\n"),
        (
            stream(words([0, 2])),
            ("--tokens", "3"),
            2,
            "wrong: words 2 text; finish stop; findings 1 (1 text)\ngap: text, word 1, byte {}: word 1 is missing\n",
        ),
        (
            stream([*words([0]), chunk({"content": " ab0001 ab0002"})]),
            (),
            2,
            (
                "wrong: words 1 text; finish stop; findings 1 (1 text)\nforeign_word: text, word 1, byte {}: "
                "' ab0001' is of another answer than 'qu' (2 in a row)\n"
            ),
        ),
        (
            stream(words([5, 6])),
            ("--start", "5", "--tag", "qu"),
            0,
            "whole: words 2 text; finish stop; findings 0\n",
        ),
    ],
)
def test_one_line_for_the_verdict_and_one_for_each_finding(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    data: bytes,
    arguments: tuple[str, ...],
    status: int,
    out: str,
) -> None:
    got, said = run(monkeypatch, capfd, data, *arguments)
    offset = said.partition("byte ")[2].partition(":")[0]
    assert (got, said) == (status, out.format(offset))


def test_json_says_all_of_it(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    data = stream(words([0, 2])) + usage_frame(2)
    status, out = run(monkeypatch, capfd, data, "--json")
    assert status == 2
    assert json.loads(out) == {
        "verdict": "wrong",
        "tag": "qu",
        "words": {"text": 2},
        "finish": "stop",
        "done": True,
        "error": False,
        "completion_tokens": 2,
        "bytes": len(data),
        "finding_count": 1,
        "findings": [
            {
                "kind": "gap",
                "weight": "text",
                "message": "word 1 is missing",
                "channel": "text",
                "word": 1,
                "offset": len(data),
                "count": 1,
                "ignored": False,
            }
        ],
        "notes": {},
    }


@pytest.mark.parametrize(
    "arguments",
    [("--tokens", "x"), ("--tokens", "-1"), ("--tag", "QU"), ("--tag", "q"), ("--ended", "no"), ("more",)],
)
def test_wrong_usage_is_status_64_and_one_line(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main(arguments) == 64
    assert capfd.readouterr().err.count("\n") == 1


def test_help_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--tokens" in capfd.readouterr().out
