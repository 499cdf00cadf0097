"""The leash of a child process: its standard input ends when the parent lets go of it, or is gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.python.failure import Failure


@implementer(IReadDescriptor)
class Leash:
    """The end of standard input: `ended` fires when the parent closes it or is gone."""

    def __init__(self, reactor: Any) -> None:  # noqa: ANN401 - Twisted does not type its reactor
        self.ended: Deferred[None] = Deferred()
        self._reactor = reactor
        os.set_blocking(0, False)
        reactor.addReader(self)

    def fileno(self) -> int:
        """Standard input."""
        return 0

    def doRead(self) -> None:  # noqa: N802 - Twisted's name
        """Nothing is ever written there, so this is its end."""
        if not os.read(0, 4096):
            self._reactor.removeReader(self)
            self._end()

    def logPrefix(self) -> str:  # noqa: N802 - Twisted's name
        """For Twisted's log."""
        return "leash"

    def connectionLost(self, reason: Failure) -> None:  # noqa: N802 - Twisted's name
        """How the reactor puts it when a pipe's other end is closed and nothing is left to read."""
        del reason
        self._end()

    def _end(self) -> None:
        if not self.ended.called:
            self.ended.callback(None)
