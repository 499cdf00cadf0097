"""The test that is running: its own fault, and ids that nothing else has."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH = 40


class CurrentTest:
    """What a lab knows about the test that asks it.

    Ids are counted per test, not drawn: the same test sends the same bytes in every run, alone or among others, so it
    gets the same words and the same death. They are unique on one server, however often a test is run again.
    """

    def __init__(self) -> None:
        self.marked: tuple[object, ...] | None = None
        """The arguments of the test's `fault` marker, if it has one."""
        self.latest: str | None = None
        """The last id that this test has got."""
        self._name = "test"
        self._counts: Counter[str] = Counter()

    def begin(self, name: str, marked: tuple[object, ...] | None = None) -> None:
        """Another test runs now; `name` is its full one, such as pytest's node id; `marked` see there."""
        short = _FOREIGN.sub("-", re.split(r"::|\.(?=\w+$)", name)[-1])[:_NAME_LENGTH].strip("-")
        # Tests in different files may share the short name.
        digest = hashlib.blake2b(name.encode(errors="backslashreplace"), digest_size=4).hexdigest()
        self._name = f"{short or 'test'}-{digest}"
        self.marked = marked
        self.latest = None

    def fresh(self) -> str:
        """A new id: 1 to 64 characters of `[A-Za-z0-9._-]`."""
        self._counts[self._name] += 1
        self.latest = f"{self._name}-{self._counts[self._name]}"
        return self.latest
