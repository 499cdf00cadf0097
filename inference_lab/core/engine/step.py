"""What one step does: who runs, for how long, which tokens come out, what ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.roofline import StepCost


class Chunk(NamedTuple):
    """`new_tokens` prompt positions of a request; `output_tokens` is 1 if that completes the prompt, else 0."""

    request: Request
    new_tokens: int
    output_tokens: int


class Step:
    """One step of a replica, from `start_s` for `seconds`; everything it brings about is due at `end_s`.

    `chunks` compute prompts; each request in `decodes` computes one position and puts out one token; `finished` put
    out their last token; `rejected` never ran and are over at `start_s`. `preempted` counts requests that lost their
    blocks, `cost` is what the step costs. A step with nothing to run is `is_idle`, has no cost and takes no time.
    """

    __slots__ = ("chunks", "cost", "decodes", "finished", "preempted", "rejected", "start_s")

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.cost: StepCost | None = None
        self.chunks: list[Chunk] = []
        self.decodes: list[Request] = []
        self.finished: list[Request] = []
        self.rejected: list[Request] = []
        self.preempted = 0

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return 0.0 if self.cost is None else self.cost.step_seconds

    @property
    def end_s(self) -> float:
        """When the step ends."""
        return self.start_s + self.seconds

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs: the replica sleeps until the next arrival."""
        return not self.chunks and not self.decodes

    @property
    def output_tokens(self) -> int:
        """Tokens that come out at the end."""
        return len(self.decodes) + sum(chunk.output_tokens for chunk in self.chunks)
