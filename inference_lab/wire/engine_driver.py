"""The engine as the reactor sees it: requests go in, token counts come out, and a request may be cancelled.

`Engine` is the interface; `ConstantLatency` its simplest form: a time to the first token and a time per further one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.wire.pacer import Pacer


class Job(msgspec.Struct, frozen=True):
    """What the engine is asked to do: `prompt_ids` to read, then `output_tokens` (at least 1) to produce."""

    prompt_ids: list[int]
    output_tokens: int
    priority: int = 0


class Timing(NamedTuple):
    """Microseconds from submission to the first place in a batch, the first token and the last; None before.

    They are the simulation's. `submitted_us` is the submission itself, on the pacer's clock, `lag_us` how much later
    than simulated tokens came at most.
    """

    submitted_us: int
    queued_us: int | None
    ttft_us: int | None
    duration_us: int | None
    lag_us: int


class Load(NamedTuple):
    """Requests that wait and that run, the part of the KV cache in use, and how far simulated time is after the clock.

    The latter two are None where there is no such thing.
    """

    waiting: int
    running: int
    kv_use: float | None
    lag_us: int | None


class Ticket(Protocol):
    """A request inside the engine."""

    @property
    def timing(self) -> Timing:
        """What it has taken so far."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; known from the first token on."""

    def cancel(self) -> None:
        """Take the request out; nothing is called any more. Does nothing when it has ended."""


class Engine(Protocol):
    """A simulated engine on the reactor."""

    def refusal(self, job: Job) -> str | None:
        """Why the job can never run, or None if it can."""

    def submit(self, job: Job, on_tokens: Callable[[int], None]) -> Ticket:
        """Queue a request; `on_tokens(count)` is called, never inside `submit`, each time tokens are produced."""

    @property
    def load(self) -> Load:
        """What it has to do now."""


class ConstantLatency:
    """The engine of a `[latency]` table: token i of a request comes `ttft_us + i·itl_us` after it was submitted."""

    def __init__(self, pacer: Pacer, *, ttft_us: int, itl_us: int) -> None:
        self._pacer = pacer
        self._ttft_us = ttft_us
        self._itl_us = itl_us
        self.running = 0

    @property
    def load(self) -> Load:
        """See `Engine.load`: nobody waits."""
        return Load(0, self.running, None, None)

    def refusal(self, job: Job) -> str | None:
        """See `Engine.refusal`: without a KV cache everything fits."""
        del job
        return None

    def submit(self, job: Job, on_tokens: Callable[[int], None]) -> Ticket:
        """See `Engine.submit`."""
        return _Running(self, self._pacer, job.output_tokens, self._ttft_us, self._itl_us, on_tokens)


class _Running:
    """One request with constant latencies."""

    cached_tokens = 0

    def __init__(
        self,
        engine: ConstantLatency,
        pacer: Pacer,
        output_tokens: int,
        ttft_us: int,
        itl_us: int,
        on_tokens: Callable[[int], None],
    ) -> None:
        engine.running += 1
        self._engine = engine
        self._pacer = pacer
        self._left = output_tokens
        self._itl_us = itl_us
        self._on_tokens = on_tokens
        self._submitted_us = pacer.now_us()
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._late_us = 0
        self._due_us = self._submitted_us + ttft_us
        self._slot: int | None = pacer.at(self._due_us, self._produce)

    @property
    def timing(self) -> Timing:
        """See `Ticket.timing`: nobody queues."""
        begun_us, first_us, last_us = self._submitted_us, self._first_us, self._last_us
        return Timing(
            begun_us,
            0,
            None if first_us is None else first_us - begun_us,
            None if last_us is None else last_us - begun_us,
            self._late_us,
        )

    def cancel(self) -> None:
        """See `Ticket.cancel`."""
        self._left = 0
        if self._slot is not None:
            self._pacer.forget(self._slot, self._produce)
            self._slot = None
            self._engine.running -= 1

    def _produce(self) -> None:
        """All tokens that are due: more than one after a late wake-up, the rest at once without a latency."""
        self._slot = None
        late_us = self._pacer.now_us() - self._due_us
        self._late_us = max(self._late_us, late_us)
        due = self._left if not self._itl_us else min(self._left, 1 + late_us // self._itl_us)
        self._left -= due
        if self._first_us is None:
            self._first_us = self._due_us
        if not self._left:
            self._last_us = self._due_us + (due - 1) * self._itl_us
            self._engine.running -= 1
        else:
            self._due_us += due * self._itl_us
            self._slot = self._pacer.at(self._due_us, self._produce)
        self._on_tokens(due)
