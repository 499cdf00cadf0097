"""`inference-lab faults`: the modes and axes there are, or the script that a directive comes to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inference_lab.config.incident_file import load_incidents
from inference_lab.console import Parser, UserError, json_line, print_lines, run
from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.reading import NAME_OF_END
from inference_lab.core.apis.table import APIS
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.listing import listing
from inference_lab.core.stream.preview import preview

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

_PROG: Final = "inference-lab faults"
_CONFIG: Final = "configs"


def main(argv: list[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    parser = Parser(_PROG, "List the modes and axes there are, or show what a directive does.")
    parser.add_argument(
        "directive", nargs="?", metavar="NAME|DIRECTIVE", help="a mode, or what the fault header would say"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, for tools")
    parser.add_argument(
        "--api", choices=tuple(APIS), default=CHAT.name, help="whose stream to show (default: %(default)s)"
    )
    parser.add_argument(
        "--completions", action="store_const", const="completions", dest="api", help="--api completions"
    )
    parser.add_argument(
        "--config", metavar="PATH", help=f"whose incidents to know, as for serve (default: {_CONFIG})"
    )
    options = parser.parse_args(argv)
    return run(_PROG, lambda: _print(options))


def _print(options: Namespace) -> None:
    incidents = _incidents(options.config)
    try:
        value: Any = (
            listing(incidents)
            if options.directive is None
            else preview(options.directive, api=APIS[options.api], incidents=incidents)
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    if options.json:
        sys.stdout.write(json_line(value, indent=1))
    else:
        lines = _listed(value) if options.directive is None else _shown(value)
        print_lines(lines)


def _incidents(config: str | None) -> Incidents:
    """The incidents beside a config; none where nobody named one and there is none.

    Raises:
        UserError: a config that is not there, or an incident that `serve` would refuse.
    """
    path = Path(_CONFIG if config is None else config)
    try:
        is_there = path.exists()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if is_there:
        return load_incidents(path)
    if config is None:
        return NO_INCIDENTS
    raise UserError(f"{config}: no such file or directory")


def _listed(value: dict[str, Any]) -> Iterator[str]:
    """The tables, a line a row."""
    width = max(len(row.get("name", row.get("key", ""))) for row in (*value["modes"], *value["axes"]))
    yield "modes, and what each is over the healthy stream:"
    for row in value["modes"]:
        yield f"  {row['name']:{width}}  {row['directive']}  ({row['seen_in']})"
    if value["incidents"]:
        yield "incidents, modes from files:"
        yield from (f"  {name}" for name in value["incidents"])
    yield "axes, the keys of any directive:"
    for row in value["axes"]:
        default = f", default {row['default']}" if row["default"] else ""
        yield f"  {row['key']:{width}}  {row['help']}: {row['values']}{default}"
    yield "errors, the values of error=:"
    for row in value["errors"]:
        done = f", then {NAME_OF_END}" if row["done"] == "true" else ""
        yield f"  {row['name']:{width}}  {row['text']}{done}  ({row['seen_in']})"


def _shown(legs: list[dict[str, Any]]) -> Iterator[str]:
    """Each leg's script, an event a line."""
    for leg in legs:
        if "more" in leg:
            yield f"and {leg['more']} more"
            return
        times = leg.get("times")
        if len(legs) > 1 or leg["progress"] or times:
            first = "" if times is None else ", first request" if times == 1 else f", first {times} requests"
            yield f"leg {leg['leg']}, {leg['progress']} words into the answer{first}"
        yield leg["fault"] or "ok"
        now_ms = 0
        for event in leg["events"]:
            ((kind, value),) = event.items()
            if kind == "pause_ms":
                now_ms += value
            elif kind == "head":
                yield f"{now_ms:>8} ms  head   {value['status']}  {'; '.join(value['headers'])}"
            else:
                yield f"{now_ms:>8} ms  {kind:6} {value}"
        yield f"{now_ms:>8} ms  end    {leg['end'] or 'not yet: more follows'}"
