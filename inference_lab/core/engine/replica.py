"""A replica: one or more ranks that step together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.engine.scheduler import Scheduler
from inference_lab.core.engine.step import Step

if TYPE_CHECKING:
    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.kv import KvLayout
    from inference_lab.core.engine.roofline import Roofline


class Replica:
    """`ranks` schedulers whose batches make up one step.

    Its user calls `step` when the replica wakes up (`is_idle` and something was submitted) and at the end of each step.
    """

    def __init__(
        self,
        deployment: Deployment,
        roofline: Roofline,
        layout: KvLayout,
        *,
        rank_count: int,
        rank_blocks: int,
    ) -> None:
        self._roofline = roofline
        self.ranks = [Scheduler(deployment, roofline, layout, rank_blocks) for _ in range(rank_count)]
        self.is_idle = True

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a seat."""
        return sum(len(rank.waiting) for rank in self.ranks)

    @property
    def running_count(self) -> int:
        """Requests that have a seat."""
        return sum(len(rank.running) for rank in self.ranks)

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, of all ranks; cached blocks that nobody uses are free."""
        return sum(rank.pool.total - rank.pool.free for rank in self.ranks)

    @property
    def total_blocks(self) -> int:
        """KV blocks of all ranks."""
        return sum(rank.pool.total for rank in self.ranks)

    def step(self, now_s: float) -> Step:
        """Start the step that begins at `now_s`, in seconds, and move every request in it to the step's end.

        The step before, if any, must have ended. An idle step means: nothing more to do until the next `submit`.
        """
        step = Step(now_s)
        preempted = -1
        # A pass that only made room admits nobody; the next one, at the same instant, does.
        while step.is_idle and step.preempted > preempted:
            preempted = step.preempted
            works = [rank.schedule(step) for rank in self.ranks]
        self.is_idle = step.is_idle
        if not self.is_idle:
            step.cost = self._roofline.price(works)
        end_s = step.end_s
        for chunk in step.chunks:
            if chunk.request.admitted_s is None:
                chunk.request.admitted_s = now_s
            if chunk.output_tokens:
                chunk.request.first_token_s = end_s
        for request in step.finished:
            request.finish_s = end_s
        for request in step.rejected:
            request.finish_s = now_s
        return step
