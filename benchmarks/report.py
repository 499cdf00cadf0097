"""The benchmark's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    import pstats

    from scenarios import Scenario

_COLUMNS: Final = (
    ("CPU µs/frame", ("cpu_us_per_frame",), "{:.2f}"),
    ("frames/s", ("frames_per_s",), "{:,.0f}"),
    ("gap mean", ("gap_ms", "mean"), "{:.3f}"),
    ("p50", ("gap_ms", "p50"), "{:.2f}"),
    ("p99", ("gap_ms", "p99"), "{:.2f}"),
    ("max", ("gap_ms", "max"), "{:.1f}"),
    ("late p50", ("late_ms", "p50"), "{:.2f}"),
    ("late p99", ("late_ms", "p99"), "{:.2f}"),
    ("TTFB p50", ("ttfb_ms", "p50"), "{:.2f}"),
    ("TTFB p99", ("ttfb_ms", "p99"), "{:.2f}"),
    ("KiB/stall", ("bytes_per_stream",), "{:.1f}"),
    ("fds/stall", ("descriptors_per_stream",), "{:.2f}"),
    ("start s", ("start_s",), "{:.3f}"),
)
_RECORDED: Final = {
    # scenario: CPU µs per frame of the original in Rust, of aimock 1.43; None: not measured
    "paced-400": (8.2, 15.4),
    "paced-1000": (8.2, None),
    "burst-100": (6.9, 2.1),
}
"""Figures of peers taken once on another machine (two cores, loopback): a rough measure and no more."""


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per scenario and server, times in ms; then the ratios ours / theirs where there is a peer."""
    lines = [["scenario", "server", *(name for name, _, _ in _COLUMNS)]]
    for row in rows:
        for name, figures in row.items():
            if name != "scenario":
                lines.append([row["scenario"], name, *_cells(figures)])
        if "peer" in row and "inference-lab" in row:
            ratios = (_ratio(row["inference-lab"], row["peer"], path) for _, path, _ in _COLUMNS)
            lines.append(["", "ratio", *ratios])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for row in rows:
        for name, figures in row.items():
            if name != "scenario" and figures.get("not_200"):
                print(f"{row['scenario']}: {name} gave {figures['not_200']:.0f} answers other than 200")


def cost_of_the_journal(rows: list[dict[str, Any]]) -> None:
    """What a journal in a file adds to a frame's CPU, where both were measured."""
    cpu = {row["scenario"]: row.get("inference-lab", {}).get("cpu_us_per_frame") for row in rows}
    for kind, frames in (("paced-1000", 100), ("long-1000", 1000)):
        without, with_it = cpu.get(f"{kind}-no-journal"), cpu.get(f"{kind}-journal")
        if without and with_it:
            print(
                f"a journal in a file, answers of {frames} frames: {with_it / without:.3f} times the CPU per frame"
            )


def against_recorded(rows: list[dict[str, Any]]) -> None:
    """Ratios to figures of peers that were taken elsewhere, for want of a peer in this run."""
    for row in rows:
        recorded = _RECORDED.get(row["scenario"])
        mine = row.get("inference-lab", {}).get("cpu_us_per_frame")
        if recorded and mine:
            original, aimock = recorded
            text = f"{mine / original:.2f} times the original in Rust"
            if aimock:
                text += f", {mine / aimock:.2f} times aimock"
            print(f"{row['scenario']}: CPU per frame is {text} (their figures are from another machine)")


def print_profile(scenario: Scenario, figures: dict[str, Any], stats: pstats.Stats, file: TextIO) -> None:
    """The functions that take most time themselves, per frame of the whole run."""
    frames = max(1, figures["content_frames"])
    print(
        f"{scenario.name}: {frames} frames counted, {figures['cpu_us_per_frame']:.1f} µs each under the profiler",
        file=file,
    )
    entries = stats.stats.items()  # type: ignore[attr-defined] # what pstats itself sorts
    total = sum(entry[2] for _, entry in entries)
    print(f"{'share':>6} {'calls/frame':>12} {'self µs/call':>13}  function", file=file)
    for (path, line, name), (_, calls, own, _, _) in sorted(entries, key=lambda item: -item[1][2])[:40]:
        where = name if path == "~" else f"{'/'.join(path.split('/')[-2:])}:{line} {name}"
        print(f"{own / total:6.1%} {calls / frames:12.3f} {own / calls * 1e6:13.2f}  {where}", file=file)
    print(file=file)


def _find(figures: dict[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = figures
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None or (len(path) > 1 and not figures[path[0]]["n"]):
        return None
    return float(value) / 1024 if path == ("bytes_per_stream",) else float(value)


def _cells(figures: dict[str, Any]) -> list[str]:
    return [
        "" if (value := _find(figures, path)) is None else form.format(value) for _, path, form in _COLUMNS
    ]


def _ratio(mine: dict[str, Any], theirs: dict[str, Any], path: tuple[str, ...]) -> str:
    above, below = _find(mine, path), _find(theirs, path)
    return f"{above / below:.2f}" if above is not None and below else ""
