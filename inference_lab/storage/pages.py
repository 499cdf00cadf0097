"""The journal's rows page by page, so that nobody has to hold all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from inference_lab.core.journal.filters import Place
from inference_lab.storage.room import count_dropped

if TYPE_CHECKING:
    from sqlite3 import Connection

_NO_ID: Final = '{"id":0,'
"""How a document begins: its id is the row's, which the database gives."""
_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 32_768


class Page(NamedTuple):
    """Some rows as JSON objects, and the place of the last if there are more after it.

    `until` is the last row that the journal had when its first page was read, `dropped` how many it has let go so far.
    """

    rows: list[bytes]
    next: Place | None
    until: int
    dropped: int


def read_page(
    connection: Connection,
    where: tuple[str, list[object]],
    after: Place | None,
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
        last = Place(time, number)
    found.close()  # or the log beside the file could not be cleared up to here
    return Page(rows, following, until, count_dropped(connection))


def with_id(number: int, document: str) -> bytes:
    """A row's document with the id that the database has given it."""
    return f'{{"id":{number},{document[len(_NO_ID) :]}'.encode()
