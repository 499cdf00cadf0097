"""`inference-lab step`: what one step of a batch costs, and of what it is made up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from inference_lab.commands.offline import load_offline, offline_parser, read_json, text_table
from inference_lab.config.toml_reading import convert
from inference_lab.console import UserError, run, shown_json
from inference_lab.core.engine.roofline import Roofline
from inference_lab.core.engine.specs import U32, Count
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inference_lab.commands.offline import Offline
    from inference_lab.core.engine.deployment_spec import Deployment
    from inference_lab.core.engine.roofline import StepCost

_PROG = "inference-lab step"


class BatchEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` entries of a batch: `new_tokens` computed on top of `context_tokens`, on `rank` (None: spread)."""

    context_tokens: U32
    new_tokens: Count
    phase: Literal["prefill", "decode"]
    count: Count = 1
    rank: U32 | None = None


def main(argv: list[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    parser = offline_parser(_PROG, "Price one step of a batch, with the parts that add up to it.")
    parser.add_argument(
        "--batch",
        required=True,
        metavar="FILE",
        help='a JSON list of {"context_tokens", "new_tokens", "phase": "prefill" or "decode", "count", "rank"};'
        " - reads standard input. With dp_attention, entries without a rank are spread round robin",
    )
    options = parser.parse_args(argv)

    def command() -> None:
        offline = load_offline(options.config, options.hardware, options.settings)
        batch = place(*read_json(options.batch), offline.deployment)
        cost = price(batch, offline.deployment)
        sys.stdout.write(_as_json(offline, batch, cost) if options.json else _as_table(offline, cost))

    return run(_PROG, command)


def place(content: object, file: str, deployment: Deployment) -> list[BatchEntry]:
    """The batch in `content`, every entry on a rank.

    Raises:
        UserError: an entry of another shape, an empty batch, a rank that the deployment does not have.
    """
    entries = convert(content, tuple[BatchEntry, ...], file=file, where="")
    if not entries:
        raise UserError(f"{file}: the batch is empty, expected at least one entry")
    ranks = deployment.rank_count
    placed: list[BatchEntry] = []
    turn = 0
    for index, entry in enumerate(entries):
        if entry.rank is not None:
            if entry.rank >= ranks:
                raise UserError(f"{file}: [{index}].rank is {entry.rank}, expected less than {ranks}")
            placed.append(entry)
        else:
            placed += _spread(entry, turn, ranks)
            turn += entry.count
    return placed


def _spread(entry: BatchEntry, turn: int, ranks: int) -> Iterator[BatchEntry]:
    """`entry` dealt out to the ranks in turn, beginning with the rank whose turn it is."""
    for offset in range(min(ranks, entry.count)):
        count = (entry.count - offset - 1) // ranks + 1
        yield msgspec.structs.replace(entry, count=count, rank=(turn + offset) % ranks)


def price(batch: Sequence[BatchEntry], deployment: Deployment) -> StepCost:
    """What a step of `batch` costs."""
    roofline = Roofline(deployment)
    works = [roofline.batch() for _ in range(deployment.rank_count)]
    for entry in batch:
        works[entry.rank or 0].add(
            entry.context_tokens, entry.new_tokens, decode=entry.phase == "decode", count=entry.count
        )
    return roofline.price(works)


def _as_json(offline: Offline, batch: Sequence[BatchEntry], cost: StepCost) -> str:
    deployment = offline.deployment
    record: dict[str, Any] = {
        "config": offline.config,
        "model": offline.model,
        "hardware": offline.hardware,
        "tp": deployment.tp,
        "ep": deployment.ep,
        "dp_attention": deployment.dp_attention,
        "batch": msgspec.to_builtins(batch),
        **msgspec.to_builtins(cost),
    }
    if not deployment.dp_attention:
        del record["rank_attention_seconds"]
        for entry in record["batch"]:
            del entry["rank"]
    return shown_json(msgspec.json.format(msgspec.json.encode(record)).decode())


def _as_table(offline: Offline, cost: StepCost) -> str:
    deployment = offline.deployment
    parallel = f"tp {deployment.tp}, ep {deployment.ep}" + (
        ", dp_attention" if deployment.dp_attention else ""
    )
    streams = text_table(
        ("dtype", "FLOPs", "bytes", "compute ms", "memory ms", "roofline ms"),
        [
            (
                dtype,
                f"{stream.flops:.6g}",
                f"{stream.bytes:.6g}",
                f"{stream.compute_s * 1e3:.6f}",
                f"{stream.memory_s * 1e3:.6f}",
                f"{stream.seconds * 1e3:.6f}",
            )
            for dtype, stream in cost.streams.items()
        ],
    )
    parts = [
        ("sum of dtypes", sum(stream.seconds for stream in cost.streams.values())),
        ("collectives", cost.collective_seconds),
    ]
    if deployment.time_correction is not None:
        parts.append(("time correction", cost.roofline_seconds - sum(seconds for _, seconds in parts)))
    parts += [("wait for the slowest rank", cost.skew_seconds), ("step", cost.step_seconds)]
    times = text_table(("part", "ms"), [(part, f"{seconds * 1e3:.6f}") for part, seconds in parts])
    return (
        one_line(f"{offline.model} on {offline.hardware}, {parallel}: {cost.total_new_tokens} new tokens")
        + f"\n\n{streams}\n\n"
        f"of which attention {cost.attention_flops:.6g} FLOPs, KV reads {cost.kv_read_bytes:.6g} bytes,"
        f" state reads {cost.state_read_bytes:.6g} bytes\n\n{times}\n"
    )
