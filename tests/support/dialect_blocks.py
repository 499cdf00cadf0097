"""The dialects as docs/dialects.md has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from inference_lab.core.apis.dialects import DIALECTS
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.rawclient import Received


DOCUMENT = ROOT / "docs" / "dialects.md"


BLOCK = re.compile(r"<!-- frames (\w+) (\w+) -->\n```\w*\n(.*?)```\n<!-- /frames -->", re.DOTALL)


LITERAL = {(name, endpoint): text for name, endpoint, text in BLOCK.findall(DOCUMENT.read_text())}


PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


ASKED = {
    "chat": {"messages": [{"role": "user", "content": "p266"}]},
    "completions": {"prompt": "p266"},
}


EACH = [(name, endpoint) for name in DIALECTS for endpoint in PATHS]


def literal(got: Received, model: str) -> str:
    """A response as the document writes it."""
    shown = ("content-type", "cache-control", "x-accel-buffering")
    head = "".join(f"{name}: {got.headers[name]}\n" for name in shown if name in got.headers)
    body = re.sub('-[0-9a-f]{24}"', '-ID"', got.body.decode())
    return f"{head}\n{body}".replace(f'"{model}"', '"MODEL"').replace(":1800000000", ":1700000000")
