"""Several processes on the same ports: the parent binds a socket for each worker and port, and keeps them all.

Linux spreads new connections over the sockets that share a port (SO_REUSEPORT) by a hash of their addresses. A socket's
queue of connections lives as long as the socket, so a connection that arrives while its worker is dead is answered by
the one that takes its place: only the dead worker's own streams are lost.

A worker says `ready`, `alive` every second and later `drained` on its descriptor 3;
SIGTERM tells it to refuse what is new and to finish what
is healthy, the end of its standard input to end. That input also ends when the parent does, however it does.

What the service counts as a whole stands in a folder that only its user can read, and goes with the parent.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready, ReactorNotRunning
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from inference_lab.console import UserError
from inference_lab.service.process import (
    METRICS_VARIABLE,
    announce,
    exit_with,
    freeze_gc,
    notify_stopping,
    on_further_signal,
    take_signals,
)
from inference_lab.service.settings import BACKLOG
from inference_lab.service.shared import Shared, make_shared
from inference_lab.storage.database import DatabaseError, end_lost
from inference_lab.storage.journal_file import Claim, ClaimError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twisted.python.failure import Failure

    from inference_lab.config.models import Loaded
    from inference_lab.service.settings import Settings

CONTROL_FD: Final = 3
SOCKETS_FD: Final = 4
"""The first of a worker's listening sockets; those of the other ports, and the journal's lock, come after it."""
DEATHS: Final = 3
"""So many deaths of one worker within `DEATHS_S` end the service: another start would change nothing."""
DEATHS_S: Final = 10.0
PULSE_S: Final = 1.0
"""How often a worker says that it is alive."""
_SILENT_S: Final = 5.0
"""One that has not for so long is told of: it is stopped, or in a turn without an end."""
_RELEASE_AFTER_S: Final = 1.0
_KILL_AFTER_S: Final = 5.0

_log: Final = Logger()


class Supervisor(Service):
    """Starts workers, starts another for one that dies, and ends them all together."""

    name = "inference-lab"

    def __init__(
        self,
        reactor: Any,  # noqa: ANN401 - Twisted does not type its reactor
        settings: Settings,
        options: Mapping[str, object],
        loaded: Loaded,
        claim: Claim | None = None,
        *,
        logs_to_stdout: bool,
    ) -> None:
        assert settings.addresses  # noqa: S101 - the settings refuse workers without one
        self._reactor = reactor
        self._settings = settings
        self._options = json.dumps(dict(options))
        self._loaded = loaded
        self._claim = claim  # on the journal's file, for all workers
        self._shares_output = logs_to_stdout
        self._sockets = _bind_all(settings.addresses, settings.workers)
        self._workers: dict[int, _Worker] = {}
        self._deaths: dict[int, list[float]] = {index: [] for index in range(settings.workers)}
        self._announced = False
        self._shared: Shared | None = None  # once we run, as whoever we then are
        self._ended: Deferred[None] | None = None  # once we are stopping

    def startService(self) -> None:  # noqa: N802 - Twisted's name
        """Start the workers once the reactor runs, which is what takes note of their ends."""
        super().startService()
        for note in self._loaded.notes:
            _log.info("{note}", note=note)
        self._reactor.callWhenRunning(take_signals, self._reactor)
        self._reactor.callWhenRunning(self._start_all)

    def stopService(self) -> Deferred[None]:  # noqa: N802 - Twisted's name
        """Tell every worker, end them together once the last has drained or its time is over, wait for their ends."""
        super().stopService()
        notify_stopping(round(self._settings.drain_s * 1e6))
        self._ended = Deferred()
        on_further_signal(self._reactor, self._release)
        for worker in self._workers.values():
            worker.signal("TERM")
        drain_s = self._settings.drain_s
        # By the first of these all have drained but one that hangs, for which the others are not to wait.
        steps = [
            self._reactor.callLater(drain_s + _RELEASE_AFTER_S, self._release),
            self._reactor.callLater(drain_s + _KILL_AFTER_S, self._kill),
        ]
        self._look()

        def leave(_: None) -> None:
            for step in steps:
                if step.active():
                    step.cancel()

        return self._ended.addCallback(leave)

    # -- what workers report

    def on_ready(self) -> None:
        """Say so to the world once all of them have said so."""
        if self._announced or not all(worker.is_ready for worker in self._workers.values()):
            return
        self._announced = True
        urls = [_url_of(shared[0]) for shared in self._sockets]
        announce(urls, self._loaded, f" ({len(self._workers)} workers)")

    def on_drained(self, worker: _Worker) -> None:
        """One has nothing left to finish."""
        if self._ended is None:
            worker.release()  # it has been told to end by somebody else
        else:
            self._look()

    def on_end(self, worker: _Worker, how: str) -> None:
        """One has ended: start another in its place, unless we are stopping or it cannot live."""
        del self._workers[worker.index]
        self._clear_after(worker)
        if self._ended is not None:
            self._look()
            return
        deaths = self._deaths[worker.index]
        deaths.append(time.monotonic())
        if len(deaths) >= DEATHS and deaths[-1] - deaths[-DEATHS] <= DEATHS_S:
            _log.critical(
                "worker {index} ended {times} times within {seconds:g} s, at last with {how}: giving up",
                index=worker.index,
                times=DEATHS,
                seconds=DEATHS_S,
                how=how,
            )
            exit_with(1)
            with suppress(ReactorNotRunning):  # another worker, or a signal, has stopped it in this very turn
                self._reactor.stop()
            return
        del deaths[: -DEATHS + 1]
        _log.warn("worker {index} ended with {how}: starting another", index=worker.index, how=how)
        self._start(worker.index)

    # -- within

    def _start_all(self) -> None:
        freeze_gc()
        try:
            self._shared = make_shared(self._settings)
            if self._settings.records and self._claim is None:
                self._claim = Claim(self._shared.journal)
        except (OSError, ClaimError) as error:
            _log.critical("no folder for what the workers share: {error}", error=error)
            exit_with(1)
            self._reactor.stop()
            return
        for index in range(self._settings.workers):
            self._start(index)
        self._listen(time.monotonic())

    def _listen(self, before: float) -> None:
        """Say which workers do not answer, and which do again."""
        now = time.monotonic()
        if (
            now - before < 2 * PULSE_S
        ):  # otherwise it is we who were stopped, and have yet to read what they said
            for worker in self._workers.values():
                worker.judge(now)
        self._reactor.callLater(PULSE_S, self._listen, now)

    def _start(self, index: int) -> None:
        assert self._shared is not None  # noqa: S101 - made before the first start
        worker = _Worker(self, index)
        self._workers[index] = worker
        # The worker's modules are ours, whatever directory we were started from. systemd is our affair alone.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONSAFEPATH": "1",  # `-m` would put that directory before it (heeded since Python 3.11)
        }
        environment.pop("NOTIFY_SOCKET", None)
        environment[METRICS_VARIABLE] = str(self._shared.metrics)
        out, err = (1, 2) if self._shares_output else ("r", "r")
        self._reactor.spawnProcess(
            worker,
            sys.executable,
            [sys.executable, "-m", "inference_lab.service.worker", self._options, str(self._shared.folder)],
            env=environment,
            childFDs={
                0: "w",
                1: out,
                2: err,
                CONTROL_FD: "r",
                **{SOCKETS_FD + at: shared[index].fileno() for at, shared in enumerate(self._sockets)},
                **({} if self._claim is None else {SOCKETS_FD + len(self._sockets): self._claim.descriptor}),
            },
        )

    def _clear_after(self, worker: _Worker) -> None:
        """What a worker that was killed has left: its gauges, and rows that it cannot end any more."""
        shared, pid = self._shared, worker.pid
        if shared is None or pid is None:
            return
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - only when one has ended

        mark_process_dead(pid, str(shared.metrics))
        is_needed = self._ended is None or self._settings.journal is not None  # else it goes with the service
        if self._settings.records and is_needed:
            try:
                end_lost(self._settings.journal or shared.journal, pid)
            except DatabaseError as error:
                _log.error(
                    "journal {error}: the rows of worker {index} stay open", error=error, index=worker.index
                )

    def _look(self) -> None:
        if self._ended is None or self._ended.called:
            return
        if not self._workers:
            _close_all(self._sockets)
            if self._shared is not None:
                self._shared.remove()
            self._ended.callback(None)
        elif all(worker.is_drained for worker in self._workers.values()):
            self._release()

    def _release(self) -> None:
        for worker in self._workers.values():
            worker.release()

    def _kill(self) -> None:
        for worker in self._workers.values():
            _log.warn("worker {index} does not end: killed", index=worker.index)
            worker.signal("KILL")


class _Worker(ProcessProtocol):
    """One worker process."""

    def __init__(self, supervisor: Supervisor, index: int) -> None:
        self.index = index
        self.pid: int | None = None
        self.is_ready = False
        self.is_drained = False
        self._heard_at = 0.0
        self._is_silent = False
        self._supervisor = supervisor
        self._rests: dict[int, bytes] = {}
        self._on_line: dict[int, Callable[[str], None]] = {
            1: self._relay,
            2: self._relay,
            CONTROL_FD: self._told,
        }

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        """It runs."""
        assert self.transport is not None  # noqa: S101 - this is what the call says
        self.pid = self.transport.pid

    def childDataReceived(self, childFD: int, data: bytes) -> None:  # noqa: N802, N803 - Twisted's names
        """Lines of its log, if they come through us, and reports."""
        *lines, rest = (self._rests.get(childFD, b"") + data).split(b"\n")
        self._rests[childFD] = rest
        for line in lines:
            self._on_line[childFD](line.decode(errors="backslashreplace"))

    def processEnded(self, reason: Failure) -> None:  # noqa: N802 - Twisted's name
        """It is gone, and all it has said has been read."""
        status = reason.value
        signal = getattr(status, "signal", None)
        how = f"signal {signal}" if signal else f"status {getattr(status, 'exitCode', None)}"
        self._supervisor.on_end(self, how)

    def signal(self, name: str) -> None:
        """Send it a signal, if it is still there."""
        assert self.transport is not None  # noqa: S101 - it has been spawned
        with suppress(ProcessExitedAlready):  # its end is about to be reported
            self.transport.signalProcess(name)

    def release(self) -> None:
        """Let it end."""
        assert self.transport is not None  # noqa: S101 - it has been spawned
        self.transport.closeStdin()

    def judge(self, now: float) -> None:
        """Say once that it does not answer."""
        if self.is_ready and not self._is_silent and now - self._heard_at > _SILENT_S:
            self._is_silent = True
            _log.warn(
                "worker {index} (process {pid}) has not answered for {seconds:g} s: its connections wait",
                index=self.index,
                pid=self.pid,
                seconds=_SILENT_S,
            )

    def _told(self, line: str) -> None:
        self._heard_at = time.monotonic()
        if self._is_silent:
            self._is_silent = False
            _log.info("worker {index} (process {pid}) answers again", index=self.index, pid=self.pid)
        if line == "ready":
            self.is_ready = True
            self._supervisor.on_ready()
        elif line == "drained":
            self.is_drained = True
            self._supervisor.on_drained(self)

    def _relay(self, line: str) -> None:
        # Without its time, which our own line has.
        _log.info("worker {index}: {line}", index=self.index, line=line.partition(" ")[2] or line)


def _url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _close_all(sockets: Iterable[Iterable[socket.socket]]) -> None:
    for shared in sockets:
        for bound in shared:
            bound.close()


def _bind_all(addresses: Iterable[tuple[str, int]], count: int) -> list[list[socket.socket]]:
    """For each address `count` listening sockets.

    Raises:
        UserError: some address cannot be had.
    """
    sockets: list[list[socket.socket]] = []
    errors: list[str] = []
    for host, port in addresses:
        try:
            sockets.append(_bind(host, port, count))
        except UserError as error:  # noqa: PERF203 (a handful of ports, once)
            errors.append(str(error))
    if errors:
        _close_all(sockets)
        raise UserError("; ".join(errors))
    return sockets


def _bind(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one address; port 0 lets the kernel pick one.

    Raises:
        UserError: the address cannot be had, or is somebody else's already.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets: list[socket.socket] = []
    try:
        if port:
            # With SO_REUSEPORT a second server of the same user would get a share of the connections and no error.
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        for _ in range(count):
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((host, port))
            port = bound.getsockname()[1]
        for bound in sockets:
            bound.listen(BACKLOG)
            bound.setblocking(False)  # the flag belongs to the socket, so to the worker's descriptor too
    except OSError as error:
        _close_all([sockets])
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return sockets
