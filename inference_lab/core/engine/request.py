"""A request inside the simulated engine: what it asks for, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Request:
    """One request; its counters are moved by the scheduler that holds it and only read elsewhere.

    Asked: `prompt_tokens` (0 counts as 1), `output_tokens` it will really produce of the `max_output_tokens` it is
    planned with (both at least 1), `priority` (smaller is more urgent; only the policy `priority` looks at it), and
    `block_ids`, one content id per full block of the prompt, where id n stands for everything up to the end of block n.

    Told: `computed` positions and `produced` tokens as of the end of the step under way, `cached_tokens` of the prompt
    that the prefix cache had when it was first admitted, `preemptions`, `worker` (an index over all ranks), the times
    `admitted_s` (it left the queue for the first time), `first_token_s` and `finish_s` (absolute, None before), and
    whether it was `rejected` because it can never fit.
    """

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "aux_blocks",
        "block_ids",
        "cached_tokens",
        "capacity",
        "computed",
        "content_blocks",
        "decoding",
        "finish_s",
        "first_token_s",
        "id",
        "max_output_tokens",
        "output_tokens",
        "preemptions",
        "priority",
        "produced",
        "prompt_tokens",
        "queue_key",
        "rejected",
        "submission",
        "worker",
    )

    def __init__(
        self,
        id: Hashable,  # noqa: A002 - the trace's own word
        prompt_tokens: int,
        output_tokens: int,
        *,
        max_output_tokens: int | None = None,
        priority: int = 0,
        block_ids: Sequence[Hashable] = (),
    ) -> None:
        self.id = id
        self.prompt_tokens = max(1, prompt_tokens)
        self.max_output_tokens = max(1, output_tokens if max_output_tokens is None else max_output_tokens)
        self.output_tokens = min(max(1, output_tokens), self.max_output_tokens)
        self.priority = priority
        self.block_ids = block_ids
        self.arrival_s = 0.0
        self.submission = 0
        self.worker = -1
        self.rejected = False
        self.cached_tokens = 0
        self.preemptions = 0
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.finish_s: float | None = None
        self.computed = 0
        self.produced = 0
        # In the decode phase, as of the end of the step under way: each step computes and produces one token.
        self.decoding = False
        # Blocks held, and the number of positions up to which they are known to suffice.
        self.content_blocks = 0
        self.aux_blocks = 0
        self.capacity: float = 0
        # The place in a waiting queue; None outside.
        self.queue_key: tuple[float, ...] | None = None

    @property
    def prefill_length(self) -> int:
        """Positions to compute before (further) tokens come out: the prompt, and after a preemption what came out."""
        return self.prompt_tokens + max(0, self.produced - 1)

    @property
    def final_positions(self) -> int:
        """Positions computed in all; that of the last token never is."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def is_complete(self) -> bool:
        """Whether its last token has been produced."""
        return self.produced >= self.output_tokens
