"""A request inside the simulated engine, and the queue that it waits in, in the order of a policy.

Rules: docs/engine.md, "Policies".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence


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


class Policy(NamedTuple):
    """`queue_key(request, place)` sorts the waiting queue, smallest first; `place` grows with the place in line.

    `victim_key` picks the running request with the largest value, the last one of several; None: the last of all.
    """

    queue_key: Callable[[Request, int], tuple[float, ...]]
    victim_key: Callable[[Request], tuple[float, ...]] | None = None


def _smallest(size: Callable[[Request], int], victim_size: Callable[[Request], int]) -> Policy:
    return Policy(lambda request, place: (size(request), place), lambda request: (victim_size(request),))


def _largest(size: Callable[[Request], int], victim_size: Callable[[Request], int]) -> Policy:
    # Among equals the last in line goes first: the reference's scan for a maximum ends there.
    return Policy(lambda request, place: (-size(request), -place), lambda request: (victim_size(request),))


def _prompt(request: Request) -> int:
    return request.prompt_tokens


def _output(request: Request) -> int:
    return request.max_output_tokens


def _total(request: Request) -> int:
    return request.prompt_tokens + request.max_output_tokens


def _output_left(request: Request) -> int:
    return request.max_output_tokens - request.produced


def _total_left(request: Request) -> int:
    return _total(request) - request.computed


POLICIES: Final[Mapping[str, Policy]] = {
    "fcfs": Policy(lambda _, place: (place,)),
    "priority": Policy(
        lambda request, _: (request.priority, request.arrival_s, request.submission),
        lambda request: (request.priority, request.arrival_s),
    ),
    "sif": _smallest(_prompt, _prompt),
    "lif": _largest(_prompt, _prompt),
    "sof": _smallest(_output, _output_left),
    "lof": _largest(_output, _output_left),
    "stf": _smallest(_total, _total_left),
    "ltf": _largest(_total, _total_left),
}


class WaitingQueue:
    """Requests sorted by `key(request, place)`: arrivals go to the back of the line, returning ones to its front."""

    def __init__(self, key: Callable[[Request, int], tuple[float, ...]]) -> None:
        self._key = key
        self._keys: list[tuple[float, ...]] = []
        self._requests: dict[tuple[float, ...], Request] = {}
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Request]:
        return (self._requests[key] for key in self._keys)

    def append(self, request: Request) -> None:
        """Queue an arrival."""
        self._insert(request, self._back)
        self._back += 1

    def push_front(self, request: Request) -> None:
        """Queue a request that was preempted."""
        self._front -= 1
        self._insert(request, self._front)

    def _insert(self, request: Request, place: int) -> None:
        key = self._key(request, place)
        request.queue_key = key
        self._requests[key] = request
        insort(self._keys, key)

    def first(self) -> Request:
        """The request to admit next; there must be one."""
        return self._requests[self._keys[0]]

    def remove(self, request: Request) -> None:
        """Take out a request that is in the queue."""
        key = request.queue_key
        if key is None:
            raise ValueError(f"request {request.id!r} is not waiting")
        del self._keys[bisect_left(self._keys, key)]
        del self._requests[key]
        request.queue_key = None
