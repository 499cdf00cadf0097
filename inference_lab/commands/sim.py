"""`inference-lab sim`: a trace of requests run through a deployment in simulated time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inference_lab.commands.offline import load_offline, offline_parser, read_json
from inference_lab.commands.sim_plot import PLOT_SLICES, plot_svg, plot_writer
from inference_lab.commands.text_table import text_table
from inference_lab.commands.trace import parse_trace
from inference_lab.console import run, shown_json
from inference_lab.core.engine.cluster import Cluster
from inference_lab.core.engine.simulation import simulate
from inference_lab.core.engine.statistics import Statistics
from inference_lab.core.engine.timeline import Timeline
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inference_lab.commands.offline import Offline
    from inference_lab.core.engine.request import Request
    from inference_lab.core.engine.statistics import Distribution, Summary

_PROG = "inference-lab sim"
_BAR_WIDTH = 40
_BAR_INTERVAL_S = 0.2


def main(argv: list[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    parser = offline_parser(_PROG, "Run a trace of requests through a deployment in simulated time.")
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE",
        help='a JSON list of {"id", "arrival" (seconds), "prompt_tokens", "output_tokens", "max_output_tokens",'
        ' "priority", "prompt_block_ids"}, or an object with such a list under "requests"; - reads standard input',
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw queue, running, KV use and token rate over time (.svg or .png)"
    )
    options = parser.parse_args(argv)

    def command() -> None:
        write_plot = None if options.plot is None else plot_writer(Path(options.plot))
        offline = load_offline(options.config, options.hardware, options.settings)
        arrivals = parse_trace(*read_json(options.trace), offline.deployment.scheduler.block_size)
        requests = [request for _, request in arrivals]
        cluster = Cluster(offline.deployment)
        statistics = Statistics(cluster)
        timeline = None if write_plot is None else Timeline(cluster)
        progress = _Progress(len(requests))
        for replica, step in simulate(cluster, arrivals):
            statistics.watch(replica, step)
            if timeline is not None:
                timeline.watch(step)
            progress.advance(len(step.finished) + len(step.rejected), step.start_s)
        progress.clear()
        summary = statistics.summary(requests)
        if write_plot is not None and timeline is not None:
            title = f"{offline.model} on {offline.hardware}: {summary.requests} requests"
            write_plot(plot_svg(timeline.slices(PLOT_SLICES), title))
        output = (
            _as_json(offline, requests, summary) if options.json else _as_tables(offline, requests, summary)
        )
        sys.stdout.write(output)

    return run(_PROG, command)


class _Progress:
    """A bar on standard error, where that is a terminal and the run takes long enough to be watched."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = 0
        self._shown = False
        self._next_s = time.monotonic() + _BAR_INTERVAL_S if sys.stderr.isatty() and total else float("inf")

    def advance(self, ended: int, now_s: float) -> None:
        """`ended` more requests are over at the simulated time `now_s`."""
        self._ended += ended
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _BAR_INTERVAL_S
        self._shown = True
        filled = _BAR_WIDTH * self._ended // self._total
        bar = "#" * filled + " " * (_BAR_WIDTH - filled)
        sys.stderr.write(f"\r[{bar}] {self._ended}/{self._total} requests, {now_s:.3f} s simulated")
        sys.stderr.flush()

    def clear(self) -> None:
        """Wipe the bar, so that what follows starts on a clean line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def _result(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "arrival": request.arrival_s,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.produced,
        "first_token": request.first_token_s,
        "finish": request.finish_s,
        "preemptions": request.preemptions,
        "rejected": request.rejected,
        "worker": request.worker,
    }


def _as_json(offline: Offline, requests: Sequence[Request], summary: Summary) -> str:
    record = {
        "config": offline.config,
        "model": offline.model,
        "hardware": offline.hardware,
        "requests": [_result(request) for request in requests],
        "summary": summary,
    }
    return shown_json(msgspec.json.format(msgspec.json.encode(record)).decode())


def _as_tables(offline: Offline, requests: Sequence[Request], summary: Summary) -> str:
    headings = (
        "id",
        "arrival s",
        "first token s",
        "finish s",
        "prompt",
        "cached",
        "output",
        "preempted",
        "worker",
    )
    rows = [
        (
            str(request.id),
            f"{request.arrival_s:.6f}",
            "rejected" if request.rejected else f"{request.first_token_s:.6f}",
            f"{request.finish_s:.6f}",
            *map(str, (request.prompt_tokens, request.cached_tokens, request.produced)),
            *map(str, (request.preemptions, request.worker)),
        )
        for request in requests
    ]
    times = [
        (name, *(f"{value * 1e3:.3f}" for value in msgspec.structs.astuple(spread)))
        for name, spread in _distributions(summary)
    ]
    facts = {
        "requests": (
            f"{summary.completed} completed, {summary.rejected} rejected, {summary.preemptions} preemptions"
        ),
        "simulated": (
            f"{summary.end_time:.6f} s in {summary.steps} steps, {summary.batch_mean:.1f} requests per step"
        ),
        "throughput": (
            f"{summary.output_tokens_per_s:.1f} output tokens/s, {summary.prompt_tokens_per_s:.1f} prompt tokens/s,"
            f" {summary.requests_per_s:.3f} requests/s"
        ),
        "utilisation": (
            f"busy {summary.busy:.1%}, compute {summary.compute:.1%}, memory bandwidth {summary.memory:.1%},"
            f" KV {summary.kv_mean:.1%} (at most {summary.kv_max:.1%})"
        ),
    }
    return (
        one_line(f"{offline.model} on {offline.hardware}")
        + f"\n\n{text_table(headings, rows)}\n\n"
        + text_table(("ms", "mean", "p50", "p90", "p95", "p99", "max"), times)
        + "\n\n"
        + "\n".join(f"{name:<12}{text}" for name, text in facts.items())
        + "\n"
    )


def _distributions(summary: Summary) -> list[tuple[str, Distribution]]:
    named = {
        "time to first token": summary.ttft,
        "time between tokens": summary.itl,
        "whole answer": summary.latency,
    }
    return [(name, spread) for name, spread in named.items() if spread is not None]
