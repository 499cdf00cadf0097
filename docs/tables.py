"""Write the tables in docs/faults.md that say what the program's own tables say.

    .venv-dev/bin/python docs/tables.py

A table stands between two markers, the first of which names it: `modes`, `axes`, `errors`, `constraints`.

    <!-- table axes -->
    <!-- /table -->

tests/docs/test_documentation.py compares the file with what this writes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference_lab.core.faults import listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FILE: Final = Path(__file__).parent / "faults.md"
_ELEVEN: Final = 11
_BLOCK: Final = re.compile(
    r"(?P<open><!-- table (?P<name>\w+) -->\n).*?(?P<close><!-- /table -->)", re.DOTALL
)


def _modes() -> Iterator[tuple[str, ...]]:
    yield "mode", "over the healthy stream", "seen in"
    for row in listing.modes()[_ELEVEN:]:
        yield f"`{row['name']}`", f"`{row['directive']}`", row["seen_in"]


def _axes() -> Iterator[tuple[str, ...]]:
    yield "key", "values", "default", "what it does"
    for row in listing.axes():
        default = row["default"]
        yield (
            f"`{row['key']}`",
            row["values"],
            default if " " in default or not default else f"`{default}`",
            row["help"],
        )


def _errors() -> Iterator[tuple[str, ...]]:
    yield "`error=`", "bytes", "`[DONE]`", "seen in"
    for row in listing.errors():
        text = row["text"].replace("\n", "⏎")
        yield f"`{row['name']}`", f"`{text}`", "yes" if row["done"] == "true" else "no", row["seen_in"]


def _constraints() -> Iterator[tuple[str, ...]]:
    yield "keys", "need"
    for row in listing.constraints():
        named = row["keys"].startswith("every ")
        keys = row["keys"] if named else ", ".join(f"`{key}`" for key in row["keys"].split(", "))
        yield keys, row["reason"]


_TABLES: Final[Mapping[str, Callable[[], Iterator[tuple[str, ...]]]]] = {
    "modes": _modes,
    "axes": _axes,
    "errors": _errors,
    "constraints": _constraints,
}


def written(text: str) -> str:
    """A document's text with every table written anew."""

    def block(found: re.Match[str]) -> str:
        head, *rows = _TABLES[found["name"]]()
        lines = [head, ("---",) * len(head), *rows]
        cells = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
        return found["open"] + "".join(f"| {line} |\n" for line in cells) + found["close"]

    return _BLOCK.sub(block, text)


def main() -> None:
    """Rewrite the file."""
    FILE.write_text(written(FILE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{FILE.name}\n")


if __name__ == "__main__":
    main()
