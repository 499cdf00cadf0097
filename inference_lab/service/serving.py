"""The service: models, engines, site and ports put together; ready line, systemd notification, shutdown."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from twisted.application.service import IService, Service
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import DeferredList, maybeDeferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.config.models import Loaded, ServedModel, load
from inference_lab.config.toml_reading import fit
from inference_lab.console import UserError
from inference_lab.core.engine.cluster import Cluster
from inference_lab.core.journal.row import Unplanned
from inference_lab.service.process import (
    announce,
    freeze_gc,
    give_back_memory,
    leave_others_metrics,
    notify_stopping,
    on_further_signal,
    raise_file_limit,
    take_signals,
)
from inference_lab.service.settings import Settings, settings_from
from inference_lab.storage.attempts import Attempts
from inference_lab.storage.database import MEMORY, DatabaseError, prepare
from inference_lab.storage.journal_file import Claim, ClaimError
from inference_lab.storage.store import Store
from inference_lab.web.answers import Answers
from inference_lab.web.app import Lab, route_of
from inference_lab.web.journal_pages import JournalPages
from inference_lab.web.metrics_page import MetricsPage
from inference_lab.web.served import Served, ServedModels
from inference_lab.web.turn import Turns
from inference_lab.wire.cluster_engine import ClusterEngine
from inference_lab.wire.counters import ModelCounters, RequestCounters
from inference_lab.wire.engine_driver import ConstantLatency, Engine
from inference_lab.wire.h1.channel import LabSite
from inference_lab.wire.h1.endings import Endings
from inference_lab.wire.origins import Origins
from inference_lab.wire.pacer import Pacer
from inference_lab.wire.recording import Recorder
from inference_lab.wire.streams import GracefulShutdown, Streams
from inference_lab.wire.transport import has_tls, install_transport
from inference_lab.wire.turns import Thread, bound_turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IListeningPort

    from inference_lab.service.shared import Shared

_log: Final = Logger()


class LabService(Service):
    """Owns the open ports and the live streams.

    `drain_s` is how long a shutdown waits for healthy answers; meanwhile the ports stay open, and refuse.
    """

    name = "inference-lab"

    def __init__(
        self,
        reactor: Any,  # noqa: ANN401 - Twisted does not type its reactor
        ports: Sequence[IListeningPort],
        serving: Serving,
        drain_s: float,
    ) -> None:
        self._reactor = reactor
        self._ports = ports
        self._serving = serving
        self._drain_us = round(drain_s * 1e6)

    def startService(self) -> None:  # noqa: N802 - Twisted's name
        """Say what is served where, once the reactor runs."""
        super().startService()
        self._serving.start()
        for note in self._serving.loaded.notes:
            _log.info("{note}", note=note)
        self._reactor.callWhenRunning(take_signals, self._reactor)
        self._reactor.callWhenRunning(bound_turns, self._reactor)
        self._reactor.callWhenRunning(self._ready)

    def stopService(self) -> Deferred[None] | None:  # noqa: N802 - Twisted's name
        """Let healthy answers finish if there is time for it, report what is still open, close the ports."""
        super().stopService()
        notify_stopping(self._drain_us)
        shutdown = self._serving.drain(self._drain_us)
        on_further_signal(self._reactor, shutdown.hurry)
        return shutdown.done.addCallback(self._close)

    def _close(self, _: None) -> Deferred[None]:
        return self._serving.close().addCallback(lambda _: close_ports(self._ports))

    def _ready(self) -> None:
        freeze_gc()
        announce(map(url_of, self._ports), self._serving.loaded)


class Serving:
    """Everything after the ports: the site with its models and engines, and the streams it plays.

    `shared` is what several processes have in common, `claim` the lock on the journal's file.
    """

    def __init__(
        self,
        reactor: Any,  # noqa: ANN401 - Twisted does not type its reactor
        settings: Settings,
        loaded: Loaded,
        shared: Shared | None = None,
        claim: Claim | None = None,
    ) -> None:
        self.loaded = loaded
        attempts = Attempts(None if shared is None else shared.folder)
        self._pacer = pacer = Pacer(reactor, time.monotonic)
        self.store: Store | None = None
        self._recorder: Recorder | None = None
        self._pages: JournalPages | None = None
        if settings.records:
            self.store = Store(
                settings.journal or (MEMORY if shared is None else shared.journal),
                reactor.callFromThread,
                time.time,
                most_rows=settings.journal_rows,
                most_age_s=settings.journal_age_s,
                claim=claim,
            )
            self._recorder = Recorder(pacer, self.store, time.time)
            self._pages = JournalPages(self.store, self._recorder, pacer)
        elif settings.log_format == "json":
            self._recorder = Recorder(pacer, None, time.time)
        endings = Endings(
            pacer, flush_grace_us=settings.flush_grace_ms * 1000, linger_us=round(settings.linger_s * 1e6)
        )
        self.streams = Streams(pacer, reader_timeout_us=round(settings.reader_timeout_s * 1e6))
        served = [
            Served(model, _engine(model, pacer, settings.speed), ModelCounters(model.name))
            for model in loaded.models
        ]
        models = ServedModels(served)
        counters = RequestCounters(route_of)
        self._metrics = MetricsPage(
            pacer, counters, self.streams, served, self.store, None if shared is None else str(shared.metrics)
        )
        answers = Answers(
            self.streams, attempts, wall_seconds=time.time, random_digits=lambda: secrets.token_hex(12)
        )
        turns = Turns(
            models,
            self.streams,
            directives=settings.directives,
            max_streams=settings.max_streams,
            incidents=loaded.incidents,
        )
        self._thread = Thread(reactor)
        lab = Lab(turns, answers, self._metrics, self._pages, self._thread)
        self.site = LabSite(
            lab.resource(),
            endings=endings,
            max_body_bytes=settings.max_body_bytes,
            max_bodies_bytes=settings.max_bodies_bytes,
            origins=Origins(settings.allow_origins, settings.host_names),
            request_timeout_us=round(settings.request_timeout_s * 1e6),
            recorder=self._recorder,
            counters=counters,
        )

    def start(self) -> None:
        """Begin what needs a thread, now that the process is the one that will serve."""
        give_back_memory()
        if self.store is not None:
            self.store.start()
        self._metrics.start()

    def drain(self, drain_us: int) -> GracefulShutdown:
        """Refuse every new request, and wait for the healthy answers that are under way."""
        until_us = self._pacer.now_us() + drain_us
        self.site.closes_at_us = until_us
        if self._pages is not None:
            self._pages.finish()
        return GracefulShutdown(self._pacer, self.streams, until_us=until_us)

    def close(self) -> Deferred[None]:
        """Report what is still open as ended by the shutdown, and have the journal written."""
        self.streams.end_all(Unplanned.SHUTDOWN)
        self._metrics.stop()
        self._thread.stop()
        if self._recorder is not None:
            self._recorder.end_all(Unplanned.SHUTDOWN)
        store, pages = self.store, self._pages
        if store is None or pages is None:
            return succeed(None)
        return pages.end().addCallback(lambda _: store.close())


def open_service(options: Mapping[str, object], *, logs_to_stdout: bool) -> IService:
    """Make the service with its ports open; `logs_to_stdout` says that the log is plain lines on stdout.

    Raises:
        UserError: a bad option or config, or a port that cannot be opened.
    """
    from twisted.internet import reactor  # noqa: PLC0415 - twistd chooses the reactor before it calls us

    settings = settings_from(options)
    loaded = load_models(settings)
    raise_file_limit()
    leave_others_metrics()
    claim = None if settings.journal is None else prepare_journal(settings.journal)
    if settings.log_format == "json" and not logs_to_stdout:
        raise UserError(
            "--log-format json: twistd writes its own log; give twistd --logger inference_lab.service.logs.json_log"
        )
    if settings.workers > 1:
        from inference_lab.service.supervisor import Supervisor  # noqa: PLC0415 - only with several processes

        return Supervisor(
            reactor,
            settings,
            options,
            loaded,
            claim,
            logs_to_stdout=logs_to_stdout,
        )
    serving = Serving(reactor, settings, loaded, claim=claim)
    ports = open_ports(reactor, settings, serving)
    return LabService(reactor, ports, serving, settings.drain_s)


def prepare_journal(journal: str) -> Claim:
    """Make sure that the file can be written, and that no other server does.

    Raises:
        UserError: it cannot, or one does.
    """
    try:
        claim = Claim(journal)
        prepare(journal)
    except (ClaimError, DatabaseError) as error:
        raise UserError(f"--journal {error}") from None
    return claim


def load_models(settings: Settings) -> Loaded:
    """The models to serve.

    Raises:
        UserError: a config that cannot be honoured.
    """
    return load(settings.config, settings.hardware, settings.models)


def _engine(model: ServedModel, pacer: Pacer, speed: float) -> Engine:
    """The engine of a model: its constant latencies if it has any, else the simulated cluster."""
    latency = model.latency
    if latency is None:
        assert model.deployment is not None  # noqa: S101 - only [latency] files go without
        return ClusterEngine(pacer, Cluster(model.deployment), speed=speed)
    return ConstantLatency(
        pacer, ttft_us=round(latency.ttft_ms * 1000 / speed), itl_us=round(latency.itl_ms * 1000 / speed)
    )


def open_ports(reactor: Any, settings: Settings, serving: Serving) -> list[IListeningPort]:  # noqa: ANN401
    """Open each port.

    Raises:
        UserError: one cannot be opened, or a model asks for a death that cannot happen on it.
    """
    ports: list[IListeningPort] = []
    errors: list[str] = []
    for endpoint in settings.endpoints:
        try:
            port = _listen(reactor, endpoint, serving.site)
            ports.append(port)
            _refuse_impossible_closes(port, serving.loaded.models)
        except UserError as error:  # noqa: PERF203 (a handful of ports, once)
            errors.append(str(error))
    if errors:
        close_ports(ports)
        raise UserError("; ".join(dict.fromkeys(errors)))
    return ports


def close_ports(ports: Iterable[IListeningPort]) -> Deferred[Any]:
    """Close each port; fires once all are."""
    return DeferredList([maybeDeferred(port.stopListening) for port in ports])


def _listen(reactor: Any, text: str, site: LabSite) -> IListeningPort:  # noqa: ANN401
    """Open a port now: the Deferred of each of Twisted's server endpoints has its result at once."""
    results: list[object] = []
    try:
        endpoint = serverFromString(reactor, text)
        endpoint.listen(site).addBoth(results.append)
    except Exception as error:  # noqa: BLE001 - each endpoint type has its own exceptions for a bad string
        raise UserError(f"--endpoint {text}: {error or type(error).__name__}") from None
    if not results:
        raise UserError(f"--endpoint {text}: does not open at once")
    (port,) = results
    if isinstance(port, Failure):
        raise UserError(f"cannot listen on {text}: {port.getErrorMessage()}")
    install_transport(port)
    return port  # type: ignore[return-value] # not a Failure, so what the endpoint promises


def _refuse_impossible_closes(port: IListeningPort, models: tuple[ServedModel, ...]) -> None:
    """What no request on this port could meet."""
    for model in models:
        for place, fault in enumerate(model.fault.elements if model.fault is not None else ()):
            close = fault.death.close
            reason = None
            if ("rst" in close or close == "stale") and isinstance(port.getHost(), UNIXAddress):
                reason = "needs TCP: a Unix socket has no reset"
            elif close == "tls_raw" and not has_tls(port):
                reason = "needs TLS for close=tls_raw"
            if reason is not None:
                path = "fault" if model.fault is None or model.fault.every_leg else f"fault.legs[{place}]"
                raise UserError(fit(model.source, f": {path}: {fault.mode} {reason}"))


def url_of(port: IListeningPort) -> str:
    """Where a client finds the port."""
    address = port.getHost()
    if isinstance(address, UNIXAddress):
        name = address.name or b""
        return f"unix:{name.decode(errors='backslashreplace') if isinstance(name, bytes) else name}"
    assert isinstance(address, (IPv4Address, IPv6Address))  # noqa: S101 - Twisted's stream ports have no other kind
    scheme = "https" if has_tls(port) else "http"
    host = f"[{address.host}]" if isinstance(address, IPv6Address) else address.host
    return f"{scheme}://{host}:{address.port}"
