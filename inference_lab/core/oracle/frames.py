"""What one frame of a stream says: ids, roles, text of every channel, finish and usage."""

from typing import Final

from inference_lab.core.answer.end import NORMAL_FINISHES, Spoken
from inference_lab.core.apis.reading import NAME_OF_END, Channel, ReadFrame
from inference_lab.core.oracle.calls import Calls, odd_text
from inference_lab.core.oracle.identity import Identity
from inference_lab.core.oracle.markup import OPENING_TOKENS, Markup, most_tokens
from inference_lab.core.oracle.raw import RawText
from inference_lab.core.oracle.usage import Usage
from inference_lab.core.oracle.verdict import Kind, Note, Report, shown
from inference_lab.core.oracle.words import WordChecker, WordsRead

_ORDER: Final = ("reasoning", "text", "call")
"""The channels as an answer speaks in them; none comes back once a later one has spoken."""

_CHANNELS: Final[dict[Channel, str]] = {
    "raw": "text",
    "reasoning": "reasoning",
    "text": "text",
    "call": "call",
}


class Answer:
    """All that the frames of one answer have said so far, in constant memory.

    `content_frames` counts those that said something, `is_raw` tells whether text comes with its markup, as on
    completions; `hidden_tokens` are those that usage counts and no frame shows.
    """

    def __init__(self, report: Report, said: WordsRead, hidden_tokens: int = 0) -> None:
        self._report, self._said, self.hidden_tokens = report, said, hidden_tokens
        self._reasoning = WordChecker(report, said, "reasoning")
        self._content = WordChecker(report, said, "text")
        self._raw = RawText(report, said)
        self._calls = Calls(report, said, self._check_time)
        self._identity = Identity(report)
        self.usage = Usage(report, self.countable)
        self._has_text = self._has_reasoning = False
        self._turn = 0
        self._failed = self._was_unreadable = self._failed_after_end = False
        self._unreadable: tuple[int, int, str] | None = None
        self._other_choices: int | None = None
        self.content_frames = 0
        self.is_raw = False
        self.finish: str | None = None
        self.done = False
        report.words_so_far = self.words_so_far

    @property
    def error(self) -> bool:
        """Whether an error came: in a frame, or as a frame that nobody can read with no text after it."""
        return self._failed or self._unreadable is not None

    @property
    def spoken(self) -> Spoken:
        """What decides how the answer ended."""
        calls, raw = self._calls.followed, self._raw
        closed = [call for call in calls if call.closed]
        return Spoken(
            self.finish,
            self._failed or self._was_unreadable,
            self._has_text or raw.has_text,
            self._has_reasoning or raw.has_reasoning,
            len(calls) + raw.calls_begun,
            len(closed) + raw.calls_closed,
            sum(not call.has_text for call in closed) + raw.calls_empty,
        )

    @property
    def markup(self) -> Markup:
        """What has been seen of its markup."""
        raw, calls = self._raw.markup, self._calls.followed
        return Markup(
            self._has_reasoning or raw.reasoning,
            self._has_text or raw.after_reasoning or bool(calls) or raw.calls > 0,
            len(calls) + raw.calls,
            self._calls.name_tokens + raw.call_names,
            sum(call.members for call in calls) + raw.members,
            sum(call.outline_characters for call in calls) + raw.outline,
            sum(call.key_characters for call in calls) + raw.keys,
        )

    def words_so_far(self) -> int:
        """Whole words of all channels, those that wait to be judged included."""
        held = self._reasoning.holds_word + self._content.holds_word + self._raw.words_held
        return self._said.total + held + sum(call.holds_word for call in self._calls.followed)

    def end(self, *, dead: bool) -> None:
        """The stream ends; on a dead one the last word may be torn."""
        if self._unreadable is not None:
            self._report.note(Note.NOT_JSON, self._unreadable[1])
        if self.error and self._failed_after_end:
            self._report.note(Note.ERROR_AFTER_END)
        if self.done and self.finish is None:
            self._report.note(Note.DONE_WITHOUT_FINISH)
        self._reasoning.end(dead=dead)
        self._content.end(dead=dead)
        self._raw.end(dead=dead, is_short=self.finish == "length")
        for call in self._calls.followed:
            call.end(dead=dead)

    def take(self, frame: ReadFrame) -> None:
        """What one frame of the stream says, or an answer that is no stream."""
        if frame.is_answer:
            self._identity.name(frame.names)
        speaks = self._say(frame)
        if frame.is_error:
            self.failed()
        elif speaks:
            self._identity.text(has_role=frame.has_role)
        elif frame.has_role:
            is_end = bool(frame.finish) or frame.counts is not None or self.finish is not None
            self._identity.role(is_end=is_end or self.done or self._failed)
        if frame.finish:
            self._finished(frame.finish)
        for number in frame.others:
            self._other_choice(number)
        self.content_frames += speaks
        if frame.counts is not None:
            self.usage.take(frame.counts, is_final=not frame.is_answer or self.finish is not None)
        if frame.is_end:
            self.done_marker()

    def failed(self) -> None:
        """An error, in whatever form."""
        self._failed = True
        self._failed_after_end = self._failed_after_end or self._has_ended

    def unreadable(self, message: str) -> None:
        """A whole frame that is no JSON object: the end of a dead stream, or wrong where text comes after it."""
        offset, count, first = self._unreadable or (self._report.offset, 0, message)
        self._unreadable = offset, count + 1, first
        self._was_unreadable = True
        self._failed_after_end = self._failed_after_end or self._has_ended

    def done_marker(self) -> None:
        """The frame that says that the stream is over."""
        if self.done:
            self._report.note(Note.DONE_REPEATED)
        self.done = True

    @property
    def _has_ended(self) -> bool:
        """Whether the answer has said that it is complete."""
        return self.done or self.finish in NORMAL_FINISHES

    def countable(self) -> tuple[int, int]:
        """How many tokens usage may count by now: words, and as many more as markup may have cost."""
        words, hidden = self.words_so_far(), self.hidden_tokens
        least = words + (hidden if words else 0)
        parts = self._reasoning.is_torn + self._content.is_torn + self._raw.held_characters
        opening = OPENING_TOKENS if not words and self.finish == "length" else 0
        return least, words + hidden + parts + opening + most_tokens(self.markup)

    def _other_choice(self, number: object) -> None:
        """A choice beside the one that was asked for; what it says is nothing of this answer."""
        if self._other_choices is None:
            self._other_choices = self._report.find(
                Kind.OTHER_CHOICE, f"a choice {shown(number)} beside choice 0"
            )
        else:
            self._report.extend(self._other_choices)

    def _say(self, frame: ReadFrame) -> bool:
        """The texts and calls of a frame; whether it says anything."""
        self.is_raw = self.is_raw or frame.is_raw
        speaks = False
        for text in frame.texts:
            if text.name:
                self._report.find(Kind.OTHER_TEXT, odd_text(text), _CHANNELS[text.channel])
                continue
            speaks = True
            self._check_time(_CHANNELS[text.channel], text.text)
            if text.channel == "raw":
                self._raw.feed(text.text)
            elif text.channel == "reasoning":
                self._has_reasoning = True
                self._reasoning.feed(text.text)
            else:
                self._has_text = True
                self._content.feed(text.text)
        for call in frame.calls:
            speaks = self._calls.take(call) or speaks
        return speaks

    def _check_time(self, channel: str, text: str) -> None:
        """Text may come now, or it may not."""
        if self._unreadable is not None:
            offset, count, message = self._unreadable
            self._unreadable = None
            self._report.find(Kind.NOT_JSON, message, offset=offset, count=count)
        if self._failed:
            self._report.find(Kind.TEXT_AFTER_ERROR, f"{shown(text)} comes after an error", channel)
        elif self.done:
            self._report.find(Kind.TEXT_AFTER_DONE, f"{shown(text)} comes after {NAME_OF_END}", channel)
        elif self.finish is not None:
            self._report.find(Kind.TEXT_AFTER_FINISH, f"{shown(text)} comes after the finish", channel)
        turn = _ORDER.index(channel)
        if turn < self._turn:
            self._report.find(Kind.OTHER_TEXT, f"{channel} {shown(text)} comes after {_ORDER[self._turn]}")
        self._turn = turn

    def _finished(self, finish: str) -> None:
        if self.finish is None:
            self.finish = finish
        elif self.finish == finish:
            self._report.note(Note.FINISH_REPEATED)
        else:
            change = f"{shown(self.finish)}, then {shown(finish)}"
            self._report.find(Kind.TWO_FINISHES, f"two finish reasons: {change}")
