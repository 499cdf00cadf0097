"""The journal's rows in a SQLite database: a file that several processes may write, or one in memory."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from inference_lab.core.journal.filters import EVERYTHING, FILTERS, Filter
from inference_lab.core.journal.row import Row, Unplanned
from inference_lab.storage.journal_file import FileWatch, set_aside
from inference_lab.storage.pages import DROPPED_SCHEMA, Page, make_room, read_page, with_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from inference_lab.core.journal.filters import Cursor

_T = TypeVar("_T")

MEMORY: Final = ":memory:"
BUSY_TIMEOUT_S: Final = 2.0
"""How long a write waits for another process that holds the file."""

_APPLICATION_ID: Final = 0x694C6A31  # "iLj1", so that no other program's database is taken for a journal
_VERSION: Final = 1
"""Of the tables and of a row's fields; a file of another one is not touched."""
_COLUMNS: Final = ("time", "state", *(name for name in FILTERS if name != "since"))
_QUOTED: Final = [f'"{name}"' for name in _COLUMNS]  # `trigger` is a word of SQL's
_TABLE: Final = f"""
CREATE TABLE IF NOT EXISTS rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    {", ".join(_QUOTED)},
    document TEXT NOT NULL,
    process INTEGER NOT NULL
)
"""
_SCHEMA: Final = (
    _TABLE,
    "CREATE INDEX IF NOT EXISTS by_time ON rows (time)",
    *DROPPED_SCHEMA,
)
_AT_ONCE: Final = (64, 8, 1)
"""Rows to a statement. Python gives up its lock in each, and has to wait for it again while the reactor is busy."""
_VALUES: Final = f"({', '.join('?' * (len(_COLUMNS) + 2))})"
_INSERT: Final = f"INSERT INTO rows ({', '.join(_QUOTED)}, document, process) VALUES "  # noqa: S608 - our own names
_UPDATE: Final = (
    f"UPDATE rows SET {', '.join(f'{name} = new.column{at}' for at, name in enumerate((*_QUOTED, 'document'), 1))}"  # noqa: S608 - as above
    f" FROM (VALUES %s) AS new WHERE rows.id = new.column{len(_COLUMNS) + 2}"
)
_DAMAGE: Final = ("malformed", "not a database", "no such table")


class DatabaseError(Exception):
    """Why the journal cannot be read or written, in one line; `is_damaged`: its bytes are no journal's."""

    def __init__(self, reason: str, *, is_damaged: bool = False) -> None:
        super().__init__(reason)
        self.is_damaged = is_damaged


class Database:
    """An open journal. Used by one thread.

    `process` is the id of the process whose rows are written. Every method raises DatabaseError when the file does not
    allow it; what was to be written is then unwritten as a whole, and may be tried again.
    """

    def __init__(self, path: str, process: int) -> None:
        self._path = path
        self._process = process
        self._ids: dict[int, int] = {}  # of rows that are open, by their number in this process
        self._watch: FileWatch | None = None
        with _told(path), ExitStack() as undo:
            if path != MEMORY:
                self._watch = FileWatch(path)
                undo.callback(self._watch.close)
            self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            undo.callback(self._connection.close)
            # A power failure may cost the last batches; a process that is killed loses none that is written.
            self._connection.execute("PRAGMA synchronous=NORMAL")
            if path == MEMORY:
                _make(self._connection)
            # SQLite opens a file's log when it first looks: now, so that a process at rest has its descriptors.
            self._connection.execute("SELECT id FROM rows LIMIT 1").fetchone()
            if self._watch is not None:
                self._watch.begin()
            undo.pop_all()

    def what_is_wrong(self) -> str | None:
        """What somebody else has done to the file or its log since it was opened; None: nothing."""
        return None if self._watch is None else self._watch.what_is_wrong(_APPLICATION_ID)

    def count_own(self) -> int | None:
        """How many rows this process has in the file that it has open; None where nobody can tell any more."""
        own = "SELECT count(*) FROM rows WHERE state = 'ended' AND process = ?"
        try:
            (count,) = self._connection.execute(own, (self._process,)).fetchone()
        except sqlite3.Error:
            return None
        return int(count)

    def leave(self, wrong: str) -> str | None:
        """Close a file that something is wrong with, and take it out of its place; where it is now, if it was there."""
        aside = None
        if self._watch is not None and self._watch.is_in_place():
            if not wrong.startswith(f"{self._path} "):  # the file is whole, and only its log is gone
                with suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            aside = set_aside(self._path)
        elif self._watch is not None:
            self._watch.remove_log()
        self.close()  # after the move: SQLite removes no log of a file that is not in its place
        return aside

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def write(
        self,
        rows: Mapping[int, Row],
        awaited: AbstractSet[int] = frozenset(),
        *,
        most_rows: int,
        oldest: float,
    ) -> int:
        """Write rows by their numbers, each in place of the one written before, and keep the journal bounded.

        No row comes after one that has ended, unless its number is `awaited`.

        Rows that have ended are dropped when `most_rows` newer ones are there, the oldest also when all of them come to
        more than `most_bytes(most_rows)`, or when they are from before `oldest` (Unix seconds). Answers how many
        were dropped for room.
        """
        new = [number for number in rows if number not in self._ids]
        values = {number: _values(row) for number, row in rows.items()}
        opened: list[int] = []
        with _told(self._path), self._connection:
            if self._connection.in_transaction:  # a commit that failed may leave it (Python 3.10)
                self._connection.rollback()
            self._connection.execute("BEGIN IMMEDIATE")
            self._update([(*values[number], self._ids[number]) for number in rows if number in self._ids])
            for part in _parts([(*values[number], self._process) for number in new]):
                cursor = self._connection.execute(_INSERT + _places(part), list(chain.from_iterable(part)))
                assert cursor.lastrowid is not None  # noqa: S101 - an INSERT that has not failed
                # The rows of one statement have ids that follow each other: nobody else writes meanwhile.
                opened += range(cursor.lastrowid - len(part) + 1, cursor.lastrowid + 1)
            dropped = make_room(self._connection, most_rows, oldest)
        self._ids.update(zip(new, opened, strict=True))
        for number, row in rows.items():
            if row.state == "ended" and number not in awaited:
                self._ids.pop(number, None)
        return dropped

    def _update(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Write rows in place of older ones; a tuple ends with its row's id."""
        for part in _parts(rows):
            self._connection.execute(_UPDATE % _places(part), list(chain.from_iterable(part)))

    def read(self, wanted: Filter = EVERYTHING) -> list[bytes]:
        """The rows as JSON objects, the oldest first."""
        with _told(self._path):
            return _read(self._connection, wanted)

    def read_page(
        self,
        wanted: Filter = EVERYTHING,
        after: Cursor | None = None,
        *,
        until: int | None = None,
        most_rows: int | None = None,
    ) -> Page:
        """Some of the rows that `read` has: see `pages.read_page`."""
        where = _where(wanted, "id <= ?", *([] if after is None else ["(time, id) > (?, ?)"]))
        with _told(self._path):
            return read_page(self._connection, where, after, until=until, most_rows=most_rows)

    def count_ended(self, wanted: Filter) -> int:
        """How many rows that match have ended."""
        where, values = _where(wanted, "state = 'ended'")
        with _told(self._path):
            (count,) = self._connection.execute(f"SELECT count(*) FROM rows {where}", values).fetchone()  # noqa: S608 - as above
        return int(count)

    def delete(self, wanted: Filter) -> int:
        """Remove rows, open ones too, which then do not come back when they end; how many."""
        where, values = _where(wanted)
        with _told(self._path):
            return self._connection.execute(f"DELETE FROM rows {where}", values).rowcount  # noqa: S608 - as above

    def end_open(self, ending: str, process: int | None = None) -> None:
        """Rows that are open although nobody is there any more to end them: say so in the journal.

        `process` is the one that is gone; None: all that wrote before.
        """
        with _told(self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            open_rows = self._connection.execute(
                "SELECT id, document FROM rows WHERE state = 'open' AND coalesce(process = ?, TRUE)",
                (process,),
            ).fetchall()
            rows = ((number, msgspec.json.decode(document, type=Row)) for number, document in open_rows)
            self._update([(*_values(_lost(row, ending)), number) for number, row in rows])


def _lost(row: Row, ending: str) -> Row:
    """A row as nobody has ended it: what its client got of it is not known."""
    return msgspec.structs.replace(
        row, state="ended", ending=ending, words=None, reached=None, ends_well=None
    )


def _values(row: Row) -> tuple[object, ...]:
    return (*(getattr(row, name) for name in _COLUMNS), msgspec.json.encode(row).decode())


def _places(part: Sequence[object]) -> str:
    return ", ".join([_VALUES] * len(part))


def _parts(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """The rows in parts of few sizes, so that SQLite knows each statement already."""
    begin = 0
    for size in _AT_ONCE:
        while len(rows) - begin >= size:
            yield rows[begin : begin + size]
            begin += size


def prepare(path: str) -> None:
    """Make sure that a file is a journal that can be written: made with mode 0600, or an older one, taken over.

    What an earlier process has left open is ended as `server_lost`.

    Raises:
        DatabaseError: it is not, and cannot be.
    """
    make(path)
    end_lost(path)


def begin_anew(path: str, old: Database | None, wrong: str) -> str | None:
    """Have a journal at `path` whatever has become of the one that was there; where that is now, if we moved it.

    What is in place and is a journal that we have not opened is used as it is: another process of the service has
    made it, or somebody put it there.

    Raises:
        DatabaseError: there cannot be one.
    """
    with _told(path):
        moved = None if old is None else old.leave(wrong)
    try:
        make(path)
    except DatabaseError as error:
        if not error.is_damaged:
            raise
        moved = set_aside(path)
        make(path)
    return moved


def make(path: str) -> None:
    """As `prepare`, and leave the rows alone.

    Raises:
        DatabaseError: it is not, and cannot be.
    """
    with _told(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_file = S_ISREG(os.fstat(handle).st_mode)
        os.close(handle)
        if not is_file:
            raise DatabaseError(f"{path}: not a regular file")
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        with _told(path):
            _refuse_others(connection, path)
            Path(path).chmod(0o600)  # only what is ours; the log beside it gets the same mode
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={_VERSION}")
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise DatabaseError(f"{path}: this file system has no write-ahead log (journal mode {mode})")
            _make(connection)
    finally:
        connection.close()


def _refuse_others(connection: sqlite3.Connection, path: str) -> None:
    """Leave alone what is neither empty nor a journal of ours.

    Raises:
        DatabaseError: it is somebody else's, or another version's.
    """
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if owner != _APPLICATION_ID and (owner or tables):
        raise DatabaseError(f"{path}: a database of another program")
    if tables and version != _VERSION:
        raise DatabaseError(f"{path}: a journal of version {version}, expected {_VERSION}; move it away")


def read_file(path: str, wanted: Filter) -> list[bytes]:
    """The rows of a file that nobody may change by looking at it; see `Database.read`.

    Raises:
        DatabaseError: it is no journal, or cannot be read.
    """
    with _told(path):
        connection = sqlite3.connect(
            f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S
        )
        try:
            _refuse_others(connection, path)
            return _read(connection, wanted)
        finally:
            connection.close()


def _read(connection: sqlite3.Connection, wanted: Filter) -> list[bytes]:
    where, values = _where(wanted)
    found = connection.execute(f"SELECT id, document FROM rows {where} ORDER BY time, id", values)  # noqa: S608 - as above
    return [with_id(number, document) for number, document in found]


def _make(connection: sqlite3.Connection) -> None:
    """Make the tables that are not there."""
    for statement in _SCHEMA:
        connection.execute(statement)


def end_lost(path: str, process: int | None = None) -> None:
    """End the rows that a process left open when it was lost; None: any process of earlier.

    Raises:
        DatabaseError: they cannot be written.
    """
    database = Database(path, 0)
    try:
        database.end_open(Unplanned.SERVER_LOST, process)
    finally:
        database.close()


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn what SQLite and the system say into one line that names the file."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise DatabaseError(f"{path}: a row cannot be read: {error}") from None
    except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        # A file that is missing is as good as a damaged one: there has to be a new one.
        is_damaged = isinstance(error, FileNotFoundError) or any(
            said in reason for said in _DAMAGE
        )  # `sqlite_errorcode` is there since Python 3.11
        raise DatabaseError(f"{path}: {reason}", is_damaged=is_damaged) from None


def _where(wanted: Filter, *more: str) -> tuple[str, list[object]]:
    conditions, values = list(more), []
    for name in FILTERS:
        value = getattr(wanted, name)
        if value is not None:
            conditions.append("time >= ?" if name == "since" else f'"{name}" = ?')
            values.append(value)
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", values
