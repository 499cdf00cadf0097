"""How a response ended, for the log and the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from twisted.python.failure import Failure


class Outcome(NamedTuple):
    """How a response ended.

    `text` says it for the log, `ending` in a word, None for the one that the script asked for. `lost` is why the
    connection ended, where it was not the server that ended it.
    """

    text: str
    ending: str | None = None
    lost: Failure | None = None
