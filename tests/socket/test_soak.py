"""A few seconds of the soak: that it runs, and that a mixed load leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SOAK = ROOT / "benchmarks" / "soak.py"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_short_soak_ends_with_memory_and_descriptors_where_they_were(workers: str) -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0.08", "--clients", "12", "--", "--workers", workers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
