"""The journal's thread and its database: batches, bounds, and what happens when the disk says no."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing, suppress
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from twisted.logger import formatEvent, globalLogPublisher

from inference_lab.core.journal.filters import EVERYTHING, Filter
from inference_lab.core.journal.row import Row
from inference_lab.storage import database as storage
from inference_lab.storage import store as stores
from inference_lab.storage.database import MEMORY, Database, DatabaseError, end_lost, prepare, read_file
from inference_lab.storage.journal_file import Claim, ClaimError
from inference_lab.storage.pages import most_bytes
from inference_lab.storage.store import Store
from tests.support.rows import NOW, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def read(database: Database, wanted: Filter = EVERYTHING) -> list[Row]:
    return [msgspec.json.decode(document, type=Row) for document in database.read(wanted)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "journal.sqlite")
    prepare(file)
    return file


class Reactor:
    """Calls functions of the thread in ours, when asked to."""

    def __init__(self) -> None:
        self._calls: Queue[tuple[Any, ...]] = Queue()

    def deliver(self, *call: Any) -> None:
        self._calls.put(call)

    def run_until(self, found: list[Any]) -> Any:
        while not found:
            function, *arguments = self._calls.get(timeout=20)
            function(*arguments)
        return found[0]

    def answer(self, deferred: Any) -> Any:
        found: list[Any] = []
        deferred.addBoth(found.append)
        return self.run_until(found)


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged, as text."""
    told: list[str] = []

    def observe(event: Any) -> None:
        told.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield told
    globalLogPublisher.removeObserver(observe)


def store_of(path: str, reactor: Reactor, **more: Any) -> Store:
    bounds = {"most_rows": 100, "most_age_s": 3600.0, **more}
    return Store(path, reactor.deliver, lambda: NOW, **bounds)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, path: str, reactor: Reactor) -> Iterator[Store]:
    made = store_of(path if request.param == "file" else MEMORY, reactor)
    made.start()
    yield made
    reactor.answer(made.close())


def test_a_question_is_answered_from_all_rows_so_far(store: Store, reactor: Reactor) -> None:
    for number in range(5):
        store.put({number: row(state="open", tag="qu")})
    assert len(reactor.answer(store.ask(read))) == 5
    for number in range(5):
        store.put({number: row(tag="qu", words=number)})
    rows = reactor.answer(store.ask(read))
    assert [(found.id, found.state, found.words) for found in rows] == [
        (number + 1, "ended", number) for number in range(5)
    ]


def test_a_failing_question_fails_alone(store: Store, reactor: Reactor) -> None:
    def fail(_: Database) -> None:
        raise ValueError("odd")

    assert reactor.answer(store.ask(fail)).check(ValueError)
    assert reactor.answer(store.ask(read)) == []


def test_the_oldest_rows_go_when_there_are_too_many_but_open_ones_stay(path: str) -> None:
    database = Database(path, 1)
    database.write({0: row(state="open")}, most_rows=10, oldest=0)
    for number in range(1, 40):
        database.write({number: row(words=number)}, most_rows=10, oldest=0)
    rows = read(database)
    assert [found.words for found in rows if found.state == "ended"] == list(range(30, 40))
    assert [found.state for found in rows].count("open") == 1
    database.close()


def test_rows_go_when_they_are_too_old(path: str) -> None:
    database = Database(path, 1)
    database.write({n: row(NOW + n) for n in range(10)}, most_rows=100, oldest=0)
    database.write({10: row(NOW + 10)}, most_rows=100, oldest=NOW + 4)
    assert [found.time for found in read(database)] == [NOW + n for n in range(4, 11)]
    database.close()


ROWS = {
    0: row(NOW, prompt="p", tag="aa", request_id="r", test="t", trigger="header", ending="fin"),
    1: row(NOW + 1, prompt="p", tag="aa", trigger="prompt", ending="rst"),
    2: row(NOW + 2, prompt="q", tag="aa", trigger="engine", ending=None, state="open"),
}


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (EVERYTHING, [1, 2, 3]),
        (Filter(prompt="p"), [1, 2]),
        (Filter(tag="aa", ending="rst"), [2]),
        (Filter(request_id="r"), [1]),
        (Filter(test="t"), [1]),
        (Filter(test="u"), []),
        (Filter(trigger="engine"), [3]),
        (Filter(since=NOW + 1), [2, 3]),
        (Filter(tag="' OR 1=1 --"), []),
    ],
)
def test_filters_are_joined_with_and(path: str, wanted: Filter, ids: list[int]) -> None:
    database = Database(path, 1)
    database.write(ROWS, most_rows=100, oldest=0)
    assert [found.id for found in read(database, wanted)] == ids
    assert [found.id for found in map(_decoded, read_file(path, wanted))] == ids
    assert database.count_ended(wanted) == len([number for number in ids if number != 3])
    assert database.delete(wanted) == len(ids)
    assert [found.id for found in read(database)] == [n for n in (1, 2, 3) if n not in ids]
    database.close()


def _decoded(document: bytes) -> Row:
    return msgspec.json.decode(document, type=Row)


def test_a_deleted_open_row_does_not_come_back(path: str) -> None:
    database = Database(path, 1)
    database.write({0: row(state="open")}, most_rows=100, oldest=0)
    assert database.delete(EVERYTHING) == 1
    database.write({0: row()}, most_rows=100, oldest=0)
    assert read(database) == []
    database.close()


def test_the_file_is_the_users_alone_also_when_it_was_there(tmp_path: Path) -> None:
    file = tmp_path / "j"
    file.touch(mode=0o644)
    prepare(str(file))
    database = Database(str(file), 1)
    database.write({0: row()}, most_rows=1, oldest=0)
    for there in tmp_path.iterdir():
        assert stat.S_IMODE(there.stat().st_mode) == 0o600, there
    database.close()


def test_what_a_process_left_open_is_ended_when_it_is_known_to_be_gone(path: str) -> None:
    for process in (7, 8):
        database = Database(path, process)
        database.write({0: row(state="open"), 1: row(ending="fin")}, most_rows=100, oldest=0)
        database.close()
    end_lost(path, 7)
    rows = list(map(_decoded, read_file(path, EVERYTHING)))
    assert [(found.state, found.ending) for found in rows] == [
        ("ended", "server_lost"),
        ("ended", "fin"),
        ("open", None),
        ("ended", "fin"),
    ]
    prepare(path)  # what the next start does
    assert all(_decoded(document).state == "ended" for document in read_file(path, EVERYTHING))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"some text that is no database at all, whatever its name says", "file is not a database"),
        (None, "another"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "other"
    if content is None:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE theirs (x)")
        other.close()
    else:
        file.write_bytes(content)
    file.chmod(0o644)
    before = file.read_bytes()
    with pytest.raises(DatabaseError, match=reason):
        prepare(str(file))
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (before, 0o644)
    with pytest.raises(DatabaseError, match=reason):
        read_file(str(file), EVERYTHING)


def test_what_is_no_file_is_refused_and_kept(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)  # as /dev/null has it
    with pytest.raises(DatabaseError, match=r"pipe: not a regular file$"):
        prepare(str(pipe))
    assert [found.name for found in tmp_path.iterdir()] == ["pipe"]
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o666


def test_a_journal_of_another_version_is_refused_and_kept(path: str) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version=2")
    other.close()
    with pytest.raises(DatabaseError, match="a journal of version 2, expected 1; move it away"):
        prepare(path)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"missing/j: No such file or directory$"):
        prepare(str(tmp_path / "missing" / "j"))
    with pytest.raises(DatabaseError, match=r"unable to open database file$"):
        read_file(str(tmp_path / "missing"), EVERYTHING)


def test_a_locked_file_keeps_rows_waiting_until_it_is_free(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(stores, "_RETRY_S", 0.01)
    store = store_of(path, reactor)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.start()
    store.put({0: row()})
    refused = reactor.answer(store.ask(read))
    assert refused.check(DatabaseError)
    assert str(refused.value) == f"{path}: database is locked"
    blocker.execute("ROLLBACK")
    blocker.close()
    assert len(reactor.answer(store.ask(read))) == 1
    assert store.lost_rows == 0
    reactor.answer(store.close())


def test_a_file_that_could_not_be_opened_when_somebody_asked_is_written_when_it_can(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_RETRY_S", 0.01)
    written = threading.Event()
    write = Database.write

    def tell(self: Database, *arguments: Any, **more: Any) -> None:
        write(self, *arguments, **more)
        written.set()

    monkeypatch.setattr(Database, "write", tell)
    away = Path(path).rename(f"{path}.away")
    Path(path).mkdir()
    store = store_of(path, reactor)
    store.start()
    assert reactor.answer(store.ask(read)).check(DatabaseError)
    Path(path).rmdir()
    away.rename(path)
    store.put({0: row()})
    assert written.wait(10)
    reactor.answer(store.close())


def test_rows_that_find_no_room_are_counted_as_lost(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_WAITING", 3)
    store = store_of(path, reactor)
    for number in range(5):
        store.put({number: row()})
    assert store.lost_rows == 2
    store.start()
    assert len(reactor.answer(store.ask(read))) == 3
    reactor.answer(store.close())


def test_a_full_disk_loses_no_more_than_finds_no_room(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_RETRY_S", 0.01)
    full = threading.Event()
    write = Database.write

    def written(self: Database, *arguments: Any, **more: Any) -> None:
        pages = 1 if full.is_set() else 2**30
        self._connection.execute(f"PRAGMA max_page_count={pages}")
        write(self, *arguments, **more)

    monkeypatch.setattr(Database, "write", written)
    store = store_of(path, reactor, most_rows=10_000)
    store.start()
    full.set()
    for number in range(200):
        store.put({number: row(path="x" * 200)})
    refused = reactor.answer(store.ask(read))
    assert str(refused.value) == f"{path}: database or disk is full"
    full.clear()
    assert len(reactor.answer(store.ask(read))) == 200
    reactor.answer(store.close())


def test_what_cannot_be_written_at_the_end_is_counted(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT_S", 0.01)
    store = store_of(path, reactor)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.start()
    store.put({0: row()})
    reactor.answer(store.close())
    assert store.lost_rows == 1
    blocker.close()


def test_a_defect_costs_its_batch_and_not_the_journal(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Database.write

    def failing(self: Database, rows: Any, **more: Any) -> None:
        if any(found.words < 0 for found in rows.values()):
            raise RuntimeError("odd")
        write(self, rows, **more)

    monkeypatch.setattr(Database, "write", failing)
    store = store_of(path, reactor)
    store.start()
    store.put({0: row(words=-1)})
    assert reactor.answer(store.ask(read)) == []
    store.put({1: row()})
    assert len(reactor.answer(store.ask(read))) == 1
    assert store.lost_rows == 1
    reactor.answer(store.close())


def test_a_store_that_never_began_closes_at_once(path: str, reactor: Reactor) -> None:
    assert store_of(path, reactor).close().called


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    prepare(str(other))
    other.replace(path)


def _write_over(path: Path) -> None:
    path.write_bytes(b"\xa5" * 40_000)


def _write_over_its_rows(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 40_000)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def _remove_index(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_remove, "was removed"),
        (Path.unlink, "was removed"),
        (_replace, "was replaced"),
        (_write_over, "was written over"),
        (_truncate, "was truncated"),
        (lambda path: os.truncate(path, 0), "was truncated"),
        (_remove_log, "-wal was removed"),
        (_remove_index, "-shm was removed"),
    ],
)
def test_a_file_that_is_harmed_under_its_server_is_told_once_and_a_new_one_begun(
    path: str, reactor: Reactor, logged: list[str], harm: Callable[[Path], None], said: str
) -> None:
    store = store_of(path, reactor)
    store.start()
    store.put({0: row(), 1: row(state="open", ending=None, request_id="live")})
    assert len(reactor.answer(store.ask(read))) == 2
    harm(Path(path))
    for number in (2, 3):
        store.put({number: row()})
        reactor.answer(store.ask(read))
    store.put({1: row(request_id="live")})
    kept = reactor.answer(store.ask(read))
    assert sorted((one.state, one.request_id) for one in kept if one.request_id) == [("ended", "live")]
    assert len(kept) == 3  # what ended before is gone, and nothing else
    assert store.lost_rows == 1
    reactor.answer(store.close())
    (told,) = [text for text in logged if "under the server" in text]
    assert said in told
    assert "a new file is begun, 1 rows of this process lost" in told
    assert len(read_file(path, EVERYTHING)) == 3


def test_a_file_whose_rows_are_written_over_is_told_when_they_are_read(
    path: str, reactor: Reactor, logged: list[str]
) -> None:
    with closing(sqlite3.connect(path)) as filler:
        filler.execute("CREATE TABLE filler AS SELECT zeroblob(100000)")
    store = store_of(path, reactor)
    store.start()
    store.put({0: row()})
    reactor.answer(store.ask(read))
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _write_over_its_rows(Path(path))
    store.put({1: row()})
    with suppress(DatabaseError):
        reactor.answer(store.ask(read))
    assert len(reactor.answer(store.ask(read))) == 1
    reactor.answer(store.close())
    assert any("was written over" in text for text in logged)


def test_a_file_that_somebody_tidies_up_is_the_same(path: str, reactor: Reactor, logged: list[str]) -> None:
    with closing(sqlite3.connect(path)) as filler:
        filler.execute("CREATE TABLE filler AS SELECT zeroblob(100000)")
    store = store_of(path, reactor)
    store.start()
    store.put({0: row()})
    reactor.answer(store.ask(read))
    before = Path(path).stat().st_size
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE filler")
        other.execute("VACUUM")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert Path(path).stat().st_size < before
    store.put({1: row()})
    assert len(reactor.answer(store.ask(read))) == 2
    reactor.answer(store.close())
    assert logged == []


def test_another_programs_database_in_its_place_is_left_alone(
    path: str, reactor: Reactor, logged: list[str], tmp_path: Path
) -> None:
    store = store_of(path, reactor)
    store.start()
    store.put({0: row()})
    reactor.answer(store.ask(read))
    other = tmp_path / "other"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    theirs = other.read_bytes()
    other.replace(path)
    store.put({1: row()})
    assert "of another program" in str(reactor.answer(store.ask(read)))
    reactor.answer(store.close())
    assert Path(path).read_bytes() == theirs
    assert any("of another program" in text for text in logged)


def test_a_file_has_one_owner_and_a_link_to_it_is_the_same_file(path: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    claim = Claim(path)
    for name in (path, str(link)):
        with pytest.raises(ClaimError, match="in use by"):
            Claim(name)
    claim.close()
    Claim(path).close()


def test_a_row_that_has_ended_is_written_once_more_where_it_is_awaited(
    store: Store, reactor: Reactor
) -> None:
    store.put({0: row(bytes_unsent=9)}, frozenset({0}))
    assert [found.bytes_unsent for found in reactor.answer(store.ask(read))] == [9]
    store.put({0: row(bytes_unsent=0)})
    assert [found.bytes_unsent for found in reactor.answer(store.ask(read))] == [0]


# -- bounds in bytes, and pages


def test_a_journal_of_fat_rows_keeps_the_newest_and_counts_what_it_drops(tmp_path: Path) -> None:
    for path in (MEMORY, str(tmp_path / "j")):
        if path != MEMORY:
            prepare(path)
        database = Database(path, 1)
        for number in range(300):
            fat = row(NOW + number, headers={str(place): "x" * 1000 for place in range(10)})
            database.write({number: fat}, most_rows=500, oldest=0)
        kept = database.read_page(most_rows=1_000)
        rows = read(database)
        assert 60 < len(rows) < 120
        assert [found.time for found in rows] == [NOW + number for number in range(300 - len(rows), 300)]
        assert kept.dropped == 300 - len(rows)
        database.close()
        if path != MEMORY:
            assert Path(path).stat().st_size <= 2 * most_bytes(500)


def test_an_open_row_stays_where_the_journal_is_full() -> None:
    database = Database(MEMORY, 1)
    database.write({0: row(state="open")}, most_rows=1, oldest=0)
    for number in range(1, 300):
        fat = row(headers={str(place): "x" * 1000 for place in range(10)})
        database.write({number: fat}, most_rows=1_000_000 if number < 2 else 1, oldest=0)
    assert [found.state for found in read(database)] == ["open", "ended"]


def test_that_rows_are_dropped_is_said_once_and_counted(
    path: str, reactor: Reactor, logged: list[str]
) -> None:
    store = store_of(path, reactor, most_rows=3)
    store.start()
    for number in range(9):
        store.put({number: row()})
        reactor.answer(store.ask(read))
    assert reactor.answer(store.ask(lambda database: database.read_page())).dropped == 6
    reactor.answer(store.close())
    assert len([text for text in logged if "full with 3 rows" in text]) == 1


def test_rows_that_wait_have_a_bound_in_bytes(
    path: str, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_UNWEIGHED", 0)
    monkeypatch.setattr(stores, "_WAITING_BYTES", 50_000)
    store = store_of(path, reactor)
    for number in range(20):
        store.put({number: row(path="x" * 10_000)})
    assert store.lost_rows == 16
    store.start()
    assert len(reactor.answer(store.ask(read))) == 4
    store.put({20: row(path="x" * 10_000)})
    assert len(reactor.answer(store.ask(read))) == 5
    reactor.answer(store.close())


@pytest.mark.parametrize("most_rows", [1, 7, None])
def test_pages_joined_are_the_whole_whatever_comes_and_goes_meanwhile(most_rows: int | None) -> None:
    database = Database(MEMORY, 1)
    database.write(
        {n: row(NOW + n % 7, path=f"/{n}" * 200) for n in range(300)}, most_rows=1_000_000, oldest=0
    )
    whole = database.read()
    found: list[bytes] = []
    page = database.read_page(most_rows=most_rows)
    further = 1000
    while True:
        found += page.rows
        if page.next is None:
            break
        further += 1
        database.write({further: row(NOW + 3)}, most_rows=1_000_000, oldest=0)
        database.delete(Filter(since=NOW + 6) if further == 1003 else Filter(test="nobody"))
        page = database.read_page(after=page.next, until=page.until, most_rows=most_rows)
    whole = [document for document in whole if msgspec.json.decode(document, type=Row).time < NOW + 6]
    assert [one for one in found if msgspec.json.decode(one, type=Row).time < NOW + 6] == whole
    assert len(found) == len(set(found))


def test_a_page_is_bounded_in_bytes_and_has_one_row_at_least() -> None:
    database = Database(MEMORY, 1)
    database.write({n: row(path="x" * 60_000) for n in range(3)}, most_rows=1_000, oldest=0)
    page = database.read_page()
    assert len(page.rows) == 1
    assert page.next is not None


def test_rows_are_written_between_two_questions(path: str, reactor: Reactor) -> None:
    store = store_of(path, reactor)

    def put_and_read(database: Database) -> int:
        found = len(database.read())
        store.put({found: row()})
        return found

    answers = [store.ask(put_and_read) for _ in range(4)]
    store.start()
    assert [reactor.answer(answer) for answer in answers] == [0, 1, 2, 3]
    reactor.answer(store.close())
