"""A lab in this process, on a reactor that somebody else runs: for pytest-twisted and trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python import usage

from inference_lab.console import UserError
from inference_lab.service.serving import (
    Serving,
    close_ports,
    load_models,
    open_ports,
    prepare_journal,
    url_of,
)
from inference_lab.service.settings import settings_from
from inference_lab.tap import Options
from inference_lab.testing.child import ServerError, serve_options
from inference_lab.testing.lab import CurrentTest, Handle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inference_lab.service.settings import Settings
    from inference_lab.testing.lab import Row


class ReactorLab(Handle):
    """A server on a free port; `options` are those of `inference-lab serve`.

    Nothing in a test may block while it waits for an answer: the server would wait too.

    Raises:
        ServerError: an option or a config that cannot be honoured.
    """

    def __init__(self, reactor: Any, *options: str, current: CurrentTest | None = None) -> None:  # noqa: ANN401
        try:
            settings = _settings(options)
            self._serving = Serving(reactor, settings, load_models(settings))
            self._ports = open_ports(reactor, settings, self._serving)
        except (UserError, usage.UsageError) as error:
            raise ServerError(str(error)) from None
        self._serving.start()
        self._reactor = reactor
        incidents = self._serving.loaded.incidents
        url, *others = map(url_of, self._ports)
        super().__init__(url, current or CurrentTest(), lambda: incidents, others)

    def journal(
        self, *, test: str | None = None, count: int = 1, wait_s: float = 5, **filters: object
    ) -> Deferred[list[Row]]:
        """As `InferenceLab.journal`, once it is known.

        Raises:
            ValueError: nothing to ask about. A filter that the server does not know comes as the Deferred's failure.
        """
        path = self._query(test, count, wait_s, filters)
        # In a thread, so that one way of asking does for every lab.
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._rows, path, wait_s)

    def close(self) -> Deferred[None]:
        """Close the ports, end every stream, reset every connection; fires when nothing is left on the reactor."""
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        self._serving.drain(0)
        await self._serving.close()
        await close_ports(self._ports)
        await self._serving.site.reset_all()


def _settings(options: Sequence[str]) -> Settings:
    """The options judged, those of a process of one's own refused.

    Raises:
        UsageError: an option that there is not.
        UserError: one that cannot be honoured here.
    """
    parsed = Options()
    parsed.parseOptions(serve_options(options))
    settings = settings_from(parsed)
    if settings.workers > 1 or settings.log_format != "text":
        raise UserError("--workers and --log-format are for a server in a process of its own: leave them out")
    if settings.journal is not None:
        prepare_journal(settings.journal)
    return settings
