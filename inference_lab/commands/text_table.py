"""Columns of text, as the offline commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` under `headings`; the first column to the left, the others to the right, each as wide as it must be."""
    lines = [list(headings), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
