"""What every command says its results with: standard output, whatever is behind it."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# JSON's own escapes end at U+001F; a terminal, or whoever reads lines, heeds more.
_UNSHOWN: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


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


def json_line(value: object, *, indent: int | None = None) -> str:
    """A value as JSON and a line feed: on one line without `indent`, in ASCII where standard output knows no more."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
