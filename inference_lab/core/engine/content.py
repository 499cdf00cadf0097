"""Content ids: what a prompt's full blocks hold, so that equal beginnings share cache blocks."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
