"""The KV blocks of one rank: counted, shared by content, and evicted in order.

Rules: docs/engine.md, "Prefix cache". A block whose content has an id stays resident when nobody uses it any
more, until its place is needed; all other blocks are only counted.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


def block_ids(prompt_ids: Sequence[int], block_size: int) -> list[bytes]:
    """One id per full block of `block_size` prompt ids (u32); id n stands for everything up to the end of block n.

    Each is a BLAKE2b digest (8 bytes) of the one before and the block, as in vLLM's prefix cache.
    """
    packer = struct.Struct(f"<{block_size}I")
    chained: list[bytes] = []
    last = b""
    for end in range(block_size, len(prompt_ids) + 1, block_size):
        last = blake2b(packer.pack(*prompt_ids[end - block_size : end]), digest_size=8, key=last).digest()
        chained.append(last)
    return chained


class BlockPool:
    """`total` blocks, each of them plain and free, plain and in use, or resident under a content id.

    Resident blocks are counted by their users; the unused ones wait in order of eviction, least recently
    freed first.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._plain_free = total
        self._users: dict[Hashable, int] = {}
        self._unused: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be taken: those never given an id, and unused resident ones."""
        return self._plain_free + len(self._unused)

    @property
    def resident(self) -> int:
        """Blocks that are resident under an id, used or not."""
        return len(self._users)

    def resident_prefix(self, ids: Sequence[Hashable]) -> int:
        """How many of the leading `ids` are resident."""
        users = self._users
        for count, content in enumerate(ids):
            if content not in users:
                return count
        return len(ids)

    def cost(self, ids: Iterable[Hashable]) -> int:
        """Free blocks that using all of `ids` would take: shared blocks in use cost nothing."""
        return sum(not self._users.get(content) for content in ids)

    def use(self, ids: Iterable[Hashable]) -> None:
        """Count one more user of each of `ids`, making them resident. There must be room: see `cost`."""
        missing = []
        for content in ids:
            users = self._users.get(content)
            if users is None:
                missing.append(content)
                continue
            if users == 0:
                del self._unused[content]
            self._users[content] = users + 1
        # Last, so that making room evicts none of the blocks that are wanted.
        for content in missing:
            if content in self._users:  # the same id twice in one request
                self._users[content] += 1
            else:
                self.take(1)
                self._users[content] = 1

    def release(self, ids: Sequence[Hashable]) -> None:
        """One user fewer of each of `ids`; the tail of a sequence will be evicted before its head."""
        for content in reversed(ids):
            self._users[content] -= 1
            if self._users[content] == 0:
                self._unused[content] = None

    def take(self, count: int) -> None:
        """Take `count` plain blocks, evicting unused resident ones where no others are free. There must be room."""
        while self._plain_free < count:
            content, _ = self._unused.popitem(last=False)
            del self._users[content]
            self._plain_free += 1
        self._plain_free -= count

    def give_back(self, count: int) -> None:
        """Return `count` plain blocks."""
        self._plain_free += count
