"""Attempts: how many requests have met an element with `times`, counted at once and for all processes of a service.

A count belongs to a test id (or none), a prompt and a place in the list. Several processes share one SQLite file.
"""

from __future__ import annotations

import re
import sqlite3
import weakref
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from inference_lab.errors import attempts_unavailable
from inference_lab.identity import TEST_ID, TEST_ID_EXPECTED
from inference_lab.web.filters import deletion_filters

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.wire.http import LabRequest

IN_MEMORY: Final = ":memory:"
MOST_PAGES: Final = 16_384
"""64 MiB, some 600,000 counts; more are refused."""
_PROMPT: Final = re.compile(r"[0-9a-f]{16}")
_PATIENCE_S: Final = 1.0
"""How long another process may hold the file."""

_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS attempts (test TEXT, prompt TEXT, place INTEGER, count INTEGER,"
    " PRIMARY KEY (test, prompt, place)) WITHOUT ROWID"
)
_TAKE: Final = (
    "INSERT INTO attempts VALUES (:test, :prompt, :place, 1)"
    " ON CONFLICT DO UPDATE SET count = count + 1 WHERE count < :times"
)
_GIVE_BACK: Final = (
    "UPDATE attempts SET count = count - 1 WHERE test = :test AND prompt = :prompt AND place = :place",
    "DELETE FROM attempts WHERE test = :test AND prompt = :prompt AND place = :place AND count <= 0",
)


class Attempts:
    """Counts in the SQLite file `path`, which must be there already, or in this process's memory.

    Every method raises ApiError, 503 `attempts_unavailable`, where it cannot count.
    """

    def __init__(self, path: str = IN_MEMORY, *, most_pages: int = MOST_PAGES) -> None:
        self._path = path
        self._most_pages = most_pages
        self._connection: sqlite3.Connection | None = None

    def take(self, test: str | None, prompt: int, place: int, times: int) -> bool:
        """Count one request more, unless `times` have been counted: then False, and nothing is."""
        return bool(self._run(_TAKE, test=test or "", prompt=prompt_text(prompt), place=place, times=times))

    def give_back(self, test: str | None, prompt: int, place: int) -> None:
        """Count one request less: it was refused and has met nothing."""
        for statement in _GIVE_BACK:
            self._run(statement, test=test or "", prompt=prompt_text(prompt), place=place)

    def delete(self, *, test: str | None = None, prompt: str | None = None) -> int:
        """Forget the counts of a test, of a prompt (16 hex digits), of both, or all; answers how many there were."""
        return self._run(
            "DELETE FROM attempts WHERE (:test IS NULL OR test = :test) AND (:prompt IS NULL OR prompt = :prompt)",
            test=test,
            prompt=prompt,
        )

    def _run(self, statement: str, **values: str | int | None) -> int:
        """How many rows it has changed."""
        try:
            if self._connection is None:
                self._connection = connect(self._path)
                self._connection.execute(f"PRAGMA max_page_count = {self._most_pages}")
                weakref.finalize(self, self._connection.close)
            return self._connection.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise attempts_unavailable(str(error)) from None


def connect(path: str, *, create: bool = False) -> sqlite3.Connection:
    """Open a file of counts; `create` makes it.

    Raises:
        sqlite3.Error: it cannot be opened; without `create`: it is not there.
    """
    in_memory = path == IN_MEMORY
    place = path if in_memory else f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(place, timeout=_PATIENCE_S, isolation_level=None, uri=not in_memory)
    connection.execute("PRAGMA synchronous = OFF")  # it need not outlive the machine
    if in_memory or create:
        connection.execute("PRAGMA journal_mode = WAL")  # a process that is killed leaves the file whole
        connection.execute(_CREATE)
    return connection


def attempts_deleted(request: LabRequest, attempts: Attempts) -> object:
    """`DELETE /lab/attempts`: forget what the query names.

    Raises:
        ApiError: 400 for a query that names nothing, 503 where nothing can be forgotten.
    """
    filters = deletion_filters(
        request, {"test": (TEST_ID, TEST_ID_EXPECTED), "prompt": (_PROMPT, "16 hex digits in lower case")}
    )
    return {"deleted": attempts.delete(**filters)}


def prompt_text(key: int) -> str:
    """A conversation's key as clients see it: 16 hex digits."""
    return f"{key:016x}"


class Attempt:
    """One request's part in the counts: what `FaultPlan.fault_for` asks."""

    def __init__(self, attempts: Attempts, find_test: Callable[[], str | None], prompt: int) -> None:
        self._attempts = attempts
        self._find_test = find_test
        self._prompt = prompt
        self._taken: int | None = None

    def take(self, place: int, times: int) -> bool:
        """See `Attempts.take`."""
        taken = self._attempts.take(self._find_test(), self._prompt, place, times)
        if taken:
            self._taken = place
        return taken

    def give_back(self) -> None:
        """Undo what was counted, if anything was."""
        if self._taken is not None:
            self._attempts.give_back(self._find_test(), self._prompt, self._taken)
