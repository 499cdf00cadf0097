"""What a journal has room for: so many rows, so many bytes, none too old. The oldest go first, and are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlite3 import Connection

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS dropped (count INTEGER NOT NULL)",
    "INSERT INTO dropped SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM dropped)",
)
_ROW_BYTES: Final = 2048
_LEAST_BYTES: Final = 1_048_576
_AT_ONCE: Final = 8


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
