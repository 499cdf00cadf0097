"""What the workers of a service share: files in a directory that only its user can read."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inference_lab.storage import attempts, database

if TYPE_CHECKING:
    from inference_lab.service.settings import Settings


class Shared(msgspec.Struct, frozen=True):
    """The files in `folder`."""

    folder: Path

    @property
    def metrics(self) -> Path:
        """Where each worker writes its share of the metrics."""
        return self.folder / "metrics"

    @property
    def journal(self) -> str:
        """The journal, where the user has not named one."""
        return str(self.folder / "journal.sqlite")

    def remove(self) -> None:
        """The service has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_shared(settings: Settings) -> Shared:
    """Make the directory, mode 0700, and what has to be in it before the first worker starts.

    Raises:
        OSError: it cannot be made.
    """
    shared = Shared(Path(tempfile.mkdtemp(prefix="inference-lab-")))
    try:
        shared.metrics.mkdir()
        attempts.prepare(shared.folder)
        if settings.records and settings.journal is None:
            database.prepare(shared.journal)
    except (OSError, sqlite3.Error, database.DatabaseError) as error:
        shared.remove()
        raise OSError(str(error)) from None
    return shared
