"""The gateway of the examples, and what mends it."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

GATEWAY = ROOT / "examples" / "gateway"


MEND = re.compile(r"^```diff\n-(.*\n)\+(.*\n)```$", re.MULTILINE)


def mended(text: str) -> str:
    """The text of the example's gateway with what its README has against the bug."""
    ((bug, mend),) = MEND.findall((GATEWAY / "README.md").read_text(encoding="utf-8"))
    assert text.count(bug) == 1
    return text.replace(bug, mend)
