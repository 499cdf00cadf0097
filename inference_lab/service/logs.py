"""The log of `inference-lab serve`: the lines Twisted's text log has, written for a tenth of the price.

Every answer is logged, and Twisted's formatter (twisted/logger/_format.py) takes as long over a line as its parser over
the request: it formats the time anew for each line and the text in Python rather than C.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from twisted.logger import FileLogObserver, formatEventAsClassicLogText, formatTime

if TYPE_CHECKING:
    from twisted.logger import LogEvent


class LineFormatter:
    """`TIME [namespace#level] text`, one line per event, byte for byte what `formatEventAsClassicLogText` makes."""

    def __init__(self) -> None:
        self._second: int | None = None
        self._time = ""

    def __call__(self, event: LogEvent) -> str | None:
        """The event's line; what is out of the ordinary (a traceback, a call in the format) is left to Twisted."""
        form = event.get("log_format")
        if form is None or "()" in form or "log_failure" in event or "log_system" in event:
            return formatEventAsClassicLogText(event)
        try:
            text = form.format_map(event)
            second = int(event["log_time"])
            system = f"{event['log_namespace']}#{event['log_level'].name}"
        except Exception:  # noqa: BLE001 - Twisted says in the line what could not be formatted
            return formatEventAsClassicLogText(event)
        if not text:
            return None
        if second != self._second:
            self._second = second
            self._time = formatTime(second)
        line = f"{self._time} [{system}] {text}"
        return line.replace("\n", "\n\t") + "\n"


def line_observer(file: IO[str]) -> FileLogObserver:
    """Write every event to `file` as it comes."""
    return FileLogObserver(file, LineFormatter())
