"""The simulated cluster on the reactor: steps begin and end when the simulation says, tokens leave at their ends.

Where a second of simulation takes more than a second, simulated time falls behind the clock, and says so. A turn of
the reactor has a budget (`TURN_US`): what is left goes on in the next one, and others are served in between.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from twisted.logger import Logger

from inference_lab.core.engine.block_pool import block_ids
from inference_lab.core.engine.request import Request
from inference_lab.wire.engine_driver import Load, Timing
from inference_lab.wire.pacer import TURN_US, Lateness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.engine.cluster import Cluster, Replica
    from inference_lab.core.engine.scheduler import Step
    from inference_lab.wire.engine_driver import Job
    from inference_lab.wire.pacer import Pacer

_log: Final = Logger()

_JOINED_STEPS: Final = 16
"""Of so many steps that are due the tokens are handed over together, one write a stream: more would save little."""
_LONGEST_REST_US: Final = 20_000
"""Work that seems longer may be that of another process, which had the core meanwhile."""
_HANDED_AT_ONCE: Final = 16
"""So many streams get their tokens between two looks at the clock."""


class ClusterEngine:
    """Drives `cluster`; one second of life is `speed` simulated seconds.

    A request arrives at the simulated time of its submission; an idle replica starts a step then, a busy one takes it
    in when its step ends. Steps follow each other on absolute times, so a late wake-up is caught up, not added. While
    simulated time is after the clock, a request arrives when the simulation has come to.
    """

    def __init__(self, pacer: Pacer, cluster: Cluster, *, speed: float) -> None:
        self.pacer = pacer
        self.cluster = cluster
        self._speed = speed
        self._origin_us = pacer.now_us()
        self._block_size = cluster.deployment.scheduler.block_size
        self._drivers = {id(replica): _ReplicaDriver(self, replica) for replica in cluster.replicas}
        self.lateness = Lateness(
            f"the simulation of {cluster.deployment.model.name} was up to {{late:.0f}} ms behind the clock: "
            "too many tokens for this process"
        )

    def refusal(self, job: Job) -> str | None:
        """See `Engine.refusal`: what needs more KV blocks than a rank has can never run."""
        needed = self.cluster.blocks_needed(len(job.prompt_ids), job.output_tokens)
        if needed <= self.cluster.rank_blocks:
            return None
        return f"it needs {needed} KV blocks of {self._block_size} tokens, and there are {self.cluster.rank_blocks}"

    @property
    def load(self) -> Load:
        """See `Engine.load`."""
        replicas = self.cluster.replicas
        used, total = (
            sum(counts) for counts in zip(*((r.used_blocks, r.total_blocks) for r in replicas), strict=True)
        )
        return Load(
            sum(replica.waiting_count for replica in replicas),
            sum(replica.running_count for replica in replicas),
            used / total,
            self.lag_us(),
        )

    def submit(self, job: Job, on_tokens: Callable[[int], None]) -> _Ticket:
        """See `Engine.submit`."""
        now_us = self.pacer.now_us()
        for driver in self._drivers.values():
            driver.catch_up(now_us)  # a step that has ended must not take in what arrives after its end
        # Where one could not be ended in time, the request arrives at its end, which no replica is past.
        ends_s = [driver.step.end_s for driver in self._drivers.values() if driver.step is not None]
        arrival_s = min([(now_us - self._origin_us) * self._speed / 1e6, *ends_s])
        ticket = _Ticket(self, job, on_tokens, now_us, block_ids(job.prompt_ids, self._block_size))
        replica = self.cluster.submit(ticket.request, arrival_s)
        self._drivers[id(replica)].wake(arrival_s)
        return ticket

    def real_us(self, simulated_s: float) -> int:
        """The pacer's time at which so many simulated seconds have passed."""
        return self._origin_us + round(simulated_s / self._speed * 1e6)

    def lag_us(self) -> int:
        """How far the simulation is after the clock, or its oldest tokens that are still to be handed over."""
        now_us = self.pacer.now_us()
        return max(0, now_us - min(driver.since_us(now_us) for driver in self._drivers.values()))


class _Ticket:
    """A request in the cluster and who is told of its tokens."""

    def __init__(
        self,
        engine: ClusterEngine,
        job: Job,
        on_tokens: Callable[[int], None],
        submitted_us: int,
        content: list[bytes],
    ) -> None:
        self._engine = engine
        self._on_tokens: Callable[[int], None] | None = on_tokens
        self._submitted_us = submitted_us
        self._left = job.output_tokens
        self._late_us = (
            0  # counted from the request's own arrival: what its tokens came after the clock at most
        )
        self.request = Request(
            self, len(job.prompt_ids), job.output_tokens, priority=job.priority, block_ids=content
        )

    @property
    def cached_tokens(self) -> int:
        """See `Ticket.cached_tokens`."""
        return self.request.cached_tokens

    @property
    def timing(self) -> Timing:
        """See `Ticket.timing`; a step under way knows its end before it has come."""
        request, engine = self.request, self._engine
        arrived_us = engine.real_us(request.arrival_s)
        has_begun, has_ended = self._left < request.output_tokens, not self._left
        late_us = self._late_us if has_ended else max(self._late_us, engine.lag_us())

        def since_arrival(at_s: float | None) -> int | None:
            return None if at_s is None else engine.real_us(at_s) - arrived_us

        return Timing(
            self._submitted_us,
            since_arrival(request.admitted_s),
            since_arrival(request.first_token_s) if has_begun else None,
            since_arrival(request.finish_s) if has_ended else None,
            max(0, late_us - (self._submitted_us - arrived_us)),
        )

    def cancel(self) -> None:
        """See `Ticket.cancel`."""
        if self._on_tokens is not None:
            self._on_tokens = None
            self._engine.cluster.cancel(self.request)

    def produce(self, count: int, late_us: int) -> None:
        """So many tokens have come out, the first of them `late_us` ago."""
        on_tokens = self._on_tokens
        if on_tokens is None:
            return
        if late_us > self._late_us:  # noqa: PLR1730 - once per token of a stream: a call of `max` is dearer
            self._late_us = late_us
        self._left -= count
        if not self._left:
            self._on_tokens = None
        on_tokens(count)


class _ReplicaDriver:
    """One replica's step under way, the tokens that are due, and the wait for what is next.

    A turn ends steps and hands over their tokens, as far as its time goes. Then the replica rests for as long as that
    took: half of the time belongs to others, and the tokens of a stream that come due meanwhile share a write.
    """

    def __init__(self, engine: ClusterEngine, replica: Replica) -> None:
        self._engine = engine
        self._pacer = engine.pacer
        self._replica = replica
        self.step: Step | None = None
        self._is_behind = False  # a step is due, and there was no time to end it
        self._counts: Counter[Request] = Counter()  # tokens of steps that have ended
        self._steps = 0  # so many
        self._since_us = 0  # when the first of them ended
        self._handing: Iterator[tuple[_Ticket, int]] | None = None  # tokens that are being handed over
        self._handing_since_us = 0
        self._spent_us = 0  # on these
        self._rest_until_us = 0
        self._slot: int | None = None  # waiting for the next turn

    def since_us(self, now_us: int) -> int:
        """Since when something has been due; `now_us` if nothing has been."""
        since_us = now_us if self.step is None else self._engine.real_us(self.step.end_s)
        if self._counts:
            since_us = min(since_us, self._since_us)
        if self._handing is not None:
            since_us = min(since_us, self._handing_since_us)
        return since_us

    def wake(self, now_s: float) -> None:
        """Something was submitted: an idle replica starts a step with it, a busy one takes it in at its step's end."""
        if self.step is None:
            self.step = self._begin(now_s)
            self._wait(self._pacer.now_us())

    def catch_up(self, now_us: int) -> None:
        """End the steps that are due by now, unless there has been no time for it already."""
        if not self._is_behind and self._end_due(now_us):
            self._wait(now_us)

    def _end_due(self, now_us: int) -> bool:
        """End steps that are due, and start the next ones at their ends, as long as there is time; whether any was."""
        engine, ended = self._engine, False
        while self.step is not None and engine.real_us(self.step.end_s) <= now_us:
            if ended and self._pacer.now_us() - now_us >= TURN_US:
                self._is_behind = True
                return True
            step = self.step
            # The next step first: tokens may bring a new request, which has no part in what starts now.
            self.step = self._begin(step.end_s)
            if not self._counts:
                self._since_us = engine.real_us(step.end_s)
            self._steps += 1
            self._counts.update([chunk.request for chunk in step.chunks if chunk.output_tokens])
            self._counts.update(step.decodes)
            ended = True
        self._is_behind = False
        return ended

    def _turn(self) -> None:
        self._slot = None
        begun_us = self._pacer.now_us()
        if self._handing is None:
            self._end_due(begun_us)
            if self._counts and (self._steps >= _JOINED_STEPS or not self._is_behind):
                self._handing = iter([(cast("_Ticket", r.id), count) for r, count in self._counts.items()])
                self._handing_since_us = self._since_us
                self._counts = Counter()
                self._steps = 0
        is_done = self._handing is not None and self._hand_over(self._handing, begun_us)
        now_us = self._pacer.now_us()
        self._spent_us += now_us - begun_us
        if is_done:
            self._engine.lateness.report(now_us - self._handing_since_us, now_us)
            self._handing = None
            self._rest_until_us = now_us + min(self._spent_us, _LONGEST_REST_US)
            self._spent_us = 0
        self._wait(now_us)

    def _hand_over(self, handing: Iterator[tuple[_Ticket, int]], now_us: int) -> bool:
        """Hand over tokens as long as there is time; whether that was all."""
        since_us, until_us = self._handing_since_us, now_us + TURN_US
        while some := list(islice(handing, _HANDED_AT_ONCE)):
            late_us = now_us - since_us
            for ticket, count in some:
                try:
                    ticket.produce(count, late_us)
                except Exception:  # noqa: BLE001, PERF203 - one stream's defect must not stop everybody's engine
                    _log.failure("tokens could not be handed over")
            now_us = self._pacer.now_us()
            if now_us >= until_us:
                return False
        return True

    def _wait(self, now_us: int) -> None:
        """Wait for the next turn: at once if there is something left of this one, else for a step's end, or to rest."""
        if self._slot is not None:
            self._pacer.forget(self._slot, self._turn)
            self._slot = None
        step, real_us = self.step, self._engine.real_us
        if self._handing is not None or (self._counts and self._is_behind):
            due_us = now_us
        elif self._counts:
            due_us = max(now_us, self._rest_until_us)
        elif step is not None:
            # More steps than are joined are not waited for.
            longest_us = real_us(step.end_s + (_JOINED_STEPS - 1) * step.seconds)
            due_us = max(now_us, real_us(step.end_s), min(self._rest_until_us, longest_us))
        else:
            return
        self._slot = self._pacer.at(due_us, self._turn)

    def _begin(self, now_s: float) -> Step | None:
        step = self._replica.step(now_s)
        return None if step.is_idle else step
