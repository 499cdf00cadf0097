"""A run drawn as SVG: queue, running requests, KV use and token rate over simulated time."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from inference_lab.console import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from inference_lab.core.engine.timeline import Slice

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
