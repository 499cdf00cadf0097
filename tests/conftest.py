"""What all tests share: settings, and the application in memory for the tests that ask it much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.lab import MemoryLab, files, write

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

# A slow or busy machine is no failure: what must be fast is measured by the benchmarks.
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config files of a model in each format, thinking and not."""
    return write(tmp_path_factory.mktemp("models"), files())


@pytest.fixture
def lab(models: Path) -> MemoryLab:
    """A server of these models in memory."""
    return MemoryLab(models)
