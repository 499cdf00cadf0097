"""The log of `inference-lab serve`: the lines Twisted's text log has, written for a tenth of the price.

Every answer is logged, and Twisted's formatter (twisted/logger/_format.py) takes as long over a line as its parser over
the request: it formats the time anew for each line and the text in Python rather than C.

Or one JSON object per line: `time`, `level`, `logger`, `message`, the event's own values, the row of a request that has
ended, the traceback of a failure.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Final

import msgspec
from twisted.logger import FileLogObserver, formatEvent, formatEventAsClassicLogText, formatTime
from twisted.python.reflect import safe_str

from inference_lab.console import shown_json
from inference_lab.core.journal.row import LINE_BYTES, TRACEBACK_BYTES, cut
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from twisted.logger import LogEvent


_SHOWN: Final = re.compile("[^\n\t]+")
# What Twisted adds to an event for observers of the old kind (twisted/logger/_legacy.py).
_LEGACY: Final = {"format", "isError", "message", "printed", "system", "time"}


class LineFormatter:
    """`TIME [namespace#level] text`, one line per event, what `formatEventAsClassicLogText` makes, escaped.

    Of a long text only the beginning.
    """

    def __init__(self) -> None:
        self._second: int | None = None
        self._time = ""

    def __call__(self, event: LogEvent) -> str | None:
        """The event's line; what is out of the ordinary (a traceback, a call in the format) is left to Twisted."""
        form = event.get("log_format")
        if form is None or "()" in form or "log_failure" in event or "log_system" in event:
            return _as_twisted(event)
        try:
            text = form.format_map(event)
            second = int(event["log_time"])
            system = f"{event['log_namespace']}#{event['log_level'].name}"
        except Exception:  # noqa: BLE001 - Twisted says in the line what could not be formatted
            return _as_twisted(event)
        if not text:
            return None
        if second != self._second:
            self._second = second
            self._time = formatTime(second)
        line = f"{self._time} [{system}] {cut(text, LINE_BYTES)}"
        return _shown(line.replace("\n", "\n\t")) + "\n"


def _as_twisted(event: LogEvent) -> str | None:
    text = formatEventAsClassicLogText(event)
    return None if text is None else _shown(cut(text[:-1], TRACEBACK_BYTES)) + "\n"


def _shown(text: str) -> str:
    """The text with what steers a terminal escaped; after each line feed is a tab, so that none begins an event."""
    return text if text.isprintable() else _SHOWN.sub(lambda part: one_line(part[0]), text)


def json_line(event: LogEvent) -> str:
    """The event as a JSON object and a line feed."""
    level = event.get("log_level")
    line: dict[str, object] = {
        "time": datetime.fromtimestamp(event.get("log_time", 0.0), timezone.utc).isoformat(
            timespec="milliseconds"
        ),
        "level": "info" if level is None else level.name,
        "logger": event.get("log_namespace", event.get("log_system", "")),
        "message": cut(formatEvent(event), LINE_BYTES),
    }
    for name, value in event.items():
        if not name.startswith("log_") and name not in _LEGACY:
            is_plain = isinstance(value, (int, float)) or value is None
            line[name] = value if is_plain else cut(safe_str(value))
    if line.pop("recording", None) is not None:
        row: dict[str, object] = msgspec.to_builtins(event["recording"].row())
        del row["id"]  # which only the journal gives
        line["row"] = row
    if "log_failure" in event:
        line["traceback"] = cut(event["log_failure"].getTraceback(), TRACEBACK_BYTES)
    return shown_json(msgspec.json.encode(line).decode())


def json_log() -> FileLogObserver:
    """What `twistd --logger inference_lab.service.logs.json_log` writes to standard output."""
    return observer_of("json", sys.stdout)


def observer_of(log_format: str, file: IO[str]) -> FileLogObserver:
    """Write every event to `file` as it comes, as `text` or `json`."""
    return FileLogObserver(file, json_line) if log_format == "json" else line_observer(file)


def line_observer(file: IO[str]) -> FileLogObserver:
    """Write every event to `file` as it comes."""
    return FileLogObserver(file, LineFormatter())
