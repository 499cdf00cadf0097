"""Embeddings without a model: the vector of a text is made of a digest of its ids, so it is the same everywhere."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

DIMENSIONS: Final = 16
MOST_DIMENSIONS: Final = 4096


def packed_vector(ids: Sequence[int], dimensions: int) -> bytes:
    """The vector of ids (u32), of unit length, as little-endian float32; a shorter one has the longer's directions."""
    digest = hashlib.shake_256(struct.pack(f"<{len(ids)}I", *ids)).digest(4 * dimensions)
    numbers = [number | 1 for number in struct.unpack(f"<{dimensions}i", digest)]  # odd, so that none is 0
    length = math.hypot(*numbers)
    return struct.pack(f"<{dimensions}f", *(number / length for number in numbers))
