"""The `inference-lab` command."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from inference_lab import __version__

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


def main() -> None:
    """Run a subcommand; exits with its status, 130 for one that Ctrl-C interrupts (as a shell says it)."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        sys.stdout.write(f"inference-lab {__version__}\n")
    elif not arguments or arguments[0] in {"--help", "-h", "help"}:
        sys.stdout.write(_USAGE)
    elif arguments[0] in _COMMANDS:
        try:
            status = _COMMANDS[arguments[0]](arguments[1:])
        except KeyboardInterrupt:
            status = _INTERRUPTED
        sys.exit(status)
    else:
        fail(f"no command {arguments[0]!r}; there are: {', '.join(_COMMANDS)}")


def fail(message: str) -> NoReturn:
    """End the process with a line on stderr and status 1."""
    sys.stderr.write(f"inference-lab: {message}\n")
    raise SystemExit(1) from None


def _serve(arguments: list[str]) -> int:
    """Serve until SIGINT or SIGTERM, logging to stdout, as `twistd -n inference-lab` does."""
    gc.disable()  # until the service has started: what is made until then stays
    from twisted.python import usage  # noqa: PLC0415 - only this command needs Twisted

    from inference_lab.service.without_tls import leave_tls_out  # noqa: PLC0415
    from inference_lab.tap import Options, makeService  # noqa: PLC0415

    options = Options()
    try:
        options.parseOptions(arguments)
    except usage.UsageError as error:
        fail(f"{error} (inference-lab serve --help lists the options)")
    leave_tls_out(options["endpoint"] or ())
    service = makeService(options, logs_to_stdout=True)

    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it
    from twisted.logger import globalLogBeginner  # noqa: PLC0415

    from inference_lab.service.logs import observer_of  # noqa: PLC0415

    observer = observer_of(options["log-format"], sys.stdout)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()
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
    from inference_lab.record.command import main as record  # noqa: PLC0415

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
