"""What a stream has sent so far: a player counts, its recording and the metrics read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inference_lab.core.answer.end import Spoken
from inference_lab.core.journal.sent import SentCalls
from inference_lab.core.stream.events import NOTHING, ONE_THOUGHT, ONE_WORD, Delivered

if TYPE_CHECKING:
    from inference_lab.wire.counters import ModelCounters


class Sent:
    """Counts of a stream of `model`, which began at `begun_us` on the pacer's clock.

    Most of a stream is bursts of words, so of the one that is under way only the place is counted.
    """

    __slots__ = (
        "_begun_us", "_content", "_first_us", "_frames", "_gaps", "_is_thought", "_latest_us", "_model",
        "_place", "_thoughts", "_told", "_told_at", "calls",
    )  # fmt: skip

    def __init__(self, model: ModelCounters, begun_us: int) -> None:
        self.calls = SentCalls()
        self._model = model
        self._gaps = model.itl_us.counts
        self._place = 0  # in the burst under way: of its next frame
        self._is_thought = False  # what each of its frames is, or it is a word of text
        self._frames = 0  # all of these are without that burst
        self._content = 0
        self._thoughts = 0  # content frames of one word of reasoning
        self._told = NOTHING  # by what is not a plain word
        self._told_at = 0  # the content frames up to the last of these
        self._begun_us = begun_us
        self._first_us = 0  # when the first content went out, 0 before
        self._latest_us = [0, 0, 0, 0]  # when content frame n went out, at n mod 4; 0 before

    @property
    def frames(self) -> int:
        """Pieces of their own."""
        return self._frames + self._place

    @property
    def content_frames(self) -> int:
        """Those of content."""
        return self._content + self._place

    @property
    def said(self) -> Delivered:
        """What has been said."""
        plain = self.content_frames - self._told.content_frames
        thoughts = self._thoughts + self._place * self._is_thought
        spoken = Spoken(text=plain > thoughts, reasoning=thoughts > 0)
        return Delivered(plain, plain, spoken=spoken).then(self._told_by_now())

    def _told_by_now(self) -> Delivered:
        """What was said beside plain words, of which one may have followed an unreadable frame."""
        if self._told.unreadable and self.content_frames > self._told_at:
            return msgspec.structs.replace(self._told, unreadable=False)
        return self._told

    @property
    def _last_us(self) -> int:
        return self._latest_us[(self.content_frames - 1) & 3]

    @property
    def speaking_us(self) -> int:
        """From the first content to the last: the sum of the times between them."""
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

    def _count(self, said: Delivered) -> None:
        """A frame has gone out that says this."""
        if said is ONE_WORD:
            self._content += 1
        elif said is ONE_THOUGHT:
            self._content += 1
            self._thoughts += 1
        elif said is not NOTHING:
            self._told = self._told_by_now().then(said)
            self._content += said.content_frames
            self._told_at = self._content
            if said.calls:
                self.calls.take(said.calls)

    def _count_burst(self, size: int) -> None:
        """So many frames have gone out: a whole burst."""
        self._place = 0
        self._frames += size
        self._content += size
        if self._is_thought:
            self._thoughts += size

    def _note(self, before: int, now: int, now_us: int) -> None:
        """Of `before` content frames there are `now`: they went out together, and no time passes between them."""
        latest_us, gaps = self._latest_us, self._gaps
        last_us = latest_us[(before - 1) & 3]
        latest_us[(now - 1) & 3] = now_us
        if last_us:
            gaps[(now_us - last_us).bit_length()] += 1
        else:
            self._first_us = now_us
            self._model.ttft_us.add(now_us - self._begun_us)
        if now - before > 1:
            gaps[0] += now - before - 1
            for number in range(max(before, now - 4), now):
                latest_us[number & 3] = now_us
