"""`GET /metrics`: the counts of this process, or of all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.core.errors import metrics_unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.metrics import Metrics
    from inference_lab.storage.store import Store
    from inference_lab.web.served import Served
    from inference_lab.wire.counters import RequestCounters
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.streams import Streams

_CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_SHARE_EVERY_S: Final = 1.0


class MetricsPage:
    """Shows what has been counted; its attributes are the `Sources` of the metrics, under the same names."""

    def __init__(
        self,
        pacer: Pacer,
        counters: RequestCounters,
        streams: Streams,
        models: Sequence[Served],
        store: Store | None,
        shared: str | None = None,
    ) -> None:
        self.pacer = pacer
        self.counters = counters
        self.streams = streams
        self.models = models
        self.store = store
        self.shared = shared
        self._metrics: Metrics | None = None
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Import what shows them, while there are descriptors for it; begin to share where there are others."""
        self._made()
        if self.shared is not None:
            self._share()

    def stop(self) -> None:
        """Share for the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._made().update()

    def page(self, request: LabRequest) -> bytes:
        """What Prometheus reads.

        Raises:
            ApiError: 503 where there is no descriptor for it.
        """
        try:
            page = self._made().page()
        except (OSError, ImportError) as error:
            raise metrics_unavailable(getattr(error, "strerror", None) or str(error)) from None
        return request.prepare(200, page, _CONTENT_TYPE)

    def _made(self) -> Metrics:
        if self._metrics is None:
            from inference_lab.metrics import Metrics  # noqa: PLC0415 - a start that fails needs none

            self._metrics = Metrics(self)
        return self._metrics

    def _share(self) -> None:
        self._made().update()
        self._timer = self.pacer.clock.callLater(_SHARE_EVERY_S, self._share)
