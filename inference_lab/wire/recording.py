"""What becomes of each request, as the wire sees it: begun, opened, ended, and a row for the journal at both ends.

Nothing here is done per frame: the player's counters are read once, when a response is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from inference_lab.core.faults.death import Close
from inference_lab.core.identity import TEST_ID
from inference_lab.core.journal.row import Row, Unplanned, cut_texts, digest, split_headers
from inference_lab.core.journal.sent import SentCalls
from inference_lab.core.stream.events import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure
    from twisted.web.http import Request

    from inference_lab.core.journal.row import Peer
    from inference_lab.core.journal.sent import Leg
    from inference_lab.core.stream.events import Delivered
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.response import Response
    from inference_lab.wire.sent import Sent

_SETTLE_S: Final = 0.1
"""For so long the end of a whole answer may still be on its way; a kernel may put off its acknowledgement for 40 ms."""
_SETTLE_LATE_S: Final = 1.0
"""How often a reader that takes its time is looked at after that."""
_LONGEST_US: Final = 120_000_000
"""A reader that has not taken all of an answer by then counts as one that will not."""
BATCH_S: Final = 0.05
"""What a process that is killed may lose of the journal."""


class Rows(Protocol):
    """Where rows go. A request's rows come under one number, the last one counts."""

    def put(self, rows: Mapping[int, Row], awaited: AbstractSet[int] = frozenset()) -> None:
        """Take rows; at once, and never failing. Those whose numbers are `awaited` have ended and come once more."""


class Recording:
    """One request: what is known of it so far. The web layer tells what it finds out, by a row's field names."""

    def __init__(self, recorder: Recorder, number: int, request: Request, response: Response) -> None:
        self._recorder = recorder
        self.number = number
        # One right after the other: what comes later is told in milliseconds after both.
        self.begun_us = recorder.pacer.now_us()
        time_s = recorder.wall_seconds()
        self._is_over = False
        self.response = response
        headers, others = split_headers(request.requestHeaders.getAllRawHeaders())
        test = headers.get("x-test-id", "")
        self._known: dict[str, Any] = {}
        self.add(
            time=time_s,
            method=request.method.decode("latin-1"),
            path=request.path.decode("utf-8", "backslashreplace"),
            http=request.clientproto.decode("ascii").removeprefix("HTTP/"),
            port=getattr(request.getHost(), "port", None),  # a Unix socket's address has none
            headers=headers,
            other_headers=others,
            request_id=headers.get("x-request-id"),
            test=test if TEST_ID.fullmatch(test) else None,
        )
        self._leg: Leg | None = None
        self._said = NOTHING
        self._calls = SentCalls()
        self._player: Sent | None = None
        self._read: Callable[[], dict[str, Any]] | None = None
        self._is_shown = False  # as one that has ended
        self._settles_until_us = 0

    def add(self, **facts: Any) -> None:  # noqa: ANN401 - a row's fields, each of its own type
        """Add what has been found out; of a long text its beginning."""
        self._known.update(cut_texts(facts))

    def tell_body(self, raw: bytes) -> None:
        """The body, as far as its text may not be told."""
        self.add(body_bytes=len(raw), body_digest=digest(raw))

    def tell_wait(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """How long the client is asked to wait before it comes again, where it is."""
        for name, value in headers:
            if name.lower() == b"retry-after":
                self.add(retry_after=value.decode("latin-1"))

    def answers(self, leg: Leg) -> None:
        """What the response is to its answer."""
        self._leg = leg

    def identifies(self, completion_id: str) -> None:
        """The ids of its calls are made of this one."""
        if self._leg is not None:
            self._leg = msgspec.structs.replace(self._leg, completion_id=completion_id)

    def says(self, said: Delivered) -> None:
        """It is one JSON answer, which says this."""
        self._said = said
        self._calls.take(said.calls)

    def plays(self, player: Sent) -> None:
        """It is a stream, which counts for itself; from now on the journal shows it."""
        self._player = player
        self.open()

    def reads(self, further: Callable[[], dict[str, Any]]) -> None:
        """Ask for further fields when the response is over."""
        self._read = further

    def open(self) -> None:
        """The request has been accepted: from now on the journal shows it."""
        self._recorder.has_news(self)

    def end(self, status: int | None, ending: str | None, lost: Failure | None = None) -> None:
        """The response is over, or its connection gone; `ending` None is the one that was asked for.

        `lost` is why the connection is gone, where it was not the server that ended it.
        """
        if self._is_over:
            return
        self._is_over = True
        recorder, known = self._recorder, self._known
        now_us = recorder.pacer.now_us()
        spent_us = now_us - self.begun_us
        if self._read is not None:
            known.update(self._read())
            self._read = None
        known["status"] = status
        self._count(status)
        if ending == Unplanned.CLIENT_LEFT:
            known.update(self._pace(now_us))
        self._player = None
        known["ending"] = ending or known.get("ending_asked") or plain_ending(status)
        known["duration_ms"] = spent_us / 1000
        peer: Peer = "none" if lost is None else self.response.peer(lost)
        known["peer"] = peer
        known["peer_s"] = None if peer == "none" else spent_us / 1e6
        self.response.over()
        known.update(self.response.facts())
        settled = not known["bytes_unsent"] or self.response.is_gone() or recorder.has_ended
        self._settles_until_us = now_us + _LONGEST_US
        recorder.over(self, settled=settled)
        if not settled:
            self.response.watch_unsent(wanted=True)

    def _count(self, status: int | None) -> None:
        """What has been sent so far."""
        player, known = self._player, self._known
        if player is not None:
            known["frames"] = player.frames
            self._said, self._calls = player.said, player.calls
        if self._leg is not None:
            self.add(**self._leg.fields(self._said, self._calls, status))

    def _pace(self, now_us: int) -> dict[str, Any]:
        """How silent and how slow it was when its client left."""
        player = self._player
        last_us = None if player is None else player.last_content_us
        four_us = None if player is None else player.last_four_us
        return {
            "silent_ms": (now_us - (self.begun_us if last_us is None else last_us)) / 1000,
            "last_four_ms": None if four_us is None else four_us / 1000,
        }

    def has_moved(self) -> bool:
        """Whether more has been sent than its row shows."""
        return self._player is not None and self._player.frames != self._known.get("frames")

    def settle(self) -> bool:
        """Look at what is unsent once more; whether that was the last time."""
        before = self._known["bytes_unsent"]
        self._known.update(self.response.facts())
        has_settled = not self._known["bytes_unsent"] or self.response.is_gone()
        if not has_settled and self._recorder.pacer.now_us() > self._settles_until_us:
            has_settled = True
            self.response.watch_unsent(wanted=False)
        if not self._is_shown or has_settled or before != self._known["bytes_unsent"]:
            self._is_shown = True
            self._recorder.has_news(self)
        if not has_settled:
            self.response.watch_unsent(wanted=True)
        return has_settled

    def row(self) -> Row:
        """The request as it stands."""
        if self._is_over:
            return Row(state="ended", **self._known)
        self._count(None)
        return Row(state="open", **self._known | {"ends_well": None})

    def row_while_open(self) -> Row:
        """As `row`, without what is not certain before it has settled: that it has ended, and how."""
        return msgspec.structs.replace(
            Row(state="open", **self._known),
            ending=None,
            peer=None,
            peer_s=None,
            duration_ms=None,
            silent_ms=None,
            last_four_ms=None,
            ends_well=None,
        )


def plain_ending(status: int | None) -> str:
    """How a whole answer ends that nobody asked anything of."""
    return Unplanned.REFUSED if status is not None and status >= 400 else Close.TERMINATOR.value


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
        self._settling: dict[Hashable, list[Recording]] = {}
        self._timer: IDelayedCall | None = None
        self._is_late = False  # the timer is that of readers that take their time
        self.has_ended = False
        """Nobody waits for anything any more: rows are handed over at once."""

    def begin(self, request: Request, response: Response) -> Recording | None:
        """A recording of `request` and its `response`, unless it looks at the server rather than asks of it."""
        path = request.path
        if path in {b"/health", b"/metrics"} or path.startswith(b"/lab/"):
            return None
        self._settle_on(response.connection)
        self._number += 1
        recording = Recording(self, self._number, request, response)
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
        # A stream with a request pipelined after it hears of its end last, when the next may have ended already.
        connection = recording.response.connection
        self._settle_on(connection)
        self._settling.setdefault(connection, []).append(recording)
        if self._timer is None:
            self._timer = self.pacer.clock.callLater(_SETTLE_S, self._settle)
        elif self._is_late:
            self._timer.reset(_SETTLE_S)
        self._is_late = False

    def _settle_on(self, connection: Hashable) -> None:
        left = [recording for recording in self._settling.pop(connection, ()) if not recording.settle()]
        if left:
            self._settling[connection] = left

    def flush(self, *, look: bool = False) -> None:
        """Hand over what is known, and what is still waited for as it is now; `look`: what is open too."""
        if self._timer is not None:
            self._timer.cancel()
            self._settle()
        if look:
            for recording in self._live:
                if recording.has_moved():
                    self.has_news(recording)
        if self._batch is not None:
            self._batch.cancel()
            self._hand_over()

    def _settle(self) -> None:
        self._timer = None
        for connection in list(self._settling):
            self._settle_on(connection)
        if self._settling:
            self._is_late = True
            self._timer = self.pacer.clock.callLater(_SETTLE_LATE_S, self._settle)

    def _hand_over(self) -> None:
        self._batch = None
        rows, self._begun = self._begun, {}
        news, self._news = self._news, {}
        rows.update((number, recording.row()) for number, recording in news.items())
        if self._rows is not None:
            settling = {one.number for group in self._settling.values() for one in group}
            self._rows.put(rows, settling & rows.keys())

    def end_all(self, ending: str) -> None:
        """The process ends: so does everything that is still open."""
        for recording in list(self._live):
            recording.end(None, ending)
        self.flush()
        self.has_ended = True  # no timer is left behind
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
