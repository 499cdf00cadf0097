"""The folder that workers share."""

from __future__ import annotations

import sqlite3
import tempfile
from typing import TYPE_CHECKING

import pytest

from inference_lab.service.settings import settings_from
from inference_lab.service.shared import make_shared
from inference_lab.storage import attempts
from inference_lab.tap import Options

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_that_cannot_be_filled_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise sqlite3.OperationalError(f"database or disk is full: {folder}")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(attempts, "prepare", full)
    with pytest.raises(OSError, match="full"):
        make_shared(settings_from(Options()))
    assert list(tmp_path.iterdir()) == []
