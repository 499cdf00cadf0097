"""One service to a journal file: a lock that its processes share, and that the kernel lets go when the last has ended.

A process id would not do: a container that starts again has the same one. The lock is on a file beside the journal, so
that SQLite's own locks are left alone and a journal that is removed leaves its lock behind.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
