"""The twistd plugin's and `inference-lab serve`'s options, and the service they make.

Imports nothing heavy: twistd loads this module to print its help, before the reactor is chosen.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from twisted.python import usage

from inference_lab import __version__
from inference_lab.console import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.application.service import IService


REPEATABLE: Final = frozenset({"port", "endpoint", "model", "allow-origin"})
"""Options that may be given more than once."""


class Options(usage.Options):
    """All options keep the string that was given, repeatable ones a list of them; `makeService` judges them."""

    optFlags = [  # noqa: RUF012 - Twisted's convention
        ["enable-directives", None, "honour the fault header and echo-directives of any client"],
    ]
    optParameters = [  # noqa: RUF012 - Twisted's convention
        ["config", None, "configs", "a model's TOML file, or a directory of them"],
        [
            "model",
            None,
            None,
            "serve this model of the config, by its name or an alias (default: all); may be repeated",
        ],
        ["hardware", None, None, "the [hardware] entry to run on (default: each file's first)"],
        ["host", None, None, "address to listen on (default: 127.0.0.1)"],
        ["port", None, None, "port to listen on, 0 picks a free one (default: 8080); may be repeated"],
        [
            "endpoint",
            None,
            None,
            "a Twisted endpoint string in place of --host and --port; TLS through ssl:...; may be repeated",
        ],
        [
            "allow-origin",
            None,
            None,
            "an origin, or *, whose pages may read and delete the record (/lab/, /metrics); may be repeated",
        ],
        ["flush-grace-ms", None, "25", "the least wait before a FIN or RST, in ms"],
        ["linger-s", None, "30", "how long a FIN or RST waits for a reader without progress, in s"],
        [
            "reader-timeout-s",
            None,
            "300",
            "after how long without progress a reader is reset mid-stream, in s",
        ],
        ["max-body-bytes", None, "16777216", "the largest request body, in bytes"],
        [
            "max-bodies-bytes",
            None,
            None,
            "what bodies of unanswered requests may be together, per process, in bytes (default: 268435456)",
        ],
        ["request-timeout-s", None, "60", "how long a request's head may take, TLS handshake included, in s"],
        ["speed", None, "1", "how many times faster than life the engine runs; never a fault's delay_ms"],
        ["workers", None, "1", "processes that share the port, each with engines of its own"],
        [
            "max-streams",
            None,
            None,
            "open streams per process past which one more is a 503 (default: no limit)",
        ],
        ["drain-s", None, "0", "how long SIGTERM lets healthy answers finish, in s"],
        ["journal", None, None, "a file for the journal of requests (with --enable-directives: in memory)"],
        ["journal-rows", None, "10000", "rows that the journal keeps"],
        ["journal-age-s", None, "86400", "after how long the journal drops a row, in s"],
        ["log-format", None, "text", "text or json: one line per event and answer"],
    ]

    def __setitem__(self, name: str, value: object) -> None:
        """What Twisted does with a value that was given."""
        super().__setitem__(name, [*(self[name] or ()), value] if name in REPEATABLE else value)

    def opt_version(self) -> None:
        """Print the version and exit."""
        sys.stdout.write(f"inference-lab {__version__}\n")
        raise SystemExit(0)

    def parseArgs(self, *others: str) -> None:  # noqa: N802 - Twisted's name
        """Everything is an option; Twisted would not say which word is none."""
        if others:
            raise usage.UsageError(f"{others[0]!r} is no option")

    def parseOptions(self, options: Sequence[str] | None = None) -> None:  # noqa: N802 - Twisted's name
        """Read the options. Under twistd what is none is one line here: it would list all of them, on stdout."""
        try:
            super().parseOptions(options)  # type: ignore[no-untyped-call] # Twisted's has no annotations
        except usage.UsageError as error:
            if self.parent is None:
                raise
            fail(f"{error} (twistd inference-lab --help lists the options)")

    def getSynopsis(self) -> str:  # noqa: N802 - Twisted's name
        """One line for --help."""
        command = "inference-lab serve" if self.parent is None else "twistd [options] inference-lab"
        return f"usage: {command} [options]"


def makeService(options: usage.Options, *, logs_to_stdout: bool = False) -> IService:  # noqa: N802 - the name twistd calls
    """Judge the options, load the models, open the ports.

    `logs_to_stdout` says that the log is lines on stdout, so that workers may write theirs there without us.

    Whatever fails is one line on stderr and exit status 1, here and not later: once twistd has started its log,
    and in daemon mode once it has forked, nothing could be said in one line any more.
    """
    from inference_lab.console import UserError  # noqa: PLC0415
    from inference_lab.service.serving import open_service  # noqa: PLC0415 - keeps `twistd --help` light

    try:
        return open_service(options, logs_to_stdout=logs_to_stdout)
    except UserError as error:
        fail(" ".join(str(error).split()))
