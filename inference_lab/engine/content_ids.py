"""Content ids of a prompt's blocks: equal ids mean equal prompts up to the end of that block."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIGEST_BYTES = 16  # far from collisions for any number of blocks a run can hold


def block_ids(prompt_ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """One id per full block of `block_size` tokens, each a digest of the block and of the id before it.

    `prompt_ids` are u32. The last tokens, which fill no block, have none.
    """
    tokens = array("I", prompt_ids).tobytes()
    block_bytes = array("I").itemsize * block_size
    ids = []
    digest = b""
    for start in range(0, len(tokens) - block_bytes + 1, block_bytes):
        digest = blake2b(digest + tokens[start : start + block_bytes], digest_size=_DIGEST_BYTES).digest()
        ids.append(digest)
    return tuple(ids)
