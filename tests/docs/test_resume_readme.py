"""What the README says a gateway's client gets is what the resume client gets, right and wrong."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from inference_lab.commands.verify import main
from tests.support.clients.families import FAMILIES
from tests.support.clients.resume_client import CHAT, Bug, ResumeClient
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text(encoding="utf-8")
NAME = "DeepSeek-V4-Flash"


@pytest.mark.parametrize(("bug", "shown"), [(None, 1), (Bug.REPEATS_A_WORD, 2)])
def test_the_readme_shows_the_verdicts_that_there_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    bug: Bug | None,
    shown: int,
) -> None:
    found = re.search(r"^\$ MESSAGES='(.*)'$", README, re.MULTILINE)
    assert found
    body = {"model": NAME, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 48}
    body["messages"] = json.loads(found[1])
    lab = MemoryLab(write(tmp_path, {"m": MODEL.format(name=NAME)}))
    data = b"".join(ResumeClient(lab, FAMILIES["lab"], bug=bug).answer(CHAT, body))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["--tokens", "48"]) == (2 if bug else 0)
    lines = capfd.readouterr().out.splitlines()
    assert "".join(f"    {line}\n" for line in lines[:shown]) in README, lines
