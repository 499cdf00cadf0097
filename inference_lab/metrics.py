"""The plain counts of the wire as Prometheus metrics. Names are vLLM's where the thing is the same.

prometheus-client is imported when the server starts: whoever asks first may ask without descriptors. With several
workers each writes its share to files of a directory, once a second, and any of them answers for all
(prometheus-client's multiprocess mode, which reads `PROMETHEUS_MULTIPROC_DIR` when it is imported).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inference_lab.storage.store import Store
    from inference_lab.web.served import Served
    from inference_lab.wire.counters import Log2Histogram, ModelCounters, RequestCounters
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.streams import Streams

_FIRST_PLACE: Final = 8
_LAST_PLACE: Final = 26
"""Buckets from 256 us to 2^26 us (67 s): powers of two, as the wire counts."""
BUCKETS_S: Final = [2**place / 1e6 for place in range(_FIRST_PLACE, _LAST_PLACE + 1)]
_MODEL: Final = ("model_name",)

Key: TypeAlias = "tuple[object, ...]"


class Sources(Protocol):
    """Where the counts are; `store` is the journal, if there is one, `shared` the directory of several workers."""

    pacer: Pacer
    counters: RequestCounters
    streams: Streams
    models: Sequence[Served]
    store: Store | None
    shared: str | None


class Metrics:
    """The metrics of one process."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        self._seen: dict[Key, float] = {}
        # Else each counter has its time of birth beside it, which nobody asked for.
        disable_created_metrics()  # type: ignore[no-untyped-call] # not annotated there
        into: dict[str, Any] = {"registry": self._registry}
        live: dict[str, Any] = {**into, "multiprocess_mode": "livesum"}
        self._requests = Counter(
            "inference_lab_requests",
            "Requests that are over, by what answered them and how they ended.",
            ("route", "model_name", "trigger", "ending"),
            **into,
        )
        self._frames = Counter("inference_lab_frames", "Frames written to streams.", _MODEL, **into)
        self._bytes = Counter(
            "inference_lab_body_bytes", "Bytes of streams' bodies, chunk framing included.", _MODEL, **into
        )
        self._first = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a stream's begin to its first content frame.",
            _MODEL,
            buckets=BUCKETS_S,
            **into,
        )
        self._further = Histogram(
            "vllm:inter_token_latency_seconds",
            "From one content frame of a stream to the next.",
            _MODEL,
            buckets=BUCKETS_S,
            **into,
        )
        self._late = Histogram(
            "inference_lab_pacing_lateness_seconds",
            "How late the deadlines of a millisecond were served.",
            buckets=BUCKETS_S,
            **into,
        )
        self._waiting = Gauge("vllm:num_requests_waiting", "Requests in the engine's queue.", _MODEL, **live)
        self._running = Gauge(
            "vllm:num_requests_running", "Requests in the engine's batches.", _MODEL, **live
        )
        # A mean of several workers' use would need their number: the most used one is what an alarm asks for.
        self._kv_use = Gauge(
            "vllm:kv_cache_usage_perc",
            "KV cache in use, 1 is full.",
            _MODEL,
            **into,
            multiprocess_mode="livemax",
        )
        self._lag = Gauge(
            "inference_lab_engine_lag_seconds",
            "How far the engine's simulated time is behind the clock.",
            _MODEL,
            **into,
            multiprocess_mode="livemax",
        )
        self._live = Gauge("inference_lab_live_streams", "Streams that are open.", **live)
        self._stalled = Gauge(
            "inference_lab_stalled_streams",
            "Open streams that have come to a hang, with heartbeats or without.",
            **live,
        )
        self._paused = Gauge(
            "inference_lab_paused_streams", "Open streams that wait for a slow reader.", **live
        )
        self._connections = Gauge("inference_lab_open_connections", "Connections of clients.", **live)
        self._lost = Counter(
            "inference_lab_journal_lost_rows",
            "Rows of the journal that found no room, or were in a file that is gone.",
            **into,
        )
        self._unwritten = Gauge(
            "inference_lab_journal_waiting_rows", "Rows of the journal that wait to be written.", **live
        )
        self.update()

    def page(self) -> bytes:
        """What Prometheus reads: of this process, or of all workers together."""
        self.update()
        if self._sources.shared is None:
            return generate_latest(self._registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody, path=self._sources.shared)  # type: ignore[no-untyped-call] # as above
        return generate_latest(everybody)

    def update(self) -> None:
        """Add what has been counted since the last time."""
        sources = self._sources
        counters, store = sources.counters, sources.store
        for labels, count in counters.requests.items():
            _bring(self._requests.labels(*labels), count, self._seen, labels)
        live = list(sources.streams.live())
        open_now: dict[ModelCounters, tuple[int, int, int]] = {}
        for player in live:
            model = player.request.model
            frames, body_bytes, itl_us = open_now.get(model, (0, 0, 0))
            open_now[model] = (
                frames + player.frames,
                body_bytes + player.body_bytes,
                itl_us + player.speaking_us,
            )
        for served in sources.models:
            self._update_model(served, *open_now.get(served.counters, (0, 0, 0)))
        show(self._late, sources.pacer.late_us, self._seen, "late")
        self._live.set(len(live))
        self._stalled.set(sum(player.is_stalled for player in live))
        self._paused.set(sum(player.is_paused for player in live))
        self._connections.set(counters.connections)
        if store is not None:
            _bring(self._lost, store.lost_rows, self._seen, ("lost",))
            self._unwritten.set(store.waiting_rows)

    def _update_model(self, served: Served, open_frames: int, open_bytes: int, open_further_us: int) -> None:
        counters = served.counters
        for counter, total in (
            (self._frames, counters.frames + open_frames),
            (self._bytes, counters.body_bytes + open_bytes),
        ):
            _bring(counter.labels(counters.name), total, self._seen, (counter, counters.name))
        show(self._first.labels(counters.name), counters.ttft_us, self._seen, "first", counters.name)
        show(
            self._further.labels(counters.name),
            counters.itl_us,
            self._seen,
            "further",
            counters.name,
            open_us=open_further_us,
        )
        load = served.engine.load
        self._waiting.labels(counters.name).set(load.waiting)
        self._running.labels(counters.name).set(load.running)
        if load.kv_use is not None:
            self._kv_use.labels(counters.name).set(load.kv_use)
        if load.lag_us is not None:
            self._lag.labels(counters.name).set(load.lag_us / 1e6)


def _bring(counter: Any, total: float, seen: dict[Key, float], key: Key) -> None:  # noqa: ANN401 - not typed there
    """Bring a counter, or a part of a histogram, to `total`; `seen` has what it was brought to before."""
    more = total - seen.get(key, 0)
    if more:
        counter.inc(more)
        seen[key] = total


def show(
    histogram: Any,  # noqa: ANN401 - as above
    spread: Log2Histogram,
    seen: dict[Key, float],
    *key: object,
    open_us: int = 0,
) -> None:
    """Bring a histogram with the bounds `BUCKETS_S` to what the wire has counted; `open_us` is not in its sum yet.

    `observe` takes one value at a time; its parts (prometheus_client/metrics.py, Histogram) take any number.
    """
    counts = [0] * (len(BUCKETS_S) + 1)
    for place, count in enumerate(spread.counts):
        # What took less than 2^place us, so at most as much, which is what a bucket says.
        counts[min(max(place - _FIRST_PLACE, 0), len(BUCKETS_S))] += count
    for place, count in enumerate(counts):
        _bring(histogram._buckets[place], count, seen, (*key, place))  # noqa: SLF001 - see above; a test guards it
    _bring(histogram._sum, (spread.sum_us + open_us) / 1e6, seen, (*key, "sum"))  # noqa: SLF001 - as above
