"""The scheduler of one rank: continuous batching with chunked prefill, preemption and a prefix cache.

Rules: docs/engine.md, "Who runs". Pure: a pass says who runs now and moves the counters to the end of the
step; what a step costs and when it ends is for its caller.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from inference_lab.core.engine.block_pool import BlockPool
from inference_lab.core.engine.request import POLICIES, WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.model_costs import KvLayout
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.roofline import BatchWork, Roofline, StepCost


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


class Scheduler:
    """One rank's queue, seats, token budget and blocks.

    `waiting` and `running` may be read; `running` is in order of admission and keeps a finished request until
    the pass after its last step. `queued_tokens` are prompt positions still to compute, over all requests.
    """

    def __init__(
        self, deployment: Deployment, roofline: Roofline, layout: KvLayout, block_count: int
    ) -> None:
        options = deployment.scheduler
        policy = POLICIES[options.policy]
        self._roofline = roofline
        self._layout = layout
        self._budget_tokens = options.max_num_batched_tokens
        self._seats = options.max_num_seqs
        self._block_size = options.block_size
        threshold = deployment.long_prefill_token_threshold if options.enable_chunked_prefill else 0
        self._largest_chunk = threshold or self._budget_tokens
        self._plans_ahead = options.enable_preemption_free
        self._cascades = options.enable_cascade_attention
        # Cascade attention looks at every entry's context, so none may disappear in a sum.
        self._linear_from = inf if self._cascades else roofline.terms.linear_from
        self._victim_key = policy.victim_key
        self.pool = BlockPool(block_count)
        self.waiting = WaitingQueue(policy.queue_key)
        self.running: list[Request] = []
        self.queued_tokens = 0
        self._planned_blocks = 0
        self._rejected: list[Request] = []
        self._leaving = False

    @property
    def request_count(self) -> int:
        """Requests in the rank, waiting or running."""
        return len(self.waiting) + len(self.running)

    def submit(self, request: Request) -> None:
        """Queue `request`, or refuse it at the next pass if it can never fit."""
        if self._layout.blocks(request.final_positions) > self.pool.total:
            request.rejected = True
            self._rejected.append(request)
            return
        self.waiting.append(request)
        self.queued_tokens += request.prefill_length

    def cancel(self, request: Request) -> None:
        """Take `request` out at once, its seat and blocks with it. Does nothing when it has left already."""
        if request.queue_key is not None:
            self.waiting.remove(request)
            self.queued_tokens -= request.prefill_length
        elif request in self.running:
            self.running.remove(request)
            self._leave(request)
        elif request in self._rejected:
            self._rejected.remove(request)

    def schedule(self, step: Step) -> BatchWork:
        """One pass: fill `step` with what runs from now on, and return what that asks of the hardware."""
        step.rejected += self._rejected
        self._rejected = []
        if self._leaving:
            self._retire()
        first_chunk, first_decode, preempted = len(step.chunks), len(step.decodes), step.preempted
        work = self._roofline.batch()
        budget = self._continue_running(step, work)
        if step.preempted == preempted:
            self._admit(step, work, budget)
        if self._cascades and work.entries > 1:
            work.read_together(self._shared_positions(step, first_chunk, first_decode))
        return work

    def _retire(self) -> None:
        """Let the requests go whose last step has ended."""
        stay = []
        for request in self.running:
            if request.is_complete:
                self._leave(request)
            else:
                stay.append(request)
        self.running = stay
        self._leaving = False

    def _leave(self, request: Request) -> None:
        self._free_blocks(request)
        if not request.decoding:
            self.queued_tokens -= request.prefill_length - request.computed
        if self._plans_ahead:
            self._planned_blocks -= self._plan(request)

    def _continue_running(self, step: Step, work: BatchWork) -> int:
        """Step 1 of the pass: running requests in order, while budget remains. Returns the budget left."""
        running = self.running
        decodes = step.decodes
        budget = self._budget_tokens
        linear_from = self._linear_from
        linear_decodes = linear_positions = 0
        contexts: list[int] = []
        index = 0
        while budget and index < len(running):
            request = running[index]
            computed = request.computed
            if request.decoding:
                positions = computed + 1
                if positions > request.capacity and not self._make_room(index, positions, step):
                    continue  # another request stands at this index now, or this one has more room
                request.computed = positions
                request.produced += 1
                if request.produced >= request.output_tokens:
                    self._finish(request, step)
                decodes.append(request)
                budget -= 1
                if positions >= linear_from:
                    linear_decodes += 1
                    linear_positions += positions
                else:
                    contexts.append(computed)
            else:
                tokens = self._chunk_tokens(request, computed, budget)
                positions = computed + tokens
                if positions > request.capacity and not self._make_room(index, positions, step):
                    continue
                self._compute_chunk(request, tokens, step, work)
                budget -= tokens
            index += 1
        if linear_decodes:
            work.add_linear_decodes(linear_decodes, linear_positions)
        if contexts:
            work.add_decodes(contexts)
        return budget

    def _make_room(self, index: int, positions: int, step: Step) -> bool:
        """Give the request at `index` the blocks for `positions`; False if a victim had to go first."""
        request = self.running[index]
        content = self._layout.content_blocks(positions)
        aux = self._layout.aux_blocks(positions)
        need = max(0, content - request.content_blocks) + max(0, aux - request.aux_blocks)
        if need <= self.pool.free:
            self._hold(request, positions, content, aux)
            return True
        victim = len(self.running) - 1
        if (key := self._victim_key) is not None:
            victim = max(range(index, len(self.running)), key=lambda place: (key(self.running[place]), place))
        self._preempt(self.running.pop(victim))
        step.preempted += 1
        return False

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.computed = 0
        request.decoding = False
        request.preemptions += 1
        self.waiting.push_front(request)
        self.queued_tokens += request.prefill_length

    def _admit(self, step: Step, work: BatchWork, budget: int) -> None:
        """Step 2 of the pass: from the queue's first on, until seats, budget or blocks run out; nobody overtakes."""
        while budget and self.waiting and len(self.running) < self._seats:
            request = self.waiting.first()
            planned = self._plan(request) if self._plans_ahead else 0
            # Alone it is admitted whatever the plan says: nobody is there who could be preempted.
            if planned and self.running and self._planned_blocks + planned > self.pool.total:
                return
            # The last position of a prompt is always computed, since the first token comes from it.
            cacheable = request.block_ids[: (request.prompt_tokens - 1) // self._block_size]
            cached = self.pool.resident_prefix(cacheable) * self._block_size
            tokens = self._chunk_tokens(request, cached, budget)
            positions = cached + tokens
            content = self._layout.content_blocks(positions)
            aux = self._layout.aux_blocks(positions)
            ids = request.block_ids[:content]
            if self.pool.cost(ids) + content - len(ids) + aux > self.pool.free:
                return
            self.waiting.remove(request)
            self.running.append(request)
            self._planned_blocks += planned
            self._hold(request, positions, content, aux)
            if not request.preemptions:
                request.cached_tokens = cached
            request.computed = cached
            self.queued_tokens -= cached
            self._compute_chunk(request, tokens, step, work)
            budget -= tokens

    def _chunk_tokens(self, request: Request, computed: int, budget: int) -> int:
        return min(request.prefill_length - computed, self._largest_chunk, budget)

    def _compute_chunk(self, request: Request, tokens: int, step: Step, work: BatchWork) -> None:
        work.add(request.computed, tokens, decode=False)
        request.computed += tokens
        self.queued_tokens -= tokens
        output_tokens = 0
        if request.computed == request.prefill_length:
            request.decoding = True
            if not request.produced:  # tokens that came out before a preemption do not come out again
                request.produced = output_tokens = 1
                if request.is_complete:
                    self._finish(request, step)
        step.chunks.append(Chunk(request, tokens, output_tokens))

    def _finish(self, request: Request, step: Step) -> None:
        step.finished.append(request)
        self._leaving = True

    def _hold(self, request: Request, positions: int, content: int, aux: int) -> None:
        """Take the blocks that `request` lacks to hold `content` and `aux` blocks, which suffice for `positions`."""
        ids = request.block_ids[request.content_blocks : content]
        self.pool.use(ids)
        more_content = max(0, content - request.content_blocks)
        more_aux = max(0, aux - request.aux_blocks)
        self.pool.take(more_content - len(ids) + more_aux)
        request.content_blocks += more_content
        request.aux_blocks += more_aux
        request.capacity = self._layout.covered(positions, request.content_blocks)

    def _free_blocks(self, request: Request) -> None:
        ids = request.block_ids[: request.content_blocks]
        self.pool.release(ids)
        self.pool.give_back(request.content_blocks - len(ids) + request.aux_blocks)
        request.content_blocks = request.aux_blocks = request.capacity = 0

    def _plan(self, request: Request) -> int:
        """Blocks that `request` may need at most."""
        return self._layout.blocks(request.prompt_tokens + request.max_output_tokens)

    def _shared_positions(self, step: Step, first_chunk: int, first_decode: int) -> int:
        """Positions of the leading blocks that all entries of this rank's batch share."""
        entries = [chunk.request.block_ids for chunk in step.chunks[first_chunk:]]
        entries += [request.block_ids for request in step.decodes[first_decode:]]
        return common_prefix(entries) * self._block_size


def common_prefix(sequences: Sequence[Sequence[object]]) -> int:
    """How many leading items all `sequences` share."""
    count = 0
    for items in zip(*sequences, strict=False):
        if any(item != items[0] for item in items):
            break
        count += 1
    return count
