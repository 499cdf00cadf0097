"""`GET /metrics`: what has happened, read as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.prometheus import samples_of
from tests.support.rawclient import Connection, ask, fault_request, payload, request
from tests.support.server import eventually, start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.prometheus import Samples
    from tests.support.server import Server

REQUESTS = "inference_lab_requests_total"


def grown(before: Samples, after: Samples, name: str, labels: Mapping[str, str]) -> float:
    key = (name, tuple(sorted(labels.items())))
    return after.get(key, 0) - before.get(key, 0)


ENDED = [
    ("terminator", CHAT, "header", "no_done;after_chunks=3;delay_ms=0"),
    ("fin", COMPLETIONS, "header", "cut_between_frames;after_chunks=3;delay_ms=0"),
    ("rst", CHAT, "header", "reset;after_chunks=3;delay_ms=0"),
    ("terminator", COMPLETIONS, "engine", None),
]


@pytest.mark.parametrize(("ending", "target", "trigger", "fault"), ENDED)
def test_a_stream_counts_by_its_route_model_trigger_and_ending(
    server: Server, ending: str, target: str, trigger: str, fault: str | None
) -> None:
    body = payload(target, max_tokens=3)
    before = samples_of(server)
    with Connection(server.address) as connection:
        connection.send(
            request("POST", target, body) if fault is None else fault_request(target, fault, body)
        )
        connection.until_end() if ending in {"fin", "rst"} else connection.response()
    labels = {"route": target, "model_name": "lab", "trigger": trigger, "ending": ending}
    assert eventually(lambda: grown(before, samples_of(server), REQUESTS, labels) == 1)
    after, model = samples_of(server), {"model_name": "lab"}
    assert grown(before, after, "inference_lab_frames_total", model) >= 3
    assert grown(before, after, "vllm:time_to_first_token_seconds_count", model) == 1
    assert grown(before, after, "vllm:inter_token_latency_seconds_count", model) == 2


def test_what_is_refused_counts_under_few_names_whatever_was_asked_for(server: Server) -> None:
    before = samples_of(server)
    for target in ("/nope", "/nope/again", "/%ff"):
        assert ask(server.address, request("GET", target)).status == 404
    assert ask(server.address, request("POST", CHAT, payload(CHAT, model="nobody"))).status == 404
    after = samples_of(server)
    refused = {"model_name": "", "trigger": "", "ending": "refused"}
    assert grown(before, after, REQUESTS, {"route": "other", **refused}) == 3
    assert grown(before, after, REQUESTS, {"route": CHAT, **refused}) == 1


def test_a_stalled_stream_shows_while_it_hangs_and_a_client_that_leaves_as_what_it_is(server: Server) -> None:
    before = samples_of(server)
    with Connection(server.address) as connection:
        connection.send(fault_request(CHAT, "stall;after_chunks=3;delay_ms=2"))
        connection.until(b"x0002")
        during = samples_of(server)
    model = {"model_name": "lab"}
    assert grown(before, during, "vllm:inter_token_latency_seconds_count", model) == 2
    assert ("vllm:inter_token_latency_seconds_sum", tuple(model.items())) in during
    for gauge in (
        "inference_lab_stalled_streams",
        "inference_lab_live_streams",
        "inference_lab_open_connections",
    ):
        assert during[gauge, ()] >= 1
    labels = {"route": CHAT, "model_name": "lab", "trigger": "header", "ending": "client_left"}
    assert eventually(lambda: grown(before, samples_of(server), REQUESTS, labels) == 1)


def test_a_directory_for_the_metrics_of_others_is_left_to_them(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "gone"))
    lone = start(configs)
    try:
        assert samples_of(lone)["inference_lab_live_streams", ()] == 0
    finally:
        lone.stop()


def test_the_engines_load_shows_under_vllms_names(server: Server) -> None:
    with Connection(server.address) as connection:
        connection.send(request("POST", CHAT, payload(CHAT, model="slow", max_tokens=2)))
        connection.until(b"data: ")
        during = samples_of(server)
    assert during["vllm:num_requests_running", (("model_name", "slow"),)] >= 1
    assert during["vllm:num_requests_waiting", (("model_name", "slow"),)] == 0
