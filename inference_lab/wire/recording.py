"""What becomes of each request, as the wire sees it: begun, opened, ended, and a row for the journal at both ends.

Nothing here is done per frame: the player's counters are read once, when a response is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from inference_lab.identity import TEST_ID
from inference_lab.journal.row import Row, body_digest, split_headers
from inference_lab.wire.transport import is_gone, lost_to, unsent_now, watch_unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from inference_lab.journal.row import Peer
    from inference_lab.wire.http import LabChannel
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.request import LabRequest

REFUSED: Final = "refused"

_SETTLE_S: Final = 0.1
"""For so long the end of a whole answer may still be on its way; a kernel may put off its acknowledgement for 40 ms."""
_PATH_CHARACTERS: Final = 200
BATCH_S: Final = 0.05
"""What a process that is killed may lose of the journal."""


class Rows(Protocol):
    """Where rows go. A request's rows come under one number, the last one counts."""

    def put(self, rows: Mapping[int, Row]) -> None:
        """Take rows; at once, and never failing."""


class Recording:
    """One request: what is known of it so far. The web layer tells what it finds out, by a row's field names."""

    def __init__(self, recorder: Recorder, number: int, request: LabRequest) -> None:
        self._recorder = recorder
        self.number = number
        # One right behind the other: what comes later is told in milliseconds after both.
        self.begun_us = recorder.pacer.now_us()
        time_s = recorder.wall_seconds()
        self._is_over = False
        self.channel = request.channel
        self._written_before = request.channel.written_bytes
        # What the channel had written with this response's last byte; None before.
        self._written_until: int | None = None
        self._transport = request.transport
        headers, others = split_headers(request.requestHeaders.getAllRawHeaders())
        test = headers.get("x-test-id", "")
        self._known: dict[str, Any] = {
            "time": time_s,
            "method": request.method.decode("latin-1")[:_PATH_CHARACTERS],
            "path": request.path.decode("utf-8", "backslashreplace")[:_PATH_CHARACTERS],
            "http": request.clientproto.decode("ascii").removeprefix("HTTP/"),
            "port": getattr(request.getHost(), "port", None),  # a Unix socket's address has none
            "headers": headers,
            "other_headers": others,
            "request_id": headers.get("x-request-id"),
            "test": test if TEST_ID.fullmatch(test) else None,
        }
        self._start: int | None = None
        self._counts: Callable[[], dict[str, Any]] | None = None

    def tell(self, **facts: Any) -> None:  # noqa: ANN401 - a row's fields, each of its own type
        """Add what has been found out."""
        self._known.update(facts)

    def tell_body(self, raw: bytes) -> None:
        """The body, as far as its text may not be told."""
        self.tell(body_bytes=len(raw), body_digest=body_digest(raw))

    def starts_at(self, words: int) -> None:
        """The client holds so many words of the answer before the first of this response."""
        self._start = words

    def tell_at_end(self, counts: Callable[[], dict[str, Any]]) -> None:
        """Ask for further fields when the response is over."""
        self._counts = counts

    def open(self) -> None:
        """The request has been accepted: from now on the journal shows it."""
        self._recorder.has_news(self)

    def written(self) -> None:
        """The response is written: what the channel writes from now on is another's."""
        if self._written_until is None:
            self._written_until = self.channel.written_bytes

    def end(self, status: int | None, ending: str | None, lost: Failure | None = None) -> None:
        """The response is over, or its connection gone; `ending` None is the one that was asked for.

        `lost` is why the connection is gone, where it was not the server that ended it.
        """
        if self._is_over:
            return
        self._is_over = True
        recorder, known = self._recorder, self._known
        spent_us = recorder.pacer.now_us() - self.begun_us
        if self._counts is not None:
            known.update(self._counts())
            self._counts = None
        known["status"] = status
        known["ending"] = ending or known.get("ending_asked") or plain_ending(status)
        known["duration_ms"] = spent_us / 1000
        if self._start is not None:
            known["reached"] = self._start + known.get("words", 0)
        peer: Peer = "none" if lost is None else lost_to(self._transport, lost)
        known["peer"] = peer
        known["peer_s"] = None if peer == "none" else spent_us / 1e6
        self.written()
        self._measure()
        settled = not known["bytes_unsent"] or is_gone(self._transport) or recorder.has_ended
        recorder.over(self, settled=settled)
        if not settled:
            watch_unsent(self._transport)

    def settle(self) -> None:
        """Look at what is unsent once more, for the last time."""
        self._measure()
        self._recorder.has_news(self)

    def _measure(self) -> None:
        # What is unsent is the connection's last bytes, and those may be of responses behind this one.
        until = self._written_until or 0
        written = until - self._written_before
        behind = self.channel.written_bytes - until
        unsent = max(0, min(unsent_now(self._transport) - behind, written))
        self._known.update(bytes_written=written, bytes_acknowledged=written - unsent, bytes_unsent=unsent)

    def row(self) -> Row:
        """The request as it stands."""
        return Row(state="ended" if self._is_over else "open", **self._known)

    def row_while_open(self) -> Row:
        """As `row`, without what is not certain before it has settled: that it has ended, and how."""
        return msgspec.structs.replace(
            self.row(), state="open", ending=None, peer=None, peer_s=None, duration_ms=None
        )


def plain_ending(status: int | None) -> str:
    """How a whole answer ends that nobody asked anything of."""
    return REFUSED if status is not None and status >= 400 else "terminator"


class Recorder:
    """Begins a recording for each request and hands its rows to `rows`, those of a batch's time together.

    A row is made once a batch, and not for each thing that happens to its request: most are over by then.
    `wall_seconds` is the time that people and other machines know.
    """

    def __init__(self, pacer: Pacer, rows: Rows | None, wall_seconds: Callable[[], float]) -> None:
        self.pacer = pacer
        self.wall_seconds = wall_seconds
        self._rows = rows
        self._number = 0
        self._live: set[Recording] = set()
        self._news: dict[int, Recording] = {}
        self._begun: dict[int, Row] = {}  # of what has ended meanwhile, but is not written as ended yet
        self._batch: IDelayedCall | None = None
        self._settling: dict[LabChannel, Recording] = {}
        self._timer: IDelayedCall | None = None
        self.has_ended = False
        """Nobody waits for anything any more: rows are handed over at once."""

    def begin(self, request: LabRequest) -> Recording | None:
        """A recording of `request`, unless it looks at the server rather than ask it for something."""
        path = request.path
        if path in {b"/health", b"/metrics"} or path.startswith(b"/lab/"):
            return None
        self._settle_on(request.channel)
        self._number += 1
        recording = Recording(self, self._number, request)
        self._live.add(recording)
        return recording

    def has_news(self, recording: Recording) -> None:
        """The journal is to show a recording as it stands when the batch is handed over."""
        if self._rows is None:
            return
        self._news[recording.number] = recording
        if self.has_ended:
            self._hand_over()
        elif self._batch is None:
            self._batch = self.pacer.clock.callLater(BATCH_S, self._hand_over)

    def over(self, recording: Recording, *, settled: bool) -> None:
        """A recording has ended; what is unsent of a whole answer is looked at once more, a little later."""
        self._live.discard(recording)
        if settled:
            self.has_news(recording)
            return
        if self._news.pop(recording.number, None) is not None:  # its beginning, which nobody has seen yet
            self._begun[recording.number] = recording.row_while_open()
        # A stream with a request pipelined behind it hears of its end last, when the next may have ended already.
        self._settle_on(recording.channel)
        self._settling[recording.channel] = recording
        if self._timer is None:
            self._timer = self.pacer.clock.callLater(_SETTLE_S, self._settle)

    def _settle_on(self, channel: LabChannel) -> None:
        settling = self._settling.pop(channel, None)
        if settling is not None:
            settling.settle()

    def flush(self) -> None:
        """Hand over what is known, and what is still waited for as it is now."""
        if self._timer is not None:
            self._timer.cancel()
            self._settle()
        if self._batch is not None:
            self._batch.cancel()
            self._hand_over()

    def _settle(self) -> None:
        self._timer = None
        settling, self._settling = self._settling, {}
        for recording in settling.values():
            recording.settle()

    def _hand_over(self) -> None:
        self._batch = None
        rows, self._begun = self._begun, {}
        news, self._news = self._news, {}
        rows.update((number, recording.row()) for number, recording in news.items())
        if self._rows is not None:
            self._rows.put(rows)

    def end_all(self, ending: str) -> None:
        """The process ends: so does everything that is still open."""
        for recording in list(self._live):
            recording.end(None, ending)
        self.flush()
        self.has_ended = True  # no timer is left behind
