"""`inference-lab sim`: a trace of requests run through a deployment in simulated time: tables, JSON or a drawing."""

from __future__ import annotations

import sys
import time
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from inference_lab.commands.offline import load_offline, offline_parser, read_json, text_table
from inference_lab.config.toml_reading import convert
from inference_lab.console import UserError, run, shown_json
from inference_lab.core.engine.cluster import Cluster, simulate
from inference_lab.core.engine.request import Request
from inference_lab.core.engine.specs import U32, NotNegative
from inference_lab.core.engine.statistics import Statistics, Timeline
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inference_lab.commands.offline import Offline
    from inference_lab.core.engine.statistics import Distribution, Slice, Summary

PLOT_SLICES: Final = 300

_WIDTH: Final = 900
_LEFT: Final = 80
_RIGHT: Final = 40
_TOP: Final = 60
_PANEL: Final = 120
_GAP: Final = 30
_PANELS: Final = (
    ("waiting requests", "waiting", "#c0392b"),
    ("running requests", "running", "#2471a3"),
    ("KV blocks in use, %", "kv_used", "#7d6608"),
    ("output tokens/s", "tokens_per_s", "#1e8449"),
)

_PROG = "inference-lab sim"
_BAR_WIDTH = 40
_BAR_INTERVAL_S = 0.2


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


def plot_writer(path: Path) -> Callable[[str], None]:
    """What writes an SVG text to `path`, as the format that its name ends in.

    Raises:
        UserError: another ending than .svg or .png, or what PNG needs is not installed; from the writer: the file
            cannot be written.
    """
    suffix = path.suffix.lower()
    render: Callable[[str], bytes]
    if suffix == ".svg":
        render = str.encode
    elif suffix == ".png":
        converter = _png_converter(path)
        render = lambda svg: converter.svg2png(bytestring=svg.encode(), scale=2)  # noqa: E731 - typed above
    else:
        raise UserError(f"--plot {path}: expected a name that ends in .svg or .png")

    def write(svg: str) -> None:
        try:
            path.write_bytes(render(svg))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise UserError(
                f"--plot {path}: cannot be written: {getattr(error, 'strerror', None) or error}"
            ) from None

    return write


def _png_converter(path: Path) -> Any:  # noqa: ANN401 - the library has no types
    try:
        return import_module("cairosvg")
    except (ImportError, OSError):  # OSError: the library is there, the system's libcairo is not
        raise UserError(
            f"--plot {path}: PNG needs cairosvg (pip install cairosvg) and libcairo; a .svg needs neither"
        ) from None


def plot_svg(slices: Sequence[Slice], title: str) -> str:
    """The four panels under each other, over one time axis."""
    height = _TOP + len(_PANELS) * (_PANEL + _GAP) + _GAP
    size = f'width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for number, (label, field, colour) in enumerate(_PANELS):
        scale = 100 if field == "kv_used" else 1
        values = [getattr(part, field) * scale for part in slices]
        parts += _panel(values, label, colour, _TOP + number * (_PANEL + _GAP))
    parts += _time_axis(slices, height - _GAP)
    return "\n".join([*parts, "</svg>\n"])


def _panel(values: Sequence[float], label: str, colour: str, top: int) -> list[str]:
    highest = max(values, default=0.0)
    bottom = top + _PANEL
    right = _WIDTH - _RIGHT
    column = (right - _LEFT) / max(1, len(values))
    points = []
    for index, value in enumerate(values):
        y = bottom - (value / highest * _PANEL if highest else 0)
        points += [f"{_LEFT + index * column:.1f},{y:.1f}", f"{_LEFT + (index + 1) * column:.1f},{y:.1f}"]
    return [
        f'<text x="{_LEFT}" y="{top - 6}">{label}</text>',
        f'<path d="M{_LEFT} {top}V{bottom}H{right}" fill="none" stroke="#999"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{highest:.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"/>',
    ]


def _time_axis(slices: Sequence[Slice], y: int) -> list[str]:
    if not slices:
        return [f'<text x="{_LEFT}" y="{y}">no step was run</text>']
    end_s = slices[1].start_s * len(slices)
    width = _WIDTH - _RIGHT - _LEFT
    marks = 5
    return [
        f'<text x="{_LEFT + width * mark / marks:.1f}" y="{y}" text-anchor="middle">{end_s * mark / marks:.4g} s</text>'
        for mark in range(marks + 1)
    ]


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
