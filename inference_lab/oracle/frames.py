"""What one frame of a stream says: ids, roles, text of every channel, finish and usage."""

from typing import Any, Final

from inference_lab.oracle.arguments import CallJson
from inference_lab.oracle.raw import RawText
from inference_lab.oracle.verdict import Kind, Note, Report
from inference_lab.oracle.words import Said, WordChecker

_CALL_LIMIT: Final = 128
"""Calls of one answer that are followed; more are no answer of ours."""

_SHOWN_CHARACTERS: Final = 80
_ID_CHARACTERS: Final = 256
"""How much of each call's id is kept and compared."""

_ORDER: Final = ("reasoning", "text", "call")
"""The channels as an answer speaks in them; none comes back once a later one has spoken."""


class Answer:
    """All that the frames of one answer have said so far, in constant memory."""

    def __init__(self, report: Report, said: Said) -> None:
        self._report, self._said = report, said
        self._reasoning = WordChecker(report, said, "reasoning")
        self._content = WordChecker(report, said, "text")
        self._raw = RawText(report, said)
        self._calls: dict[int, CallJson] = {}
        self._call_ids: dict[int, str] = {}
        self._named_calls: set[int] = set()
        self._identity: dict[str, object] = {}
        self._named: tuple[object, ...] = ()
        self._spoken = self._spoken_now = self._role_with_text = False
        self._turn = 0
        self._failed = False
        self._unreadable: tuple[int, int, str] | None = None
        self.finish: str | None = None
        self.done = False
        self.completion_tokens: int | None = None
        report.words_so_far = self.words_so_far

    @property
    def error(self) -> bool:
        """Whether an error came: in a frame, or as a frame that nobody can read with no text behind it."""
        return self._failed or self._unreadable is not None

    @property
    def has_markup(self) -> bool:
        """Whether tokens were spent on more than words."""
        return self._raw.markup or bool(self._calls) or "reasoning" in self._said.words

    @property
    def has_open_call(self) -> bool:
        """Whether a call's JSON or tags have not come to their end."""
        return self._raw.is_open or any(not call.closed for call in self._calls.values())

    def words_so_far(self) -> int:
        """Whole words of all channels, those that wait to be judged included."""
        held = self._reasoning.holds_word + self._content.holds_word + self._raw.words_held
        return self._said.total + held + sum(call.holds_word for call in self._calls.values())

    def end(self, *, dead: bool) -> None:
        """The stream ends; on a dead one the last word may be torn."""
        if self._unreadable is not None:
            self._report.note(Note.NOT_JSON, self._unreadable[1])
        if self.done and self.finish is None:
            self._report.note(Note.DONE_WITHOUT_FINISH)
        self._reasoning.end(dead=dead)
        self._content.end(dead=dead)
        self._raw.end(dead=dead)
        for call in self._calls.values():
            call.end(dead=dead)

    def frame(self, frame: dict[str, Any]) -> None:
        """One JSON object of the stream."""
        if frame.get("error") is not None or frame.get("object") == "error" or frame.get("type") == "error":
            self.failed()
            return
        self._identify(frame)
        choices = frame.get("choices")
        choices = (
            [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        )
        spoken, self._spoken_now = self._spoken, False
        for choice in choices:
            self._choice(choice, has_usage=isinstance(frame.get("usage"), dict), spoken=spoken)
        usage = frame.get("usage")
        if isinstance(usage, dict):
            self._usage(usage, is_final=not choices or self.finish is not None)

    def failed(self) -> None:
        """An error, in whatever form."""
        self._failed = True

    def unreadable(self, message: str) -> None:
        """A whole frame that is no JSON object: the end of a dead stream, or wrong where text comes behind it."""
        offset, count, first = self._unreadable or (self._report.offset, 0, message)
        self._unreadable = offset, count + 1, first

    def done_marker(self) -> None:
        """`[DONE]`."""
        if self.done:
            self._report.note(Note.DONE_REPEATED)
        self.done = True

    def _identify(self, frame: dict[str, Any]) -> None:
        named = frame.get("id"), frame.get("model"), frame.get("created")
        if named == self._named:
            return
        self._named = named
        for name, kind in (("id", Kind.ID_CHANGED), ("model", Kind.MODEL_CHANGED), ("created", None)):
            value = frame.get(name)
            if not isinstance(value, str | int) or value == "":
                continue
            known = self._identity.setdefault(name, value)
            if known != value and kind:
                change = f"{_shown(known)} becomes {_shown(value)}"
                self._report.find(kind, f"the {name} changes: {change}")
            elif known != value:
                self._report.note(Note.CREATED_CHANGED)
            self._identity[name] = value

    def _choice(self, choice: dict[str, Any], *, has_usage: bool, spoken: bool) -> None:
        if choice.get("error") is not None:
            self.failed()
            return
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else choice.get("message")
        delta = delta if isinstance(delta, dict) else {}
        finish = choice.get("finish_reason")
        text = choice.get("text")
        if isinstance(text, str) and text:
            self._say(self._raw, "text", text)
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            self._say(self._reasoning, "reasoning", reasoning)
        content = delta.get("content")
        if isinstance(content, str) and content:
            self._say(self._content, "text", content)
        calls = delta.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._call(call, place)
        if delta.get("role") and not self._spoken_now and spoken and not (finish or has_usage):
            if self._role_with_text:
                self._report.note(Note.ROLE_REPEATED)
            else:
                self._report.find(Kind.SECOND_ROLE, "a role comes on its own behind the first text")
        elif delta.get("role") and self._spoken_now and spoken:
            self._role_with_text = True
            self._report.note(Note.ROLE_REPEATED)
        if isinstance(finish, str) and finish:
            self._finished(finish)

    def _say(self, words: WordChecker | RawText, channel: str, text: str) -> None:
        """Text of one channel."""
        self._check_time(channel, text)
        self._spoken = self._spoken_now = True
        words.feed(text)

    def _check_time(self, channel: str, text: str) -> None:
        """Text may come now, or it may not."""
        if self._unreadable is not None:
            offset, count, message = self._unreadable
            self._unreadable = None
            self._report.find(Kind.NOT_JSON, message, offset=offset, count=count)
        if self.done:
            self._report.find(Kind.TEXT_AFTER_DONE, f"{_shown(text)} comes after [DONE]", channel)
        elif self.finish is not None:
            self._report.find(Kind.TEXT_AFTER_FINISH, f"{_shown(text)} comes after the finish", channel)
        turn = _ORDER.index(channel)
        if turn < self._turn:
            self._report.find(Kind.OTHER_TEXT, f"{channel} {_shown(text)} comes behind {_ORDER[self._turn]}")
        self._turn = turn

    def _call(self, call: dict[str, Any], place: int) -> None:
        """A call's announcement, or more of its arguments."""
        index = call.get("index")
        index = index if isinstance(index, int) else place
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        if index not in self._calls:
            if len(self._calls) == _CALL_LIMIT:
                self._report.find(Kind.OTHER_TEXT, f"more than {_CALL_LIMIT} calls", "call")
                return
            words = WordChecker(self._report, self._said, "call")
            self._calls[index] = CallJson(self._report, words, 1)
            if not function.get("name"):
                self._report.find(Kind.OTHER_TEXT, f"call {index} comes without its name", "call")
        self._spoken = self._spoken_now = True
        self._announced(index, call.get("id"), function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            self._check_time("call", arguments)
            rest = arguments[self._calls[index].feed(arguments) :]
            if rest.strip():
                self._report.find(Kind.OTHER_TEXT, f"{_shown(rest)} comes behind the call's JSON", "call")

    def _announced(self, index: int, call_id: object, name: object) -> None:
        """A call's id, which some servers repeat, and its name, which clients put together from its pieces."""
        is_second = False
        if isinstance(call_id, str) and call_id:
            is_second = self._call_ids.setdefault(index, call_id[:_ID_CHARACTERS]) != call_id[:_ID_CHARACTERS]
        if isinstance(name, str) and name:
            is_second = is_second or index in self._named_calls
            self._named_calls.add(index)
        if is_second:
            self._report.find(Kind.SECOND_CALL, f"call {index} is announced a second time", "call")

    def _finished(self, finish: str) -> None:
        if self.finish is None:
            self.finish = finish
        elif self.finish == finish:
            self._report.note(Note.FINISH_REPEATED)
        else:
            change = f"{_shown(self.finish)}, then {_shown(finish)}"
            self._report.find(Kind.TWO_FINISHES, f"two finish reasons: {change}")

    def _usage(self, usage: dict[str, Any], *, is_final: bool) -> None:
        """Counts. Those that ride on text may be running totals and are only added up; all zeros are none."""
        prompt, completion, total = map(usage.get, ("prompt_tokens", "completion_tokens", "total_tokens"))
        if not isinstance(completion, int):
            return
        if isinstance(prompt, int) and isinstance(total, int) and prompt + completion != total:
            sentence = f"usage does not add up: {prompt} + {completion} is not {total}"
            self._report.find(Kind.USAGE_SUM, sentence)
        if is_final and (prompt or completion or total):
            if self.completion_tokens == completion:
                self._report.note(Note.USAGE_REPEATED)
            self.completion_tokens = completion


def _shown(value: object) -> str:
    return repr(value if isinstance(value, int) else str(value)[:_SHOWN_CHARACTERS])
