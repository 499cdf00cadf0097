"""All replicas of a deployment behind its router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.engine.kv import KvLayout
from inference_lab.core.engine.replica import Replica
from inference_lab.core.engine.roofline import Roofline
from inference_lab.core.engine.router import Router

if TYPE_CHECKING:
    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.request import Request


class Cluster:
    """The simulated engine of a deployment: requests go in, and its `replicas` step.

    Pure: the time is an argument, and what happens next is for the caller: after `submit`, a replica that is idle wants
    a `step` now; after a step, the next one at its end. `rank_blocks` are the KV blocks of each rank.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._layout = KvLayout(deployment.model, deployment.scheduler.block_size)
        self.rank_blocks = deployment.kv_capacity(self._layout.block_bytes).rank_blocks
        roofline = Roofline(deployment)
        self.rank_count = deployment.rank_count
        self.replicas = [
            Replica(
                deployment, roofline, self._layout, rank_count=self.rank_count, rank_blocks=self.rank_blocks
            )
            for _ in range(deployment.replicas)
        ]
        self._workers = [rank for replica in self.replicas for rank in replica.ranks]
        self._router = Router(deployment.router, self._workers, deployment.scheduler.block_size)
        self._submissions = 0

    def blocks_needed(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV blocks that a request holds at its end; what needs more than `rank_blocks` can never run."""
        return self._layout.blocks(max(1, prompt_tokens) + max(1, output_tokens) - 1)

    def submit(self, request: Request, now_s: float) -> Replica:
        """Queue `request`, which arrives at `now_s`; returns the replica that it went to."""
        request.arrival_s = now_s
        request.submission = self._submissions
        self._submissions += 1
        request.worker = self._router.choose(request)
        self._workers[request.worker].submit(request)
        return self.replicas[request.worker // self.rank_count]

    def cancel(self, request: Request) -> None:
        """Take `request` out wherever it is; its seat and blocks are free at the next step."""
        self._workers[request.worker].cancel(request)
