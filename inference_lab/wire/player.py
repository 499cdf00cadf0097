"""The player: puts a script on the wire, event by event, under the consumer's back-pressure.

It knows neither modes nor endings: it writes frames, waits for deadlines or tokens, and hands the ending over.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from inference_lab.core.faults.death import Close
from inference_lab.core.journal.row import Unplanned
from inference_lab.core.stream.chunks import Spelled
from inference_lab.core.stream.events import (
    NOTHING,
    ONE_THOUGHT,
    ONE_WORD,
    Await,
    Burst,
    Event,
    Frame,
    Head,
    Pause,
    Special,
    Turn,
)
from inference_lab.wire.response import Outcome
from inference_lab.wire.sent import Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.python.failure import Failure

    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.request import LabRequest

_log: Final = Logger()

_OK: Final = 200
_BURST_BYTES: Final = 65_536
"""Frames that are due together are written together up to this many bytes; then other streams get their turn."""

_SEND_BYTES: Final = 1024
"""What a send of its own costs, in the bytes that a joint one writes in the same time."""


@implementer(IPushProducer)
class Player(Sent):
    """Plays `script` as the response of `request`.

    `on_end(player, outcome)` is called exactly once, when the response is over or its connection gone.
    """

    # Thousands of them are looked at in turn, so what each takes in the processor's caches counts.
    __slots__ = (
        "__weakref__", "_burst", "_cause", "_due_us", "_every_us", "_has_more", "_next", "_on_end", "_over",
        "_pacer", "_response", "_script", "_seen_bytes", "_slot", "_stuck_since_us", "_tokens", "close",
        "is_paused", "request",
    )  # fmt: skip

    def __init__(
        self,
        request: LabRequest,
        script: Iterator[Event],
        *,
        pacer: Pacer,
        on_end: Callable[[Player, Outcome], None],
    ) -> None:
        super().__init__(request.model, pacer.now_us())
        self.request = request
        self._response = request.response
        self._script: Iterator[Event | Spelled] = script
        self._pacer = pacer
        self._on_end = on_end
        self._due_us = self._begun_us
        self.is_paused = False  # while its reader is slow
        self._next: Event | Spelled | None = None  # taken from the script, not carried out yet
        self._burst: list[bytes] | None = None  # that is under way, as it goes out
        self._every_us = 0  # between its frames; 0 where they wait for tokens
        self._slot: int | None = None  # waiting for a deadline
        self._has_more = False  # is due, and waits for a next turn
        self._tokens = 0  # produced by the engine and not used yet; negative while awaited
        self.close: Close | None = None  # that its script has come to
        self._cause: Outcome | None = None  # why the response ends otherwise than its script says
        self._over = False
        self._seen_bytes: int | None = None  # see `stuck_us`
        self._stuck_since_us = 0

    def start(self) -> None:
        """Play what is due."""
        self.request.notifyFinish().addBoth(self._connection_done)
        self._response.begin(self)
        self._run()

    @property
    def body_bytes(self) -> int:
        """What has been sent of the body, its framing included."""
        return self._response.body_bytes

    @property
    def is_stalled(self) -> bool:
        """Whether it says nothing more, but for heartbeats, and does not end."""
        return self.close is Close.HANG or self._told.hangs

    # -- what the consumer says (IPushProducer)

    def pauseProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader is slow: write nothing more."""
        self.is_paused = True

    def resumeProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader has caught up: write what has become due."""
        self.is_paused = False
        self._run()

    def stopProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The connection is gone; `_connection_done` follows and cleans up."""

    # -- what the engine says

    def on_tokens(self, count: int) -> None:
        """`count` more tokens have been produced."""
        awaited = self._tokens < 0
        self._tokens += count
        if awaited and self._tokens >= 0:
            self._run()

    # -- what the service says

    def cut(self, ending: str, cause: str) -> None:
        """End the connection now, whatever the script says: `ending` in a word, `cause` for the log."""
        self._cause = Outcome(cause, ending)
        self._response.cut()

    def end_now(self, cause: str) -> None:
        """The process ends: report the response as over."""
        self._finished(Outcome(cause, cause))

    def stuck_us(self, now_us: int) -> int:
        """For how long the reader has taken nothing although something was there for it; 0 if nothing was."""
        if self.close is not None:
            return 0  # the ending has its own patience
        if self._seen_bytes == self.body_bytes:
            return 0  # all of it was acknowledged at the last look, and nothing was written since
        unsent = self._response.unsent_bytes()
        delivered = self.body_bytes - unsent
        if not unsent:
            self._seen_bytes = self.body_bytes
        elif delivered != self._seen_bytes:
            self._seen_bytes = delivered
            self._stuck_since_us = now_us
            return 0
        return now_us - self._stuck_since_us if unsent else 0

    # -- playing

    def _run(self) -> None:
        if self._slot is None and not self._has_more and self._tokens >= 0 and self.close is None:
            self._play(self._pacer.now_us())

    def _deadline(self) -> None:
        """What was waited for is due: nearly always one frame of a paced burst, and another comes after it."""
        now_us = self._pacer.turn_us
        burst = self._burst
        if burst is not None and not self.is_paused:
            place = self._place
            due_us = self._due_us + self._every_us
            if due_us > now_us and place + 1 < len(burst):
                self._response.write(burst[place])
                self._place = place + 1
                self._due_us = due_us
                self._slot = self._pacer.at(due_us, self._deadline)
                number, latest_us = self._content + place, self._latest_us
                self._gaps[(now_us - latest_us[(number - 1) & 3]).bit_length()] += 1
                latest_us[number & 3] = now_us
                return
        self._slot = None
        self._play(now_us)

    def _play(self, now_us: int) -> None:
        """Play what is due. A defect ends this stream only, abruptly, rather than leave it open and silent."""
        before = self._content + self._place
        try:
            burst = self._burst
            if burst is None:
                self._advance([], now_us)
            elif not self.is_paused:
                data = self._take(burst, now_us)
                if self._burst is None:
                    self._advance([data], now_us)
                else:
                    self._response.send(data)
            now = self._content + self._place
            if now != before:
                self._note(before, now, now_us)
        except Exception:  # noqa: BLE001 - whatever it is, the log has it whole
            _log.failure("{request}: a defect in its script", request=self.request)
            self.cut(Unplanned.DEFECT, "a defect: reset")

    def _take(self, burst: list[bytes], now_us: int) -> bytes:
        """What is due of a burst; the next frame is waited for, for its time or its token."""
        place, size = self._place, len(burst)
        data = burst[place]  # for which it has been waited
        place += 1
        if self._every_us:
            due_us = self._due_us
            while place < size:
                due_us += self._every_us
                if due_us > now_us:
                    self._due_us, self._place = due_us, place
                    self._slot = self._pacer.at(due_us, self._deadline)
                    return data
                data += burst[place]
                place += 1
            self._due_us = due_us
        else:
            while place < size:
                self._tokens -= 1
                if self._tokens < 0:
                    self._place = place
                    return data
                data += burst[place]
                place += 1
        self._burst = None
        self._count_burst(size)
        return data

    def _advance(self, batch: list[bytes], now_us: int) -> None:
        """Go on in the script, after `batch`, which is due."""
        batch_bytes = sum(map(len, batch))
        while not self._over:
            event, self._next = self._next if self._next is not None else next(self._script), None
            if self.is_paused and isinstance(event, (Frame, Burst, Spelled)):
                self._next = event
                break
            if isinstance(event, Frame):
                data = self._response.spell(event.data)
                if event.alone:
                    self._write_apart(batch, data)
                    batch_bytes += _SEND_BYTES
                else:
                    batch.append(data)
                batch_bytes += len(event.data)
                self._frames += 1
                if event.said is ONE_WORD:
                    self._content += 1
                elif event.said is not NOTHING:
                    self._count(event.said)
            elif isinstance(event, Burst):
                data = self._begin(event, now_us)
                batch.append(data)
                batch_bytes += len(data)
                if self._burst is not None:  # there is more of it, and not yet
                    break
            elif isinstance(event, Pause):
                self._due_us += event.ms * 1000
                if self._due_us > now_us:
                    self._slot = self._pacer.at(self._due_us, self._deadline)
                    break
            elif isinstance(event, Await):
                self._tokens -= event.tokens
                if self._tokens < 0:
                    break
            elif isinstance(event, Close) and not (end := self._response.end_before(event)):
                self._write(batch, last=event is Close.TERMINATOR)
                self._end(event)
                return
            elif isinstance(event, Close):
                self._script = iter((Spelled(end), event))
            else:
                batch_bytes += self._take_rare(event, batch)
            if batch_bytes >= _BURST_BYTES:
                self._has_more = True
                self._pacer.soon(self._next_turn)
                break
        self._write(batch)

    def _take_rare(self, event: Head | Turn | Spelled | Special, batch: list[bytes]) -> int:
        """Carry out what a stream has once, or a broken one; what it costs, in bytes."""
        if isinstance(event, Head):
            self._response.head(event)
            recording = self.request.recording
            if event.status != _OK and recording is not None:
                recording.tell_wait(event.headers)
            return 0
        if isinstance(event, Turn):
            return _BURST_BYTES
        if isinstance(event, Spelled):  # it goes alone: what is framed before it goes first
            self._write(batch)
            batch.clear()
            self._count(event.said)
            self._response.send(event.data)
            return len(event.data)
        self._script = chain(self._response.special(event), self._script)
        return 0

    def _begin(self, burst: Burst, now_us: int) -> bytes:
        """What is due of a burst at once; where there is more, it is under way from now on."""
        frames = self._response.spell_all(burst.frames)
        self._is_thought = burst.said is ONE_THOUGHT
        if not (burst.every_ms or burst.awaited):
            self._count_burst(len(frames))
            return b"".join(frames)
        self._burst, self._every_us = frames, burst.every_ms * 1000
        return self._take(frames, now_us)

    def _write_apart(self, batch: list[bytes], data: bytes) -> None:
        """A frame in a send of its own, after those that were due before it."""
        if batch:
            self._write(batch)
            batch.clear()
        self._write([data])

    def _write(self, batch: list[bytes], *, last: bool = False) -> None:
        # Also without a frame: the head may wait for this write, and the end of the response comes with it.
        self._response.send(batch[0] if len(batch) == 1 else b"".join(batch), last=last)

    def _next_turn(self) -> None:
        self._has_more = False
        self._run()

    def _end(self, close: Close) -> None:
        self.close = close
        # A stall may last for hours, and what is left of its script is a quarter of its memory.
        self._script = iter(())
        self._response.end(close)
        if close is Close.STALE and not self._over:
            # All that was asked for has been sent: what the client does on the connection later is no part of it.
            self._finished(Outcome(close.ending))

    # -- the end

    def _connection_done(self, result: Failure | None) -> None:
        """The response was finished (None), or its connection was lost."""
        made, lost_bytes = self._response.close, self._response.lost_bytes
        if lost_bytes:
            text = f"reader made no progress: reset, {lost_bytes} bytes lost"
            outcome = Outcome(text, Unplanned.READER_TIMEOUT)
        elif self._cause is not None:
            outcome = self._cause
        elif made is not None and (result is None or self._response.carried_out):
            outcome = Outcome(made.ending, None if made is self.close else made.ending)
        elif result is not None and self._response.peer(result) == "none":
            # It was cut off by the channel, for what the client has sent.
            is_stale = self.close is Close.STALE
            outcome = (
                Outcome("stale: reset") if is_stale else Outcome("pipelined: reset", Unplanned.PIPELINED)
            )
        else:
            outcome = Outcome("client left", Unplanned.CLIENT_LEFT, result)
        self._finished(outcome)

    def _finished(self, outcome: Outcome) -> None:
        if self._over:
            return
        self._over = True
        if self._slot is not None:
            self._pacer.forget(self._slot, self._deadline)
        if self._has_more:
            self._pacer.forget_soon(self._next_turn)
        self._response.over()
        self._model.itl_us.sum_us += self.speaking_us
        self._on_end(self, outcome)
