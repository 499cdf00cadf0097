"""A replica: one or more ranks that step together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.engine.scheduler import Scheduler
from inference_lab.engine.step import Step

if TYPE_CHECKING:
    from inference_lab.engine.deployment_spec import Deployment
    from inference_lab.engine.kv import KvLayout
    from inference_lab.engine.roofline import Roofline


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
            step.seconds = self._roofline.price(works).step_seconds
        for chunk in step.chunks:
            if chunk.output_tokens:
                chunk.request.first_token_s = step.end_s
        for request in step.finished:
            request.finish_s = step.end_s
        for request in step.rejected:
            request.finish_s = now_s
        return step
