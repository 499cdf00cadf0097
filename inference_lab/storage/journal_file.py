"""The journal's file among others: one service to it, and what others do to it while it is open.

A process id would not do as a claim: a container that starts again has the same one. It is a lock on a file beside the
journal, which the processes of a service share and the kernel lets go when the last has ended. So SQLite's own locks
are left alone, and a journal that is removed leaves its lock behind.

SQLite itself writes on into a file that nobody sees any more: so the file is watched.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS: Final = ("", "-wal", "-shm")
"""The file, its log and the log's index, by what their names end with."""
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_OWNER_AT: Final = 68
"""https://www.sqlite.org/fileformat2.html#the_database_header"""


class ClaimError(Exception):
    """Why the file cannot be had, in one line."""


class Claim:
    """The lock on the journal at `path`; `descriptor` is of one that a parent holds.

    Raises:
        ClaimError: another process has it, or the file system has no locks.
    """

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        self._path = path
        try:
            real = Path(path).resolve()  # a link to it is the same journal
        except (OSError, ValueError, RuntimeError) as error:  # a name that none can be, links in a circle
            raise ClaimError(f"{path}: {error}") from None
        self._lock = real.with_name(f".{real.name}.lock")
        self.descriptor = self._take() if descriptor is None else descriptor

    def _take(self) -> int:
        while True:
            try:
                descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ClaimError(f"{self._path}: {error.strerror}") from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise ClaimError(
                    f"{self._path}: in use by {holder}; end that server first, or give each a file of its own"
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise ClaimError(
                    f"{self._path}: this file system has no locks ({error.strerror}); choose a file on a local one"
                ) from None
            if self._is_in_place(descriptor):
                return descriptor
            os.close(descriptor)  # removed between the two calls

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except OSError:
            return False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the other processes of the service out; the lock is taken anew where its file was removed.

        Raises:
            ClaimError: another process has it meanwhile.
        """
        if not self._is_in_place(self.descriptor):
            before, self.descriptor = self.descriptor, self._take()
            os.close(before)
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)  # of this process, where flock's belongs to all of them
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of it, as far as this process is concerned."""
        os.close(self.descriptor)


def _holder(descriptor: int) -> str:
    """Who else has the lock file open, as far as this process may know."""
    ours = os.fstat(descriptor)
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            if os.path.samestat(link.stat(), ours):
                found.add(int(link.parts[2]))
    found.discard(os.getpid())
    return f"process {min(found)}" if found else "another process"


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
