"""Labs on a reactor of somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_lab_leaves_nothing_on_trials_reactor_whatever_was_under_way(tmp_path: Path) -> None:
    trial = [sys.executable, "-m", "twisted.trial", f"--temp-directory={tmp_path / 'trial'}"]
    run = subprocess.run(
        [*trial, "tests.unit.testing.cases_for_trial"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout
