"""What one frame of a stream says: ids, roles, text of every channel, finish and usage."""

from typing import Any, Final

from inference_lab.core.answer.end import NORMAL_FINISHES, Spoken
from inference_lab.core.oracle.calls import Calls, text_of
from inference_lab.core.oracle.identity import Identity
from inference_lab.core.oracle.markup import OPENING_TOKENS, Markup, most_tokens
from inference_lab.core.oracle.raw import RawText
from inference_lab.core.oracle.usage import Usage
from inference_lab.core.oracle.verdict import Kind, Note, Report, shown
from inference_lab.core.oracle.words import Said, WordChecker

_ORDER: Final = ("reasoning", "text", "call")
"""The channels as an answer speaks in them; none comes back once a later one has spoken."""

_REASONING_KEYS: Final = ("reasoning_content", "reasoning")
"""As different servers call it; where both are there, they say the same."""

_ANSWER_KEYS: Final = ("choices", "output", "candidates", "content")
"""Where the APIs keep their lists of answers."""


class Answer:
    """All that the frames of one answer have said so far, in constant memory.

    `content_frames` counts those that said something, `is_raw` tells whether text comes with its markup, as on
    completions; `hidden_tokens` are those that usage counts and no frame shows.
    """

    def __init__(self, report: Report, said: Said, hidden_tokens: int = 0) -> None:
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

    def whole(self, frame: dict[str, Any]) -> None:
        """The one JSON object of an answer that is no stream; an object without an answer in it is an error."""
        if any(isinstance(frame.get(key), list) for key in _ANSWER_KEYS):
            self.frame(frame)
        else:
            self.failed()

    def frame(self, frame: dict[str, Any]) -> None:
        """One JSON object of the stream."""
        if frame.get("error") is not None or frame.get("object") == "error" or frame.get("type") == "error":
            self.failed()
            return
        choices = frame.get("choices")
        choices = (
            [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        )
        usage = frame.get("usage")
        has_usage = isinstance(usage, dict)
        if choices:  # a frame without choices says nothing but its usage, whoever put it in
            self._identity.name(frame)
        speaks = False
        for place, choice in enumerate(choices):
            if choice.get("error") is not None:
                self.failed()
            elif place or not (choice.get("index") is None or choice["index"] == 0):
                self._other_choice(choice)
            else:
                speaks = self._choice(choice, has_usage=has_usage)
        self.content_frames += speaks
        if isinstance(usage, dict):
            self.usage.take(usage, is_final=not choices or self.finish is not None)

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
        """`[DONE]`."""
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

    def _other_choice(self, choice: dict[str, Any]) -> None:
        """A choice beside the one that was asked for; what it says is nothing of this answer."""
        if self._other_choices is None:
            sentence = f"a choice {shown(choice.get('index', 'without an index'))} beside choice 0"
            self._other_choices = self._report.find(Kind.OTHER_CHOICE, sentence)
        else:
            self._report.extend(self._other_choices)

    def _choice(self, choice: dict[str, Any], *, has_usage: bool) -> bool:
        """Choice 0 of a frame; whether it says anything."""
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else choice.get("message")
        delta = delta if isinstance(delta, dict) else {}
        finish, role = choice.get("finish_reason"), delta.get("role")
        speaks = False
        if "text" in choice:
            self.is_raw = True
            if text := text_of(choice, "text", "text", self._report):
                speaks = self._say(self._raw, "text", text)
        if "reasoning_content" in delta or "reasoning" in delta:
            texts = [text_of(delta, name, "reasoning", self._report) for name in _REASONING_KEYS]
            if text := texts[0] or texts[1]:
                speaks = self._has_reasoning = self._say(self._reasoning, "reasoning", text)
        if "content" in delta and (text := text_of(delta, "content", "text", self._report)):
            speaks = self._has_text = self._say(self._content, "text", text)
        if "tool_calls" in delta:
            speaks = self._take_calls(delta["tool_calls"]) or speaks
        if speaks:
            self._identity.text(has_role=bool(role))
        elif role:
            is_end = bool(finish) or has_usage or self.finish is not None or self.done or self._failed
            self._identity.role(is_end=is_end)
        if isinstance(finish, str) and finish:
            self._finished(finish)
        return speaks

    def _say(self, words: WordChecker | RawText, channel: str, text: str) -> bool:
        """Text of one channel."""
        self._check_time(channel, text)
        words.feed(text)
        return True

    def _take_calls(self, calls: object) -> bool:
        """The calls of a delta; whether there is any."""
        if calls is None:
            return False
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            self._report.find(Kind.OTHER_TEXT, "tool_calls is no list of calls", "call")
            return False
        taken = [self._calls.take(call, place) for place, call in enumerate(calls)]
        return any(taken)

    def _check_time(self, channel: str, text: str) -> None:
        """Text may come now, or it may not."""
        if self._unreadable is not None:
            offset, count, message = self._unreadable
            self._unreadable = None
            self._report.find(Kind.NOT_JSON, message, offset=offset, count=count)
        if self._failed:
            self._report.find(Kind.TEXT_AFTER_ERROR, f"{shown(text)} comes after an error", channel)
        elif self.done:
            self._report.find(Kind.TEXT_AFTER_DONE, f"{shown(text)} comes after [DONE]", channel)
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
