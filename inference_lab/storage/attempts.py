"""Attempts: how many requests have met an element with `times`, counted at once and for all processes of a service.

A count belongs to a test id (or none), a prompt and a place in the list. Several processes share one SQLite file.
"""

from __future__ import annotations

import sqlite3
import weakref
from typing import TYPE_CHECKING, Final

from inference_lab.core.identity import key_text

if TYPE_CHECKING:
    from pathlib import Path

MOST_PAGES: Final = 16_384
"""64 MiB, some 600,000 counts; more are refused."""
_FILE: Final = "attempts.sqlite"
_MEMORY: Final = ":memory:"
_PATIENCE_S: Final = 1.0
"""How long another process may hold the file."""

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS attempts (test TEXT, prompt TEXT, place INTEGER, count INTEGER,"
    " PRIMARY KEY (test, prompt, place)) WITHOUT ROWID"
)
_TAKE: Final = (
    "INSERT INTO attempts VALUES (:test, :prompt, :place, 1)"
    " ON CONFLICT (test, prompt, place) DO UPDATE SET count = count + 1 WHERE count < :times"
)
_GIVE_BACK: Final = (
    "UPDATE attempts SET count = count - 1 WHERE test = :test AND prompt = :prompt AND place = :place",
    "DELETE FROM attempts WHERE test = :test AND prompt = :prompt AND place = :place AND count <= 0",
)
_DELETE: Final = (
    "DELETE FROM attempts WHERE (:test IS NULL OR test = :test) AND (:prompt IS NULL OR prompt = :prompt)"
)


class AttemptsError(Exception):
    """Attempts cannot be counted; the message is the reason."""


class Attempts:
    """Counts in a file in `folder`, which `prepare` has made, or in the memory of this process.

    Every method raises AttemptsError where it cannot count.
    """

    def __init__(self, folder: Path | None = None, *, most_pages: int = MOST_PAGES) -> None:
        self._folder = folder
        self._most_pages = most_pages
        self._connection: sqlite3.Connection | None = None

    def take(self, test: str | None, prompt: int, place: int, times: int) -> bool:
        """Count one request more, unless `times` have been counted: then False, and nothing is."""
        return bool(self._run(_TAKE, test=test or "", prompt=key_text(prompt), place=place, times=times))

    def give_back(self, test: str | None, prompt: int, place: int) -> None:
        """Count one request less: it was refused and has met nothing."""
        for statement in _GIVE_BACK:
            self._run(statement, test=test or "", prompt=key_text(prompt), place=place)

    def delete(self, *, test: str | None = None, prompt: str | None = None) -> int:
        """Forget the counts of a test, of a prompt (16 hex digits), of both, or all; answers how many there were."""
        return self._run(_DELETE, test=test, prompt=prompt)

    def _run(self, statement: str, **values: str | int | None) -> int:
        """How many rows it has changed."""
        try:
            if self._connection is None:
                self._connection = self._open()
                weakref.finalize(self, self._connection.close)
            return self._connection.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise AttemptsError(str(error)) from None

    def _open(self) -> sqlite3.Connection:
        connection = _connect(_MEMORY) if self._folder is None else _connect(_url(self._folder, "rw"))
        if self._folder is None:
            connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA max_page_count = {self._most_pages}")
        return connection


def prepare(folder: Path) -> None:
    """Make the file that several processes count in.

    Raises:
        sqlite3.Error: it cannot be made.
    """
    connection = _connect(_url(folder, "rwc"))
    connection.execute("PRAGMA journal_mode = WAL")  # a process that is killed leaves the file whole
    connection.execute(_SCHEMA)
    connection.close()


def _url(folder: Path, mode: str) -> str:
    # Without `rwc` a file that is gone is an error.
    return f"{(folder / _FILE).absolute().as_uri()}?mode={mode}"


def _connect(place: str) -> sqlite3.Connection:
    # One thread uses it; but what closes it may be the collector, which works in whichever thread it is due.
    connection = sqlite3.connect(
        place, timeout=_PATIENCE_S, isolation_level=None, uri=True, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = OFF")  # it need not outlive the machine
    return connection
