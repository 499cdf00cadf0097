"""Sizes of the KV cache: what a sequence stores and reads at a length, and how many blocks a deployment has.

Rules: docs/engine.md, "The KV cache" and "Formulas". Lengths are in positions (one token's slot in a
sequence), sizes in bytes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from inference_lab.core.engine.attention import AttentionTerms

if TYPE_CHECKING:
    from inference_lab.core.engine.model_spec import ModelSpec


class KvLayout:
    """How one sequence of a model lies in blocks of `block_size` positions.

    A block holds what grows with the whole context. What is bounded, windows and recurrent state, lies in
    auxiliary blocks of the same size, which a sequence never shares.

    Raises:
        ValueError: a block has no size.
    """

    def __init__(self, model: ModelSpec, block_size: int) -> None:
        attention = AttentionTerms(model)
        self._classes = attention.classes
        self.state_bytes = attention.state_bytes
        self._block_size = block_size
        # False: all layers have windows, or a block of compressed history is under one byte.
        self._grows = self.content_bytes(block_size) > 0
        self._strided = any(terms.stride for terms in self._classes)
        self.block_bytes = self.content_bytes(block_size) or self.window_bytes(block_size)
        if self.block_bytes == 0:
            raise ValueError(
                f"scheduler.block_size is {block_size}, whose KV of {model.name} is under one byte"
            )
        # From this length on, what windows hold is constant.
        self._widest_window = max((terms.window for terms in self._classes), default=0)
        self._aux_at_most = self._aux(self._widest_window)
        self._same_aux: dict[int, tuple[int, int]] = {}  # at most one for each position of the widest window

    def content_bytes(self, positions: int) -> int:
        """Bytes stored for `positions` in what grows with the context."""
        return int(sum(terms.content_bytes(positions) for terms in self._classes))

    def window_bytes(self, positions: int) -> int:
        """Bytes stored for `positions` in sliding windows."""
        return int(sum(terms.window_bytes(positions) for terms in self._classes))

    def content_blocks(self, positions: int) -> int:
        """Blocks that hold the content of `positions`."""
        if self._grows:
            return -(-positions // self._block_size)
        return -(-(self.content_bytes(positions) + self.window_bytes(positions)) // self.block_bytes)

    def aux_blocks(self, positions: int) -> int:
        """Blocks that hold what is bounded: windows and recurrent state."""
        return self._aux_at_most if positions >= self._widest_window else self._aux_span(positions)[0]

    def _aux_span(self, positions: int) -> tuple[int, int]:
        """The auxiliary blocks of a length within the widest window, and the greatest length that has as many."""
        span = self._same_aux.get(positions)
        if span is None:
            last, blocks = positions, self._aux(positions)
            while last + 1 < self._widest_window and self._aux(last + 1) == blocks:
                last += 1
            span = blocks, last
            self._same_aux.update((length, span) for length in range(positions, last + 1))
        return span

    def _aux(self, positions: int) -> int:
        bounded = self.state_bytes + (self.window_bytes(positions) if self._grows else 0)
        return -(-bounded // self.block_bytes)

    def blocks(self, positions: int) -> int:
        """All blocks that a sequence of `positions` holds."""
        return self.content_blocks(positions) + self.aux_blocks(positions)

    def covered(self, positions: int, content_blocks: int) -> float:
        """A length that needs no more blocks than a sequence of `positions` that holds `content_blocks`."""
        if positions < self._widest_window:
            return (
                min(content_blocks * self._block_size, self._aux_span(positions)[1])
                if self._grows
                else positions
            )
        if self._grows:
            return content_blocks * self._block_size
        return positions if self._strided else inf


class KvCapacity(NamedTuple):
    """KV memory of a deployment.

    Bytes that a replica may use and that its weights take; bytes of KV per replica and per rank; blocks per
    rank.
    """

    usable_bytes: int
    weight_bytes: int
    replica_bytes: int
    rank_bytes: int
    rank_blocks: int
