"""`inference-lab journal`: what has become of requests, a line each, also as they end."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.commands.journal_rows import fetch, journal_parser, wanted_by
from inference_lab.console import json_line, print_lines, run
from inference_lab.core.apis.reading import NAME_OF_END

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from inference_lab.core.journal.row import Row

_PROG: Final = "inference-lab journal"
_LOOK_EVERY_S: Final = 0.5
_LATE_S: Final = 5.0
"""By so much a row may come behind one of a later time."""


def main(arguments: Sequence[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    parser = journal_parser(_PROG, "Show what has become of requests.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--follow", action="store_true", help="go on, with each request as it ends")
    options = parser.parse_args(arguments)
    try:
        return run(_PROG, lambda: _show(options))
    except KeyboardInterrupt:
        return 0


def _show(options: Namespace) -> None:
    for row in _followed(options) if options.follow else fetch(options, wanted_by(options)):
        if options.json:
            sys.stdout.write(json_line(msgspec.to_builtins(row)))
        else:
            print_lines([as_line(row)])
        if options.follow:
            sys.stdout.flush()


def _followed(options: Namespace) -> Iterator[Row]:
    """Each row once, when it has ended."""
    # An open row, which is looked out for, has no ending yet.
    wanted = msgspec.structs.replace(wanted_by(options), ending=None)
    shown: set[int] = set()
    while True:
        rows = fetch(options, wanted)
        ended = [row for row in rows if row.state == "ended"]
        yield from (row for row in ended if row.id not in shown and options.ending in {None, row.ending})
        if rows:
            # What may still change begins with the first that is open; what may still come, a little before the last:
            # a worker writes in batches, and of whole answers only once they are acknowledged.
            still_open = [row.time for row in rows if row.state == "open"]
            since = min([*still_open, rows[-1].time - _LATE_S])
            wanted = msgspec.structs.replace(wanted, since=max(since, wanted.since or 0.0))
        shown = {row.id for row in ended}
        time.sleep(_LOOK_EVERY_S)


def as_line(row: Row) -> str:
    """A row as a person reads it: the request, what it asked for, what it got, how it ended."""
    try:
        at = datetime.fromtimestamp(row.time).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):  # a file or a server that is not ours may say anything
        at = f"{row.time:g}"
    said = [f"{at} #{row.id} {row.method} {row.path}"]
    if row.prompt is not None:
        leg = "" if row.leg is None else f" leg {row.leg}"
        said.append(f"{row.tag}+{row.progress}{leg}")
    if row.trigger is not None:
        said.append(row.trigger if row.fault is None else f"{row.trigger} {row.fault}")
    if row.state == "open":
        said.append("open")
        return "  ".join(said)
    asked = "" if row.ending_asked in {None, row.ending} else f" (asked: {row.ending_asked})"
    status = "no status" if row.status is None else str(row.status)
    refusal = "" if row.error is None else f" {row.error}"
    said.append(f"{status}{refusal} {row.ending}{asked}")
    if row.peer in {"fin", "rst"} and row.peer_s is not None:
        said.append(f"client {row.peer} after {row.peer_s:.3f} s")
    done = f", {NAME_OF_END}" if row.done_sent else ""
    unsent = f", {row.bytes_unsent} unsent" if row.bytes_unsent else ""
    said.append(f"{row.words} words{done}, {row.bytes_written} bytes{unsent}")
    return "  ".join(said)
