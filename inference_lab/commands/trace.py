"""A trace: the requests that `inference-lab sim` runs, as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from inference_lab.config.toml_reading import convert
from inference_lab.console import UserError
from inference_lab.core.engine.request import Request
from inference_lab.core.engine.units import U32, NotNegative


class TraceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One request.

    `arrival` in seconds. It will produce `output_tokens`, while the scheduler plans with `max_output_tokens` (by
    default the same). `priority`: smaller is more urgent. `prompt_block_ids` are content ids, one per full block of
    the prompt. `result` is ignored, so that a trace with results can be run again.
    """

    id: int | str
    prompt_tokens: U32
    output_tokens: U32
    arrival: NotNegative = 0.0
    max_output_tokens: U32 | None = None
    priority: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    prompt_block_ids: tuple[int | str, ...] = ()
    result: Any = None

    def __post_init__(self) -> None:
        if self.max_output_tokens is not None and self.output_tokens > max(1, self.max_output_tokens):
            raise ValueError(
                f"output_tokens is {self.output_tokens}, expected at most max_output_tokens ({self.max_output_tokens})"
            )


def parse_trace(content: object, file: str, block_size: int) -> list[tuple[float, Request]]:
    """Arrivals (seconds, request) from a list of requests, or from an object with such a list under `requests`.

    Raises:
        UserError: an entry of another shape, an id that occurs twice, or more content ids than the prompt has full
        blocks of `block_size` positions: they were made for another size, or would share what is generated.
    """
    where = ""
    if isinstance(content, dict) and "requests" in content:
        content, where = content["requests"], "requests"
    entries = convert(content, tuple[TraceRequest, ...], file=file, where=where)
    seen: set[int | str] = set()
    arrivals = []
    for index, entry in enumerate(entries):
        if entry.id in seen:
            raise UserError(
                f"{file}: {where}[{index}].id is {entry.id!r}, which an earlier request has already"
            )
        seen.add(entry.id)
        full_blocks = entry.prompt_tokens // block_size
        if len(entry.prompt_block_ids) > full_blocks:
            raise UserError(
                f"{file}: {where}[{index}].prompt_block_ids has {len(entry.prompt_block_ids)} ids, expected at most"
                f" {full_blocks}: the full blocks of {block_size} in {entry.prompt_tokens} prompt tokens"
            )
        request = Request(
            entry.id,
            entry.prompt_tokens,
            entry.output_tokens,
            max_output_tokens=entry.max_output_tokens,
            priority=entry.priority,
            block_ids=entry.prompt_block_ids,
        )
        arrivals.append((entry.arrival, request))
    return arrivals
