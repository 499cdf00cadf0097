"""`inference-lab journal`: what has become of requests, a line each, also as they end.

The rows are those of a server that runs, or of a file; `inference-lab verdict` reads them here too.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

import msgspec

from inference_lab.console import Parser, UserError, json_line, print_lines, run
from inference_lab.core.apis.reading import NAME_OF_END
from inference_lab.core.journal.filters import FILTERS, Filter, filter_of
from inference_lab.core.journal.row import Row
from inference_lab.storage.database import DatabaseError, read_file

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_TIMEOUT_S: Final = 30
_LONGEST: Final = 300
"""Characters of what a peer says that stand in an error."""

_PROG: Final = "inference-lab journal"
_LOOK_EVERY_S: Final = 0.5
_LATE_S: Final = 5.0
"""By so much a row may come after one of a later time."""


class _List(msgspec.Struct):
    data: list[Row]


def journal_parser(prog: str, description: str) -> Parser:
    """A parser with the options that say which journal and which of its rows are meant."""
    parser = source_parser(prog, description)
    for name in FILTERS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=_HELP[name])
    return parser


def source_parser(prog: str, description: str) -> Parser:
    """A parser with the options that say which journal is meant."""
    parser = Parser(prog, description)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--url", default=DEFAULT_URL, help=f"a server with --enable-directives ({DEFAULT_URL})"
    )
    source.add_argument("--file", help="a file that a server has written with --journal")
    return parser


_HELP: Final = {
    "prompt": "the conversation's key, 16 hex digits",
    "tag": "the two letters of an answer's words",
    "request_id": "the x-request-id",
    "test": "the test id",
    "trigger": "header, prompt, config, echo or engine",
    "ending": "how it ended",
    "since": "not before this time, in Unix seconds",
}


def wanted_by(options: Namespace) -> Filter:
    """The rows that the options ask for.

    Raises:
        UserError: a value that is none.
    """
    given = {name: value for name in FILTERS if (value := getattr(options, name, None)) is not None}
    try:
        return filter_of(given)
    except ValueError as error:
        raise UserError(f"--{error}") from None


def fetch(options: Namespace, wanted: Filter) -> list[Row]:
    """The rows, the oldest first.

    Raises:
        UserError: the server or the file does not give them.
    """
    if options.file is not None:
        try:
            documents = read_file(options.file, wanted)
        except DatabaseError as error:
            raise UserError(str(error)) from None
        try:
            return [msgspec.json.decode(document, type=Row) for document in documents]
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{options.file}: a row cannot be read: {error}") from None
    query = urlencode(
        {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    )
    if not options.url.startswith(("http://", "https://")):
        raise UserError(f"--url {options.url}: expected http://HOST:PORT, as in {DEFAULT_URL}")
    return _ask(f"{options.url.rstrip('/')}/lab/journal?{query}".rstrip("?"))


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Take the redirect for the answer that it is."""


def _ask(url: str) -> list[Row]:
    # The lab is near: a proxy would have no part in it, and it redirects nobody.
    opener: Any = build_opener(ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=_List).data
    except HTTPError as error:
        with error:
            reason: object = _reason(error)
    except (BadStatusLine, IncompleteRead, LineTooLong) as error:
        # The first is a ConnectionError too where nothing has come at all.
        reason = error if isinstance(error, OSError) else f"no whole HTTP answer: {error}"
    except (HTTPException, OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        # A peer may announce more than there is memory for, or nest deeper than can be read.
        reason = getattr(error, "reason", None) or error or type(error).__name__
    raise UserError(f"{url}: {str(reason).strip():.{_LONGEST}}")


class _Refusal(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Refusal


def _reason(error: HTTPError) -> str:
    """What the server says, if it is one of ours."""
    if error.code == 404:
        return "no journal there; start the server with --enable-directives"
    try:
        return msgspec.json.decode(error.read(), type=_Refused).error.message
    except (msgspec.DecodeError, HTTPException, OSError):
        return str(error)


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
