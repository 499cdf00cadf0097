"""What the process itself needs: descriptors, a frozen garbage collector, signals, systemd, its parent, its status."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from zope.interface import implementer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twisted.python.failure import Failure

    from inference_lab.config.models import Loaded

METRICS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The directory of several processes' metrics, where prometheus-client is told of one (prometheus_client/values.py)."""

_YOUNG_OBJECTS: Final = 5_000
_M_MMAP_THRESHOLD: Final = -3  # malloc.h of glibc
_MAPPED_BYTES: Final = 131_072
"""What it is at the start of a process."""
_statuses: Final[list[int]] = []

_log: Final = Logger()

_PLAIN: Final = ("tcp:", "tcp6:", "unix:", "systemd:")
"""Endpoints without TLS; what another one needs is for its author to know."""


def raise_file_limit() -> None:
    """Allow as many descriptors as the hard limit does: a stalled stream holds one until its client leaves.

    The soft limit is often 1,024, for the sake of programs that use select(2), which this one does not.
    """
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # macOS calls the hard limit infinite; a sandbox may forbid the call.
        _log.warn("the soft limit of open files stays as it is: {error}", error=error)


def leave_others_metrics() -> None:
    """Do not write our metrics into a directory that whoever started us has for its own, and that may be gone."""
    for name in (METRICS_VARIABLE, METRICS_VARIABLE.lower()):
        os.environ.pop(name, None)


def freeze_gc() -> None:
    """Once everything is loaded: keep the collector's hands off it, and let it look for garbage less often.

    Modules and models are some hundred thousand objects that live as long as the process. A full collection that walks
    them stops every stream for 100 to 250 ms (measured at 500 and 1,000 streams), and comes after a few thousand
    requests. What is frozen is not walked again, so full collections are cheap and can be frequent: a vanished client
    leaves a few kilobytes in cycles, and thousands of them would wait for a rare one.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 2, 2)
    gc.enable()


def give_back_memory() -> None:
    """Have the C library give large memory back to the system when it is let go.

    glibc raises the size from which memory is mapped by itself to whatever was freed last (mallopt(3); up to 32 MiB),
    so that after a few large bodies the next come from its heap and stay in it. Setting the size ends that.
    """
    with suppress(OSError, AttributeError):  # another C library has no mallopt
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def take_signals(reactor: Any) -> None:  # noqa: ANN401 - Twisted does not type its reactor's signal methods
    """Let SIGTERM, SIGINT and SIGHUP stop the reactor from its loop, not from inside the signal handler.

    SIGHUP, which a terminal sends that goes, would end the process without a word and leave the journal's rows open.

    Twisted's own handlers log where they stand (ReactorBase.sigTerm), and a signal that lands while a log line is being
    written then waits for the log's lock for ever. A second signal before the end has begun is the same wish: `timeout`
    and terminals signal a process and its group.
    """
    taken: list[int] = []

    def once(stop: Callable[[int], None], number: int) -> None:
        taken.append(number)
        if len(taken) == 1:
            stop(number)

    def hang_up(number: int) -> None:
        _log.info("Received SIGHUP, taken as SIGTERM.")
        reactor.sigTerm(number)

    for number, handler, stop in (
        (signal.SIGTERM, reactor.sigTerm, reactor.sigTerm),
        (signal.SIGINT, reactor.sigInt, reactor.sigInt),
        (signal.SIGHUP, signal.SIG_DFL, hang_up),
    ):
        if signal.getsignal(number) == handler:  # nobody else's, and not ignored
            signal.signal(number, partial(_from_loop, reactor, partial(once, stop)))


def on_further_signal(reactor: Any, hurry: Callable[[], None]) -> None:  # noqa: ANN401
    """From now on, call `hurry` for each of these signals, which the stopping reactor would report as an error."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if isinstance(signal.getsignal(number), partial):  # what `take_signals` has put there
            signal.signal(number, partial(_from_loop, reactor, lambda _: hurry()))


def _from_loop(reactor: Any, stop: Callable[[int], None], number: int, _: object) -> None:  # noqa: ANN401
    reactor.callFromThread(stop, number)


def announce(urls: Iterable[str], loaded: Loaded, more: str = "") -> None:
    """Log the ready line, and tell systemd."""
    names = ", ".join(model.name for model in loaded.models)
    _log.info("ready: {urls} serving {names}{more}", urls=" and ".join(urls), names=names, more=more)
    _notify_systemd("READY=1")


def notify_stopping(drain_us: int) -> None:
    """Tell systemd that the end has begun, and not to lose patience before it has come."""
    more = f"\nEXTEND_TIMEOUT_USEC={drain_us + 5_000_000}" if drain_us else ""
    _notify_systemd("STOPPING=1" + more)


def _notify_systemd(state: str) -> None:
    """sd_notify(3): one datagram to the socket systemd names, if it does."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            try:
                notifier.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
            except OSError as error:
                _log.warn("cannot notify systemd at {path}: {error}", path=path, error=error)


def exit_with(status: int) -> None:
    """Let the process end with `status` once the reactor has stopped and whoever runs us has cleaned up.

    Neither twistd nor `reactor.run` has a status to give, and a daemon's pidfile is to go first: so it is the last
    thing the interpreter does. The first to give a status has given it.
    """
    if not _statuses:
        atexit.register(_leave)
    _statuses.append(status)


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_statuses[0])


@implementer(IReadDescriptor)
class ParentWatch:
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


def skip_tls_import(endpoints: Sequence[str]) -> None:
    """Keep pyOpenSSL and cryptography from being imported for endpoints that need neither.

    They are a tenth of the start and more. `endpoints` are Twisted endpoint strings, none for plain TCP ports. To be
    called before Twisted's reactor is imported, which takes what is there (twisted/internet/_newtls.py, endpoints.py).
    """
    if all(endpoint.startswith(_PLAIN) for endpoint in endpoints):
        sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type] # what makes an import of it fail
