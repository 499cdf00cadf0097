"""The application in memory, shared by the tests that ask it much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import MemoryLab, files, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config files of a model in each format, thinking and not."""
    return write(tmp_path_factory.mktemp("models"), files())


@pytest.fixture
def lab(models: Path) -> MemoryLab:
    """A server of these models in memory."""
    return MemoryLab(models)
