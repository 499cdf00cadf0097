"""The `inference-lab` command."""

from __future__ import annotations

import gc
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference_lab import __version__
from inference_lab.console import fail, written

if TYPE_CHECKING:
    from collections.abc import Callable

_USAGE: Final = """\
usage: inference-lab COMMAND [options]    (inference-lab COMMAND --help lists a command's options)

  serve     serve the models of a config
  faults    list the ways to die, or show what one of them does
  journal   show what has become of requests, as a server has recorded it
  verdict   judge what a gateway asked for, leg by leg, from the journal
  verify    judge what a gateway's client received, from standard input
  sim       run a trace of requests through a simulated deployment, offline
  record    capture a live response into a file that replays it as a fault
  step      price one step of a simulated deployment
  --version
"""
_INTERRUPTED: Final = 130
_INPUT_OUTPUT_ERROR: Final = 74  # sysexits.h, EX_IOERR


def main() -> None:
    """Run a subcommand; exits with its status, 130 for one that Ctrl-C interrupts (as a shell says it)."""
    arguments = sys.argv[1:]
    # An error's status of `verify` must be none of its verdicts'.
    failure = _INPUT_OUTPUT_ERROR if arguments[:1] == ["verify"] else 1
    _require_streams(failure)
    sys.exit(written("inference-lab", lambda: _run(arguments), failure=failure))


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        sys.stdout.write(f"inference-lab {__version__}\n")
    elif not arguments or arguments[0] in {"--help", "-h", "help"}:
        sys.stdout.write(_USAGE)
    elif arguments[0] in _COMMANDS:
        try:
            return _COMMANDS[arguments[0]](arguments[1:])
        except KeyboardInterrupt:
            return _INTERRUPTED
        except SystemExit as stop:  # of a parser that has shown its help, which is still to be written
            if stop.code not in {None, 0}:
                raise
    else:
        fail(f"no command {arguments[0]!r}; there are: {', '.join(_COMMANDS)}")
    return 0


def _require_streams(failure: int) -> None:
    """Standard output that can say anything, whatever it is; Python has none of a stream that is closed."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it stays until the process ends
    if sys.stdout is None:
        fail("standard output is closed", failure)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _serve(arguments: list[str]) -> int:
    """Serve until SIGINT or SIGTERM, logging to stdout, as `twistd -n inference-lab` does."""
    gc.disable()  # until the service has started: what is made until then stays
    from twisted.python import usage  # noqa: PLC0415 - only this command needs Twisted

    from inference_lab.service.process import skip_tls_import  # noqa: PLC0415
    from inference_lab.tap import Options, makeService  # noqa: PLC0415

    options = Options()
    try:
        options.parseOptions(arguments)
    except usage.UsageError as error:
        fail(f"{error} (inference-lab serve --help lists the options)")
    skip_tls_import(options["endpoint"] or ())
    service = makeService(options, logs_to_stdout=True)

    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it
    from twisted.logger import globalLogBeginner  # noqa: PLC0415

    from inference_lab.service.logs import observer_of  # noqa: PLC0415
    from inference_lab.service.process import exit_with  # noqa: PLC0415

    observer = observer_of(options["log-format"], sys.stdout)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()
    # The interpreter would take as long to free thousands of streams one by one as the service has taken to end them.
    exit_with(0)
    return 0


def _verify(arguments: list[str]) -> int:
    from inference_lab.commands.verify import main as verify  # noqa: PLC0415 - each command loads only its own

    return verify(arguments)


def _faults(arguments: list[str]) -> int:
    from inference_lab.commands.faults import main as faults  # noqa: PLC0415

    return faults(arguments)


def _journal(arguments: list[str]) -> int:
    from inference_lab.commands.journal import main as journal  # noqa: PLC0415

    return journal(arguments)


def _verdict(arguments: list[str]) -> int:
    from inference_lab.commands.verdict import main as verdict  # noqa: PLC0415

    return verdict(arguments)


def _sim(arguments: list[str]) -> int:
    from inference_lab.commands.sim import main as sim  # noqa: PLC0415

    return sim(arguments)


def _record(arguments: list[str]) -> int:
    from inference_lab.commands.record.command import main as record  # noqa: PLC0415

    return record(arguments)


def _step(arguments: list[str]) -> int:
    from inference_lab.commands.step import main as step  # noqa: PLC0415

    return step(arguments)


_COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {
    "serve": _serve,
    "faults": _faults,
    "journal": _journal,
    "verdict": _verdict,
    "verify": _verify,
    "sim": _sim,
    "record": _record,
    "step": _step,
}
