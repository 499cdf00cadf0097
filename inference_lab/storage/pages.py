"""What a journal has room for, the oldest rows going first and being counted; and its rows page by page.

So many rows, so many bytes, none too old; and nobody has to hold all of them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from inference_lab.core.journal.filters import Cursor

if TYPE_CHECKING:
    from sqlite3 import Connection

DROPPED_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS dropped (count INTEGER NOT NULL)",
    "INSERT INTO dropped SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM dropped)",
)
_ROW_BYTES: Final = 2048
_LEAST_BYTES: Final = 1_048_576
_AT_ONCE: Final = 8

_NO_ID: Final = '{"id":0,'
"""How a document begins: its id is the row's, which the database gives."""
_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 32_768


def most_bytes(most_rows: int) -> int:
    """What a journal of so many rows may come to: 2 KiB a row, and a mebibyte at least."""
    return max(_LEAST_BYTES, most_rows * _ROW_BYTES)


def make_room(connection: Connection, most_rows: int, oldest: float) -> int:
    """Drop rows that have ended: see `Database.write`. Answers how many found no room; those too old are no news."""
    dropped = connection.execute(
        "DELETE FROM rows WHERE state = 'ended' AND id <= (SELECT max(id) FROM rows) - ?", (most_rows,)
    ).rowcount
    while _live_bytes(connection) > most_bytes(most_rows):
        gone = connection.execute(
            "DELETE FROM rows WHERE id IN (SELECT id FROM rows WHERE state = 'ended' ORDER BY id LIMIT ?)",
            (_AT_ONCE,),
        ).rowcount
        if not gone:
            break
        dropped += gone
    outdated = 0
    first = connection.execute("SELECT time FROM rows WHERE state = 'ended' ORDER BY id LIMIT 1").fetchone()
    if first is not None and first[0] < oldest:
        outdated = connection.execute(
            "DELETE FROM rows WHERE state = 'ended' AND time < ?", (oldest,)
        ).rowcount
    if dropped or outdated:
        connection.execute("UPDATE dropped SET count = count + ?", (dropped + outdated,))
    return dropped


def count_dropped(connection: Connection) -> int:
    """How many rows the journal has dropped since it began."""
    (count,) = connection.execute("SELECT sum(count) FROM dropped").fetchone()
    return int(count)


def _live_bytes(connection: Connection) -> int:
    """Of the pages in use: a count that SQLite keeps, where the rows' own sizes would have to be read."""
    asked = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked)
    return int((pages - free) * size)


class Page(NamedTuple):
    """Some rows as JSON objects, and the place of the last if there are more after it.

    `until` is the last row that the journal had when its first page was read, `dropped` how many it has let go so far.
    """

    rows: list[bytes]
    next: Cursor | None
    until: int
    dropped: int


def read_page(
    connection: Connection,
    where: tuple[str, list[object]],
    after: Cursor | None,
    *,
    until: int | None,
    most_rows: int | None,
) -> Page:
    """The rows after `after`, the oldest first, so many as a reader is given at once: one, if there is any.

    Rows that are newer than `until`, which an earlier page has told, are left out: who reads page after page comes to
    an end, however many are written meanwhile. `where` has conditions that begin with those of `until` and `after`.
    """
    if until is None:
        (until,) = connection.execute("SELECT coalesce(max(id), 0) FROM rows").fetchone()
    conditions, values = where
    most = _PAGE_ROWS if most_rows is None else min(most_rows, _PAGE_ROWS)
    query = f"SELECT time, id, document FROM rows {conditions} ORDER BY time, id LIMIT ?"  # noqa: S608 - our own names
    found = connection.execute(query, [until, *(after or ()), *values, most + 1])
    rows: list[bytes] = []
    last = following = None
    left = _PAGE_BYTES
    for time, number, document in found:
        if rows and (len(rows) == most or len(document) > left):
            following = last
            break
        left -= len(document)
        rows.append(with_id(number, document))
        last = Cursor(time, number)
    found.close()  # or the log beside the file could not be cleared up to here
    return Page(rows, following, until, count_dropped(connection))


def with_id(number: int, document: str) -> bytes:
    """A row's document with the id that the database has given it."""
    return f'{{"id":{number},{document[len(_NO_ID) :]}'.encode()
