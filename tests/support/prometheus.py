"""A server's metrics, read as Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tests.support.rawclient import ask, request

if TYPE_CHECKING:
    from tests.support.server import Server

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(server: Server) -> Samples:
    """The value of each sample, by its name and its labels in the order of their names."""
    got = ask(server.address, request("GET", "/metrics"))
    assert got.status == 200
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(got.after_head.decode())
        for sample in family.samples
    }
