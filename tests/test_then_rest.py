"""What comes behind the fault point where the answer goes on: at which pace, and of which words."""

from __future__ import annotations

import pytest

from inference_lab.faults.directive import parse_directive
from inference_lab.faults.events import Pause
from tests.axes_scripts import WORDS, served
from tests.wire.rawclient import CHAT, COMPLETIONS


def pauses(fault: str, path: str = CHAT) -> list[int]:
    settings = tuple(part.partition("=")[::2] for part in fault.split(";")[1:])
    events = served(settings, path)
    assert events is not None, fault
    return [event.ms for event in events if isinstance(event, Pause)]


PACES = {
    "ok;after_chunks=2;then=rest;rest_delay_ms=40": [10] * 2 + [40] * (WORDS - 2 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=40;pause_ms=500": [10] * 2 + [500] + [40] * (WORDS - 2 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=0": [10] * 2,
    "ok;after_chunks=2;delay_ms=0;then=rest;rest_delay_ms=7;usage=never": [7] * (WORDS - 2 + 1),
    "ok;after_chunks=3;then=rest;rest_delay_ms=40;sequence=dup:2": [10] * 3 + [40] * (2 + WORDS - 3 + 2),
    "ok;after_chunks=2;then=rest;rest_delay_ms=40;tokens_per_frame=4": [10] * 2 + [40] * (1 + 2),
    "ok;after_chunks=20;then=rest;rest_delay_ms=40": [10] * 20 + [40] * 2,
    "ok;after_chunks=2;then=rest;rest_delay_ms=10": [10] * (WORDS + 2),
    "ok;after_chunks=2;then=rest;delay_ms=3;rest_delay_ms=3": [3] * (WORDS + 2),
}


@pytest.mark.parametrize("fault", PACES)
def test_the_rest_has_a_pace_of_its_own(fault: str) -> None:
    assert pauses(fault) == PACES[fault]


def test_the_pace_before_is_that_of_the_healthy_stream_and_heartbeats_keep_theirs() -> None:
    beats = ";heartbeat=ping;heartbeat_ms=30;beats=2"
    assert (
        pauses(f"ok;after_chunks=1;then=rest;rest_delay_ms=5{beats}", COMPLETIONS)
        == [30] * 2 + [5] * (WORDS - 1) + [5] * 2
    )


def test_the_pace_that_it_has_anyway_is_no_setting() -> None:
    plain = parse_directive("ok;after_chunks=2;then=rest;delay_ms=3")
    assert (
        parse_directive("ok;after_chunks=2;then=rest;delay_ms=3;rest_delay_ms=3").canonical()
        == plain.canonical()
    )
    assert parse_directive("ok;rest_delay_ms=10").death.rest_delay_ms is None
    crawl = "crawl;after_chunks=8;delay_ms=10;utf8=false"
    assert parse_directive("crawl;rest_delay_ms=1000").canonical() == crawl
    assert parse_directive("crawl;rest_delay_ms=10").canonical() == f"{crawl};rest_delay_ms=10"


REFUSED = {
    "ok;rest_delay_ms=5": "rest_delay_ms needs then=rest",
    "crawl;then=end": "rest_delay_ms needs then=rest",
    "crawl;status=503": "after_chunks goes with a stream",
    "crawl;at=head": "after_chunks needs at=frames",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_pace_of_nothing_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[fault]):
        parse_directive(fault)


def test_a_rest_without_a_frame_has_no_pace() -> None:
    for more, is_served in (
        ("", False),
        (";usage=always", True),
        (";error=vllm", True),
        (";malformed=true", True),
    ):
        settings = f"after_chunks={WORDS};then=rest;finish=none;rest_delay_ms=5{more}"
        events = served(tuple(part.partition("=")[::2] for part in settings.split(";")), CHAT)
        assert (events is not None) == is_served, more
