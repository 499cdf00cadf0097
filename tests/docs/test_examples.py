"""What the documents show of a stranger's suite, run as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.example_gateway import GATEWAY, mended
from tests.support.inner_pytest import BARE, QUIET
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FILES = re.compile(r"^<!-- file (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"^ *(?:async )?def test_", re.MULTILINE)
# As the failure shows it; where CI is set, pytest's summary says it in full once more.
SHOWN = re.compile(r"^E .*where False = (<.*>\.is_whole)", re.MULTILINE)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a module of Python in a folder: its exit status, and all that it says."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "no_proxy": "*"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_code_of_the_document_runs(tmp_path: Path) -> None:
    files = dict(FILES.findall((ROOT / "docs" / "testing.md").read_text(encoding="utf-8")))
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    tests = [TEST.findall(text) for name, text in files.items() if name.startswith("test_")]
    status, said = run(tmp_path, "pytest", *QUIET, "--strict-markers")
    assert status == 0, said
    assert f"{sum(map(len, tests))} passed" in said
    status, said = run(tmp_path, "twisted.trial", "trial_gateway")
    assert status == 0, said


@pytest.mark.parametrize("is_mended", [False, True], ids=["as it is", "mended"])
def test_the_example_finds_the_bug_of_its_gateway_and_passes_once_it_is_mended(
    tmp_path: Path, *, is_mended: bool
) -> None:
    shutil.copytree(GATEWAY, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    readme = (GATEWAY / "README.md").read_text(encoding="utf-8")
    if is_mended:
        gateway = tmp_path / "gateway.py"
        gateway.write_text(mended(gateway.read_text(encoding="utf-8")), encoding="utf-8")
    status, said = run(tmp_path, "pytest", *QUIET, *BARE)
    assert status == (0 if is_mended else 1), said
    assert ("2 passed" if is_mended else "2 failed") in said
    shown = SHOWN.findall(said)
    assert len(shown) == (0 if is_mended else 2)
    for line in shown:
        assert line in readme
        assert line in (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
