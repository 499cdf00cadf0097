"""Scheduling policies: who is admitted first, and who has to go when blocks run out.

Rules: docs/engine.md, "Policies".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inference_lab.core.engine.request import Request


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
