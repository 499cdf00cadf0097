"""How pytest is run inside a test."""

from __future__ import annotations

QUIET = ("-p", "no:cacheprovider", "-W", "error", "--color=no")


BARE = ("-p", "no:twisted", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Without what else our own environment has, which takes its time."""
