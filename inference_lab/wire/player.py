"""The player: puts a script on the wire, event by event, under the consumer's back-pressure.

It knows neither modes nor endings: it writes frames, waits for deadlines or tokens, and hands the ending over.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from inference_lab.core.answer.end import Spoken
from inference_lab.core.faults.death import Close
from inference_lab.core.journal.calls import SentCalls
from inference_lab.core.journal.endings import Unplanned
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
    Said,
    Special,
    Turn,
)
from inference_lab.wire.response import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.python.failure import Failure

    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.request import LabRequest
    from inference_lab.wire.response import Ending

_log: Final = Logger()

_OK: Final = 200
_BURST_BYTES: Final = 65_536
"""Frames that are due together are written together up to this many bytes; then other streams get their turn."""

_SEND_BYTES: Final = 1024
"""What a send of its own costs, in the bytes that a joint one writes in the same time."""


@implementer(IPushProducer)
class Player:
    """Plays `script` as the response of `request`.

    `on_end(player, outcome)` is called exactly once, when the response is over or its connection gone. What has been
    sent till then is counted: `frames` (pieces of their own), `body_bytes`, `content_frames`, and what they `said`.
    """

    def __init__(
        self,
        request: LabRequest,
        script: Iterator[Event],
        *,
        pacer: Pacer,
        on_end: Callable[[Player, Outcome], None],
    ) -> None:
        self.request = request
        self._response = request.response
        self.frames = 0
        self.body_bytes = 0
        self.content_frames = 0
        self.calls = SentCalls()
        self._thoughts = 0  # of the content frames, those of a word of reasoning
        self._told = NOTHING  # by what is not a plain word
        self._told_at = 0  # the content frames up to the last of these
        self._begun_us = 0
        self._first_us = 0  # when the first content went out, 0 before
        self._last_us = 0
        self._latest_us = [0, 0, 0, 0]  # when content frame n went out, at n mod 4; 0 before
        self._gaps = request.model.further_us.counts
        self._script: Iterator[Event | Spelled] = script
        self._pacer = pacer
        self._on_end = on_end
        self._due_us = 0
        self._paused = False
        self._next: Event | Spelled | None = None  # taken from the script, not carried out yet
        self._burst: list[bytes] | None = None  # that is under way, as it goes out
        self._place = 0  # of its next frame
        self._every_us = 0  # between its frames; 0 where they wait for tokens
        self._is_thought = False
        self._slot: int | None = None  # waiting for a deadline
        self._has_more = False  # is due, and waits for a next turn
        self._tokens = 0  # produced by the engine and not used yet; negative while awaited
        self._close: Close | None = None
        self._ending: Ending | None = None
        self._cause: Outcome | None = None  # why the response ends otherwise than its script says
        self._over = False
        self._seen_bytes: int | None = None  # see `stuck_us`
        self._stuck_since_us = 0

    def start(self) -> None:
        """Play what is due."""
        self.request.notifyFinish().addBoth(self._connection_done)
        self._response.begin(self)
        self._begun_us = self._due_us = self._pacer.now_us()
        self._run()

    @property
    def said(self) -> Said:
        """What has been said so far."""
        plain = self.content_frames - self._told.content_frames
        spoken = Spoken(text=plain > self._thoughts, reasoning=self._thoughts > 0)
        return Said(plain, plain, spoken=spoken).then(self._told_by_now())

    def _told_by_now(self) -> Said:
        """What was said beside plain words, of which one may have followed an unreadable frame."""
        if self._told.unreadable and self.content_frames > self._told_at:
            return msgspec.structs.replace(self._told, unreadable=False)
        return self._told

    @property
    def speaking_us(self) -> int:
        """From the first content to the last so far: the sum of the times between them."""
        return self._last_us - self._first_us

    @property
    def last_content_us(self) -> int | None:
        """When the last content frame went out, on the pacer's clock."""
        return self._last_us or None

    @property
    def last_four_us(self) -> int | None:
        """What the last four content frames took, from the first of them to the last."""
        first = self._latest_us[self.content_frames & 3]
        return self._last_us - first if first else None

    @property
    def is_paused(self) -> bool:
        """Whether it waits for its reader."""
        return self._paused

    @property
    def is_stalled(self) -> bool:
        """Whether it says nothing more, but for heartbeats, and does not end."""
        return self._close is Close.HANG or self._told.hangs

    @property
    def close(self) -> Close | None:
        """The ending that its script has come to, if it has."""
        return self._close

    # -- what the consumer says (IPushProducer)

    def pauseProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader is slow: write nothing more."""
        self._paused = True

    def resumeProducing(self) -> None:  # noqa: N802 - IPushProducer
        """The reader has caught up: write what has become due."""
        self._paused = False
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
        if self._ending is not None:
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
        if self._slot is None and not self._has_more and self._tokens >= 0 and self._close is None:
            self._play(self._pacer.now_us())

    def _play(self, now_us: int) -> None:
        """Play what is due. A defect ends this stream only, abruptly, rather than leave it open and silent."""
        before = self.content_frames
        try:
            # Of a burst that is under way, first: in a paced stream that is all there is.
            burst = self._burst
            batch = [] if burst is None or self._paused else self._due_of_burst(burst, now_us)
            if self._burst is None:
                self._advance(batch, now_us)
            elif batch:
                self._write(batch)
            count = self.content_frames - before
            if count:
                self._note(count, now_us)
        except Exception:  # noqa: BLE001 - whatever it is, the log has it whole
            _log.failure("{request}: a defect in its script", request=self.request)
            self.cut(Unplanned.DEFECT, "a defect: reset")

    def _note(self, count: int, now_us: int) -> None:
        """So many content frames have gone out, together: no time passes between them."""
        gaps, latest_us = self._gaps, self._latest_us
        if self._last_us:
            gaps[(now_us - self._last_us).bit_length()] += 1
        else:
            self._first_us = now_us
            self.request.model.first_us.add(now_us - self._begun_us)
        self._last_us = now_us
        latest_us[(self.content_frames - 1) & 3] = now_us
        if count > 1:
            gaps[0] += count - 1
            for number in range(self.content_frames - min(count, 4), self.content_frames - 1):
                latest_us[number & 3] = now_us

    def _advance(self, batch: list[bytes], now_us: int) -> None:
        """Go on in the script, after `batch`, which is due."""
        batch_bytes = sum(map(len, batch))
        while not self._over:
            event, self._next = self._next if self._next is not None else next(self._script), None
            if self._paused and isinstance(event, (Frame, Burst, Spelled)):
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
                if event.said is ONE_WORD:
                    self.content_frames += 1
                elif event.said is not NOTHING:
                    self._count(event.said)
            elif isinstance(event, Burst):
                frames = self._begin_burst(event, now_us)
                batch += frames
                batch_bytes += sum(map(len, frames))
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
            self.body_bytes += len(event.data)
            self._response.send(event.data)
            return len(event.data)
        self._script = chain(self._response.special(event), self._script)
        return 0

    def _begin_burst(self, burst: Burst, now_us: int) -> list[bytes]:
        """The frames that are due at once; where there are more, the burst is under way from now on."""
        frames = self._response.spell_all(burst.frames)
        self._is_thought = burst.said is ONE_THOUGHT
        if not (burst.every_ms or burst.awaited):
            self._count_plain(len(frames))
            return frames
        self._burst, self._place, self._every_us = frames, 0, burst.every_ms * 1000
        return self._due_of_burst(frames, now_us)

    def _due_of_burst(self, burst: list[bytes], now_us: int) -> list[bytes]:
        """The frames whose time has come, or whose tokens are there; the next one is waited for."""
        begin, size = self._place, len(burst)
        end = begin + 1
        if self._every_us:
            due_us = self._due_us
            while end < size:
                due_us += self._every_us
                if due_us > now_us:
                    self._slot = self._pacer.at(due_us, self._deadline)
                    break
                end += 1
            self._due_us = due_us
        else:
            end = min(size, end + self._tokens)
            self._tokens -= end - begin - (end == size)
        if end == size:
            self._burst = None
        self._place = end
        self._count_plain(end - begin)
        return burst[begin:end]

    def _count_plain(self, count: int) -> None:
        self.content_frames += count
        if self._is_thought:
            self._thoughts += count

    def _write_apart(self, batch: list[bytes], data: bytes) -> None:
        """A frame in a send of its own, after those that were due before it."""
        if batch:
            self._write(batch)
            batch.clear()
        self._write([data])

    def _count(self, said: Said) -> None:
        if said is ONE_THOUGHT:
            self.content_frames += 1
            self._thoughts += 1
            return
        self._told = self._told_by_now().then(said)
        self.content_frames += said.content_frames
        self._told_at = self.content_frames
        if said.calls:
            self.calls.take(said.calls)

    def _write(self, batch: list[bytes], *, last: bool = False) -> None:
        # Also without a frame: the head may wait for this write, and the end of the response comes with it.
        data = batch[0] if len(batch) == 1 else b"".join(batch)
        self.frames += len(batch)
        self.body_bytes += len(data)
        self._response.send(data, last=last)

    def _deadline(self) -> None:
        # Nothing else is waited for: a slot is asked for only when the script has come to a pause.
        self._slot = None
        self._play(self._pacer.turn_us)

    def _next_turn(self) -> None:
        self._has_more = False
        self._run()

    def _end(self, close: Close) -> None:
        self._close = close
        # A stall may last for hours, and what is left of its script is a quarter of its memory.
        self._script = iter(())
        self._ending = self._response.end(close)
        if close is Close.STALE and not self._over:
            # All that was asked for has been sent: what the client does on the connection later is no part of it.
            self._finished(Outcome(close.ending))

    # -- the end

    def _connection_done(self, result: Failure | None) -> None:
        """The response was finished (None), or its connection was lost."""
        ending = self._ending
        if ending is not None and ending.lost_bytes:
            text = f"reader made no progress: reset, {ending.lost_bytes} bytes lost"
            outcome = Outcome(text, Unplanned.READER_TIMEOUT)
        elif self._cause is not None:
            outcome = self._cause
        elif self._close is not None and (result is None or (ending is not None and ending.carried_out)):
            made = self._close if ending is None else ending.close
            outcome = Outcome(made.ending, None if made is self._close else made.ending)
        elif self._response.was_cut():  # by the channel, for what the client has sent
            is_stale = self._close is Close.STALE
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
        if self._ending is not None:
            self._ending.stop()
        self.request.model.further_us.sum_us += self.speaking_us
        self._on_end(self, outcome)
