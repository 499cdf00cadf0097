"""What all commands share: a user's mistake in one line, the parser of options, and how results are written."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from inference_lab.core.one_line import one_line, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST_LINE: Final = 20_000
"""Characters; more than a directive can have, which is the longest that a line quotes."""


class UserError(Exception):
    """What a user has got wrong, in one printable line: what, where (file, key, value), and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(short_line(message, _LONGEST_LINE))


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and a status, 1 unless the command has its own."""

    def __init__(self, prog: str, description: str, *, status: int = 1) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self._status = status

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit."""
        self.exit(self._status, f"{self.prog}: {one_line(message)} ({self.prog} --help lists the options)\n")


def fail(message: str, status: int = 1) -> NoReturn:
    """End the process with a line on stderr and a status."""
    sys.stderr.write(f"inference-lab: {one_line(message)}\n")
    raise SystemExit(status) from None


def run(prog: str, command: Callable[[], None]) -> int:
    """Run `command` and return the exit status; what the user got wrong becomes one line on stderr."""

    def status() -> int:
        try:
            command()
        except UserError as error:
            sys.stderr.write(f"{prog}: {error}\n")
            return 1
        return 0

    return written(prog, status)


def written(prog: str, command: Callable[[], int], *, failure: int = 1) -> int:
    """Run `command`, and see that what it prints is written; its status.

    What cannot be written is one line on stderr and the status `failure`. A reader that has seen enough is no news.
    """
    try:
        status = command()
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"{prog}: cannot write: {error.strerror or error}\n")
        # Nothing may be flushed at exit any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failure
    return status


def print_lines(lines: Iterable[str]) -> None:
    """Write each as a line, whatever it quotes: what would end it or steer a terminal is escaped, and it has an end."""
    sys.stdout.write("".join(f"{short_line(line, _LONGEST_LINE)}\n" for line in lines))


def json_line(value: object, *, indent: int | None = None) -> str:
    """A value as JSON and a line feed: on one line without `indent`, in ASCII where standard output knows no more."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    return shown_json(text)


def shown_json(text: str) -> str:
    """JSON and a line feed; what would end a line or steer a terminal is escaped, as JSON does up to U+001F only."""
    return "".join(f"{_escaped(line)}\n" for line in text.split("\n"))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
