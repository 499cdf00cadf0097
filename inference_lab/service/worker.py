"""A worker process: serves on sockets that its parent has bound, until the parent says or dies.

Started by `supervisor` alone, with the options as JSON and the folder of what workers share; see there for what the two
tell each other.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service

from inference_lab.console import UserError
from inference_lab.service.process import ParentWatch, freeze_gc, on_further_signal, take_signals
from inference_lab.service.serving import close_ports
from inference_lab.service.settings import settings_from
from inference_lab.service.shared import Shared
from inference_lab.service.supervisor import CONTROL_FD, PULSE_S, SOCKETS_FD
from inference_lab.storage.journal_file import Claim
from inference_lab.wire.turns import bound_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IListeningPort

    from inference_lab.service.serving import Serving


class WorkerService(Service):
    """Owns the adopted ports and the live streams of one worker; `shared` is what all workers have in common."""

    def __init__(
        self,
        reactor: Any,  # noqa: ANN401 - Twisted does not type its reactor
        ports: Sequence[IListeningPort],
        serving: Serving,
        drain_s: float,
        shared: Shared,
    ) -> None:
        self._reactor = reactor
        self._shared = shared
        self._ports = ports
        self._serving = serving
        self._drain_us = round(drain_s * 1e6)
        self._leash = ParentWatch(reactor)

    def startService(self) -> None:  # noqa: N802 - Twisted's name
        """Report once the reactor runs."""
        super().startService()
        self._serving.start()
        self._leash.ended.addCallback(lambda _: self._orphaned() if self.running else None)
        self._reactor.callWhenRunning(take_signals, self._reactor)
        self._reactor.callWhenRunning(bound_turns, self._reactor)
        self._reactor.callWhenRunning(self._ready)

    def stopService(self) -> Deferred[None] | None:  # noqa: N802 - Twisted's name
        """Drain, report, and go on refusing until the parent lets go: its ports stay open for the other workers."""
        super().stopService()
        if self._leash.ended.called:
            return self._close(None)
        shutdown = self._serving.drain(self._drain_us)
        # systemd and terminals signal every process of the service, and our parent signals us too: how long we wait is
        # for the parent alone to say, by letting go.
        on_further_signal(self._reactor, lambda: None)
        shutdown.done.addCallback(lambda _: _report(b"drained\n"))
        return self._leash.ended.addCallback(self._close)

    def _orphaned(self) -> None:
        """The parent has not asked us to end, so it was killed and cannot tidy up."""
        self._shared.remove()
        # Not `stop`, which a SIGTERM that is on its way would call once more.
        os.kill(os.getpid(), signal.SIGTERM)

    def _close(self, _: None) -> Deferred[None]:
        return self._serving.close().addCallback(lambda _: close_ports(self._ports))

    def _ready(self) -> None:
        freeze_gc()
        os.set_blocking(CONTROL_FD, False)  # a parent that does not read keeps nobody from serving
        _report(b"ready\n")
        self._pulse()

    def _pulse(self) -> None:
        _report(b"alive\n")
        self._reactor.callLater(PULSE_S, self._pulse)


def _report(line: bytes) -> None:
    try:
        os.write(CONTROL_FD, line)
    except OSError:
        return  # the parent is gone, and the leash says so


def main() -> None:
    """Serve."""
    gc.disable()  # until `freeze_gc`: what the start makes stays
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it
    from twisted.logger import globalLogBeginner  # noqa: PLC0415

    from inference_lab.service.logs import observer_of  # noqa: PLC0415
    from inference_lab.service.serving import Serving, load_models  # noqa: PLC0415
    from inference_lab.wire.transport import install_transport  # noqa: PLC0415

    shared = Shared(Path(sys.argv[2]))
    try:
        settings = settings_from(json.loads(sys.argv[1]))
        claim = None
        if settings.records:
            lock = SOCKETS_FD + len(settings.addresses)
            claim = Claim(settings.journal or shared.journal, lock)
        serving = Serving(reactor, settings, load_models(settings), shared, claim)
    except UserError as error:
        sys.stderr.write(f"inference-lab: {error}\n")
        sys.exit(1)
    ports: list[IListeningPort] = []
    for descriptor in range(SOCKETS_FD, SOCKETS_FD + len(settings.addresses)):
        with socket.socket(fileno=descriptor) as bound:
            port = reactor.adoptStreamPort(descriptor, bound.family, serving.site)  # type: ignore[attr-defined] # IReactorSocket
        install_transport(port)
        ports.append(port)
    observer = observer_of(settings.log_format, sys.stdout)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    service = WorkerService(reactor, ports, serving, settings.drain_s, shared)
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()


if __name__ == "__main__":
    main()
