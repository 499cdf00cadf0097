"""The journal's own thread: rows come in batches and are written at once, questions wait for their answers.

The reactor never waits for the disk. What cannot be written is kept and tried again, as far as there is room; what does
not fit is lost, counted and logged.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.storage.database import Database, DatabaseError, begin_anew
from inference_lab.storage.journal_file import Claim, ClaimError
from inference_lab.storage.pages import most_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from inference_lab.core.journal.row import Row

_T = TypeVar("_T")

_RETRY_S: Final = 1.0
MOST_WAITING: Final = 10_000
"""Rows that may wait to be written, and no more of them than come to `_WAITING_BYTES`."""
_WAITING_BYTES: Final = 33_554_432
_UNWEIGHED: Final = 256
"""So many rows wait only where writing fails: before that nobody asks what they come to."""

_log: Final = Logger()


class Store:
    """Rows in the database at `path`.

    `deliver` calls a function in the reactor's thread; `wall_seconds` is Unix time. The journal keeps `most_rows` rows
    that have ended, none of them older than `most_age_s`. `claim` keeps others from a file, and goes with the store.
    """

    def __init__(
        self,
        path: str,
        deliver: Callable[..., None],
        wall_seconds: Callable[[], float],
        *,
        most_rows: int,
        most_age_s: float,
        claim: Claim | None = None,
    ) -> None:
        self.path = path
        self.lost_rows = 0
        """Rows that found no room, or were in a file that is gone, since the start."""
        self._claim = claim
        self._deliver = deliver
        self._wall_seconds = wall_seconds
        self._most_rows = most_rows
        self._most_age_s = most_age_s
        self._rows: deque[tuple[int, Row, bool, int]] = deque()
        self._put_bytes = 0  # of the rows that have been weighed
        self._taken_bytes = 0  # the thread's own: of these, what it has taken
        self._written_bytes = 0  # the thread's own: and what does not wait any more
        self._unwritten: dict[int, Row] = {}  # the thread's own: taken from `_rows`, to be written next
        self._open: dict[int, Row] = {}  # the thread's own: what a new file has to be told of
        self._ended_rows = 0  # written to the file, where it cannot be asked any more
        self._awaited: set[int] = set()  # of those that have ended, the ones that come once more
        self._questions: deque[tuple[Callable[[Database], Any], Deferred[Any]]] = deque()
        self._something = threading.Event()
        self._closed: Deferred[None] | None = None
        self._failed: str | None = None  # why the last attempt to write did
        self._is_losing = False
        self._is_full = False  # the thread's own: rows have been dropped for room
        self._thread: threading.Thread | None = None

    # -- the reactor's side

    def start(self) -> None:
        """Begin to write; what came before waits."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, rows: Mapping[int, Row], awaited: AbstractSet[int] = frozenset()) -> None:
        """See `Rows.put`."""
        lost = 0
        for number, row in rows.items():
            waiting = self.waiting_rows
            size = len(msgspec.json.encode(row)) if waiting >= _UNWEIGHED else 0
            has_room = (
                waiting < MOST_WAITING and self._put_bytes - self._written_bytes + size <= _WAITING_BYTES
            )
            if self._closed is None and has_room:
                self._put_bytes += size
                self._rows.append((number, row, number in awaited, size))
            else:
                lost += 1
        self.lost_rows += lost
        if lost and self._closed is None and not self._is_losing:
            self._is_losing = True
            _log.error(
                "journal {path}: {count} rows wait to be written, further ones are lost",
                path=self.path,
                count=self.waiting_rows,
            )
        if self._failed is None:  # otherwise the thread looks by itself, not for every batch
            self._something.set()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait to be written."""
        return len(self._rows) + len(self._unwritten)

    def ask(self, question: Callable[[Database], _T]) -> Deferred[_T]:
        """What `question` finds once all rows so far are written; it fails with DatabaseError if they cannot be."""
        if self._closed is not None:
            return fail(DatabaseError(f"{self.path}: closed"))
        answer: Deferred[_T] = Deferred()
        self._questions.append((question, answer))
        self._something.set()
        return answer

    def close(self) -> Deferred[None]:
        """Write what is there and end the thread; fires when that has been done, or cannot be."""
        if self._closed is None:
            self._closed = Deferred()
            if self._thread is None:
                self._closed.callback(None)
            self._something.set()
        return self._closed

    def _found_again(self) -> None:
        _log.info(
            "journal {path}: written again, {lost} rows lost so far", path=self.path, lost=self.lost_rows
        )
        self._is_losing = False

    def _cannot_write(self, reason: str) -> None:
        _log.error("journal {reason}: its rows wait, the server serves on", reason=reason)

    def _begun_anew(self, wrong: str, lost: int, moved: str | None) -> None:
        self.lost_rows += lost
        _log.error(
            "journal {path}: {wrong} under the server: a new file is begun, {lost} rows of this process lost{aside}",
            path=self.path,
            wrong=wrong,
            lost=lost,
            aside=f"; what was there is now {moved}" if moved else "",
        )

    def _has_filled(self) -> None:
        _log.info(
            "journal {path}: full with {rows} rows, or {bytes} bytes: from now on the oldest are dropped",
            path=self.path,
            rows=self._most_rows,
            bytes=most_bytes(self._most_rows),
        )

    def _has_lost(self, rows: int, defect: Failure) -> None:
        self.lost_rows += rows
        _log.failure(
            "journal {path}: {rows} rows lost to a defect", failure=defect, path=self.path, rows=rows
        )

    def _has_ended(self, unwritten: int) -> None:
        if unwritten:
            self.lost_rows += unwritten
            _log.error("journal {path}: {lost} rows lost at the end", path=self.path, lost=unwritten)
        assert self._closed is not None  # noqa: S101 - the thread ends for no other reason
        self._closed.callback(None)

    # -- the thread's side

    def _run(self) -> None:
        database: Database | None = None
        wrong: str | None = None  # with the file that was opened
        with suppress(DatabaseError):  # met again, and told, with the first row
            database = Database(self.path, os.getpid())
        while True:
            # What comes after an attempt that failed sets nothing, whether or not there was something to write.
            self._something.wait(None if self._failed is None and not self._rows else _RETRY_S)
            self._something.clear()
            closing = self._closed is not None
            asked = len(
                self._questions
            )  # what is asked from now on may be about rows that come after this write
            before, failed = self._failed, None
            try:
                if database is not None and self._closed is None:  # at the end somebody may clear it away
                    wrong = wrong or database.what_is_wrong()
                if wrong is not None:
                    database, wrong = self._begin_anew(database, wrong), None
                elif database is None:
                    database = Database(self.path, os.getpid())
                self._write(database)
            except DatabaseError as error:
                failed = str(error)
                if error.is_damaged and wrong is None:
                    wrong = f"{self.path} was written over ({failed})"
            except Exception:  # noqa: BLE001 - a defect costs the batch, not the journal
                self._deliver(self._has_lost, len(self._unwritten), Failure())
                self._let_go()
            self._failed = failed
            if failed is not None and before is None:
                self._deliver(self._cannot_write, failed)
            elif failed is None and before is not None:
                self._deliver(self._found_again)
            # One at a time, so that rows do not wait for all of them; at the end, or in vain, all at once.
            is_last = closing or self._failed is not None
            self._answer(database, asked if is_last else min(asked, 1))
            if self._questions and not is_last:
                self._something.set()
            if closing:
                if database is not None:
                    database.close()
                if self._claim is not None:
                    self._claim.close()
                self._deliver(self._has_ended, len(self._unwritten) + len(self._rows))
                return

    def _begin_anew(self, old: Database | None, wrong: str) -> Database:
        """A file in place of one that is gone, which is told once more of what is open."""
        count = 0 if old is None else old.count_own()
        lost = self._ended_rows if count is None else count
        try:
            with nullcontext() if self._claim is None else self._claim.alone():
                moved = begin_anew(self.path, old, wrong)
        except ClaimError as error:
            raise DatabaseError(str(error)) from None
        database = Database(self.path, os.getpid())
        self._unwritten = {**self._open, **self._unwritten}
        self._ended_rows = 0
        self._deliver(self._begun_anew, wrong, lost, moved)
        return database

    def _write(self, database: Database) -> None:
        while self._rows:
            number, row, is_awaited, size = self._rows.popleft()
            self._taken_bytes += size
            self._unwritten[number] = row
            if row.state == "open" or is_awaited:
                self._open[number] = row
            else:
                self._open.pop(number, None)
            (self._awaited.add if is_awaited else self._awaited.discard)(number)
        if self._unwritten:
            oldest = self._wall_seconds() - self._most_age_s
            dropped = database.write(
                self._unwritten, most_rows=self._most_rows, oldest=oldest, awaited=self._awaited
            )
            ended = sum(row.state == "ended" for row in self._unwritten.values())
            self._ended_rows = min(self._ended_rows + ended, self._most_rows)
            self._let_go()
            if dropped and not self._is_full:
                self._is_full = True
                self._deliver(self._has_filled)

    def _let_go(self) -> None:
        self._unwritten = {}
        self._written_bytes = self._taken_bytes

    def _answer(self, database: Database | None, count: int) -> None:
        for _ in range(count):
            question, answer = self._questions.popleft()
            try:
                if database is None or self._failed is not None:
                    raise DatabaseError(self._failed or self.path)  # noqa: TRY301 - as if the question had met it
                found = question(database)
            except Exception:  # noqa: BLE001 - whoever asked is told
                self._deliver(answer.errback, Failure())
            else:
                self._deliver(answer.callback, found)
