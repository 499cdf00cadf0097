"""The log's lines are Twisted's own, whatever is logged."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from twisted.logger import Logger, LogLevel, formatEventAsClassicLogText
from twisted.python.failure import Failure

from inference_lab.service.logs import LineFormatter, json_line, line_observer

AT = 1_800_000_000.75


class Odd:
    """A value that cannot be formatted."""

    def __str__(self) -> str:
        raise ValueError("odd")


EVENTS: dict[str, dict[str, Any]] = {
    "plain": {"log_format": "ready"},
    "fields": {"log_format": "{what} took {seconds:g} s", "what": "it", "seconds": 1.5},
    "several lines": {"log_format": "{text}", "text": "a\nb\n"},
    "empty": {"log_format": "{text}", "text": ""},
    "a call": {"log_format": "{name()}", "name": lambda: "called"},
    "a missing field": {"log_format": "{nothing}"},
    "a value that fails": {"log_format": "{odd}", "odd": Odd()},
    "a system of its own": {"log_format": "x", "log_system": "mine"},
    "no format": {"log_text": "x"},
    "a failure": {"log_format": "{log_failure}", "log_failure": Failure(ValueError("v"))},
    "conversion": {"log_format": "{b!r} {d[k]}", "b": b"\x00", "d": {"k": 1}},
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_line_is_what_twisted_would_write(event: dict[str, Any]) -> None:
    whole = {"log_time": AT, "log_namespace": "a.b", "log_level": LogLevel.info, **event}
    assert LineFormatter()(whole) == formatEventAsClassicLogText(whole)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_json_line_is_one_object_with_the_events_values(event: dict[str, Any]) -> None:
    whole = {"log_time": AT, "log_namespace": "a.b", "log_level": LogLevel.info, **event}
    text = json_line(whole)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    line = json.loads(text)
    assert line["time"] == "2027-01-15T08:00:00.750+00:00"
    assert line["level"] == "info"
    assert {key for key in event if not key.startswith("log_")} <= line.keys()
    assert ("traceback" in line) == ("log_failure" in event)


def test_the_time_moves_on_from_line_to_line() -> None:
    lines = LineFormatter()
    for at in (AT, AT + 0.2, AT + 0.3, AT + 3600, AT):
        event = {"log_format": "x", "log_time": at, "log_namespace": "n", "log_level": LogLevel.warn}
        assert lines(event) == formatEventAsClassicLogText(event)


def test_an_event_is_in_the_file_when_the_call_returns() -> None:
    file = io.StringIO()
    Logger("here", observer=line_observer(file)).info("{n} of them", n=3)
    assert file.getvalue().endswith(" [here#info] 3 of them\n")
