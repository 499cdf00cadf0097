"""The service: models, engines, site and port put together; ready line, systemd notification, shutdown."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.application.service import IService, Service
from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from inference_lab.config import ConfigError, Loaded, ServedModel, load
from inference_lab.engine.cluster import Cluster
from inference_lab.settings import Settings, StartError, settings_from
from inference_lab.web.answers import Answers
from inference_lab.web.app import Lab
from inference_lab.web.checks import Checks
from inference_lab.web.served import Served, ServedModels
from inference_lab.wire.cluster_engine import ClusterEngine
from inference_lab.wire.endings import Endings
from inference_lab.wire.engine_driver import ConstantLatency, Engine
from inference_lab.wire.http import LabSite
from inference_lab.wire.pacer import Pacer
from inference_lab.wire.streams import Streams
from inference_lab.wire.transport import EagerServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IListeningPort

_log: Final = Logger()


class LabService(Service):
    """Owns the open port and the live streams."""

    name = "inference-lab"

    def __init__(self, reactor: Any, port: IListeningPort, streams: Streams, loaded: Loaded) -> None:  # noqa: ANN401
        self._reactor = reactor
        self._port = port
        self._streams = streams
        self._loaded = loaded

    def startService(self) -> None:  # noqa: N802 - Twisted's name
        """Say what is served where, once the reactor runs."""
        super().startService()
        for note in self._loaded.notes:
            _log.info("{note}", note=note)
        self._reactor.callWhenRunning(self._take_signals)
        self._reactor.callWhenRunning(self._ready)

    def stopService(self) -> Deferred[None] | None:  # noqa: N802 - Twisted's name
        """Close the port and report what is still open; the process ends at once."""
        super().stopService()
        notify_systemd("STOPPING=1")
        self._streams.end_all("shutdown")
        result: Deferred[None] | None = self._port.stopListening()
        return result

    def _take_signals(self) -> None:
        """Let SIGTERM and SIGINT stop the reactor from its loop, not from inside the signal handler.

        Twisted's own handlers log where they stand (ReactorBase.sigTerm), and a signal that lands while a log line is
        being written then waits for the log's lock for ever.
        """
        for number, stop in ((signal.SIGTERM, self._reactor.sigTerm), (signal.SIGINT, self._reactor.sigInt)):
            if signal.getsignal(number) == stop:  # the reactor's, not somebody else's and not ignored
                signal.signal(number, partial(_from_loop, self._reactor, stop))

    def _ready(self) -> None:
        names = ", ".join(model.name for model in self._loaded.models)
        _log.info("ready: {url} serving {names}", url=url_of(self._port), names=names)
        notify_systemd("READY=1")


def _from_loop(reactor: Any, stop: Callable[[int], None], number: int, _: object) -> None:  # noqa: ANN401
    reactor.callFromThread(stop, number)


def open_service(options: Mapping[str, object]) -> IService:
    """Make the service with its port open.

    Raises:
        StartError: a bad option or config, or a port that cannot be opened.
    """
    from twisted.internet import reactor  # noqa: PLC0415 - twistd chooses the reactor before it calls us

    settings = settings_from(options)
    try:
        loaded = load(settings.config, settings.hardware)
    except ConfigError as error:
        raise StartError(str(error)) from None
    pacer = Pacer(reactor, time.monotonic)
    endings = Endings(
        pacer, flush_grace_us=settings.flush_grace_ms * 1000, linger_us=round(settings.linger_s * 1e6)
    )
    streams = Streams(pacer, endings, reader_timeout_us=round(settings.reader_timeout_s * 1e6))
    models = ServedModels([Served(model, _engine(model, pacer, settings.speed)) for model in loaded.models])
    answers = Answers(
        streams,
        directives=settings.directives,
        wall_seconds=time.time,
        random_digits=lambda: secrets.token_hex(12),
    )
    lab = Lab(models, Checks(models, directives=settings.directives), answers)
    site = LabSite(lab.resource(), endings=endings, max_body_bytes=settings.max_body_bytes)
    port = _listen(reactor, settings, site)
    _refuse_impossible_resets(port, loaded.models)
    return LabService(reactor, port, streams, loaded)


def _engine(model: ServedModel, pacer: Pacer, speed: float) -> Engine:
    """The engine of a model: its constant latencies if it has any, else the simulated cluster."""
    latency = model.latency
    if latency is None:
        assert model.deployment is not None  # noqa: S101 - only [latency] files go without
        return ClusterEngine(pacer, Cluster(model.deployment), speed=speed)
    return ConstantLatency(
        pacer, ttft_us=round(latency.ttft_ms * 1000 / speed), itl_us=round(latency.itl_ms * 1000 / speed)
    )


def _listen(reactor: Any, settings: Settings, site: LabSite) -> IListeningPort:  # noqa: ANN401
    """Open the port now: the Deferred of each of Twisted's server endpoints has its result at once."""
    results: list[object] = []
    try:
        endpoint = serverFromString(reactor, settings.endpoint)
        endpoint.listen(site).addBoth(results.append)
    except Exception as error:  # noqa: BLE001 - each endpoint type has its own exceptions for a bad string
        raise StartError(f"--endpoint {settings.endpoint}: {error or type(error).__name__}") from None
    if not results:
        raise StartError(f"--endpoint {settings.endpoint}: does not open at once")
    (port,) = results
    if isinstance(port, Failure):
        raise StartError(f"cannot listen on {settings.endpoint}: {port.getErrorMessage()}")
    # A Unix port has a connection class of its own, with nothing to gain.
    if isinstance(port, tcp.Port) and port.transport is tcp.Server:
        port.transport = EagerServer
    return port  # type: ignore[return-value] # not a Failure, so what the endpoint promises


def _refuse_impossible_resets(port: IListeningPort, models: tuple[ServedModel, ...]) -> None:
    if not isinstance(port.getHost(), UNIXAddress):
        return
    for model in models:
        for fault in model.fault.elements if model.fault is not None else ():
            if fault is not None and "rst" in fault.death.close:
                port.stopListening()
                raise StartError(
                    f"{model.source}: [fault] mode {fault.mode} needs TCP; a Unix socket has no reset"
                )


def url_of(port: IListeningPort) -> str:
    """Where a client finds the port."""
    address = port.getHost()
    if isinstance(address, UNIXAddress):
        name = address.name or b""
        return f"unix:{name.decode(errors='backslashreplace') if isinstance(name, bytes) else name}"
    assert isinstance(address, (IPv4Address, IPv6Address))  # noqa: S101 - Twisted's stream ports have no other kind
    scheme = "https" if isinstance(getattr(port, "factory", None), TLSMemoryBIOFactory) else "http"
    host = f"[{address.host}]" if isinstance(address, IPv6Address) else address.host
    return f"{scheme}://{host}:{address.port}"


def notify_systemd(state: str) -> None:
    """sd_notify(3): one datagram to the socket systemd names, if it does."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            try:
                notifier.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
            except OSError as error:
                _log.warn("cannot notify systemd at {path}: {error}", path=path, error=error)
