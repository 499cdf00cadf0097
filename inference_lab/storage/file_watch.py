"""What others do to a SQLite file while it is open: SQLite itself writes on into a file that nobody sees any more."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_ENDS: Final = ("", "-wal", "-shm")
"""The file, its log and the log's index, by what their names end with."""
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_OWNER_AT: Final = 68
"""https://www.sqlite.org/fileformat2.html#the_database_header"""


class FileWatch:
    """The file at `path`, which SQLite has open for as long as this lasts.

    Made before SQLite opens the file and closed after it has closed it: closing any descriptor of a file lets go of all
    locks that the process has on it, SQLite's too.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._files: dict[str, os.stat_result] = {}
        self._bytes = 0

    def begin(self) -> None:
        """The files as they are now, the log among them, are those to watch."""
        self._files = {end: Path(self._path + end).stat() for end in _ENDS}
        self._bytes = self._files[""].st_size

    def what_is_wrong(self, owner: int) -> str | None:
        """What has been done to it since, in a few words; `owner` is the application id of its header."""
        for end, before in self._files.items():
            try:
                now = Path(self._path + end).stat()
            except OSError:
                return f"{self._path + end} was removed"
            if not os.path.samestat(now, before):
                return f"{self._path + end} was replaced"
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        bytes_before, self._bytes = self._bytes, os.fstat(self._descriptor).st_size
        # SQLite gives no room back unless somebody has it tidy up (VACUUM), and then writes down how much is left.
        if self._bytes < bytes_before and self._bytes < _bytes_told(header):
            return f"{self._path} was truncated"
        is_ours = header.startswith(_MAGIC) and header[_OWNER_AT:][:4] == owner.to_bytes(4, "big")
        return None if is_ours else f"{self._path} was written over"

    def is_in_place(self) -> bool:
        """Whether the file that was opened is the one that its path names."""
        try:
            return os.path.samestat(Path(self._path).stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def remove_log(self) -> None:
        """Another file is in place, or none: our log is nothing for it."""
        for end in _ENDS[1:]:
            log = Path(self._path + end)
            with suppress(OSError):
                if os.path.samestat(log.stat(), self._files[end]):
                    log.unlink()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def set_aside(path: str) -> str | None:
    """Give a file and its log other names, since nobody's bytes are removed; the new one, where there was a file.

    Raises:
        OSError: they cannot be renamed.
    """
    number = 1
    while Path(f"{path}.damaged-{number}").exists():
        number += 1
    aside = f"{path}.damaged-{number}"
    for end in _ENDS:
        with suppress(FileNotFoundError):
            Path(path + end).rename(aside + end)
    return aside if Path(aside).exists() else None


def _bytes_told(header: bytes) -> int:
    """How long a file is by what its header says, in pages; without one it ought to have one."""
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    return (65_536 if page == 1 else page) * pages if header.startswith(_MAGIC) else 0
