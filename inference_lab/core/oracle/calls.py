"""The tool calls of an answer as deltas tell them: announced, then their arguments in pieces."""

from collections.abc import Callable
from typing import Final

from inference_lab.core.apis.reading import ReadCall, ReadText
from inference_lab.core.oracle.arguments import CallJson
from inference_lab.core.oracle.verdict import Kind, Report, shown
from inference_lab.core.oracle.words import WordChecker, WordsRead
from inference_lab.core.tokens import encode

_CALL_LIMIT: Final = 128
"""Calls of one answer that are followed; more are no answer of ours."""

_ID_CHARACTERS: Final = 256
"""How much of each call's id is kept and compared."""
_NAME_CHARACTERS: Final = 256


class Calls:
    """All calls of one answer; `check_time` is asked whether text may come now."""

    def __init__(self, report: Report, said: WordsRead, check_time: Callable[[str, str], None]) -> None:
        self._report, self._said, self._check_time = report, said, check_time
        self._calls: dict[int, CallJson] = {}
        self._ids: dict[int, str] = {}
        self._named: set[int] = set()
        self.name_tokens = 0

    @property
    def followed(self) -> tuple[CallJson, ...]:
        """Their arguments."""
        return tuple(self._calls.values())

    def take(self, call: ReadCall) -> bool:
        """A call's announcement, or more of its arguments; whether it is one that is followed."""
        index, name, arguments = call.index, call.name, call.arguments.text
        if call.arguments.name:
            self._report.find(Kind.OTHER_TEXT, odd_text(call.arguments), "call")
        is_new = index not in self._calls
        if is_new:
            if len(self._calls) == _CALL_LIMIT:
                self._report.find(Kind.OTHER_TEXT, f"more than {_CALL_LIMIT} calls", "call")
                return False
            words = WordChecker(self._report, self._said, "call")
            self._calls[index] = CallJson(self._report, words, 1)
            if not name:
                self._report.find(Kind.OTHER_TEXT, f"call {index} comes without its name", "call")
        self._announce(index, call.id, name)
        if is_new or arguments:
            self._check_time("call", arguments or str(name or ""))
        if arguments:
            rest = arguments[self._calls[index].feed(arguments) :]
            if rest.strip():
                self._report.find(Kind.OTHER_TEXT, f"{shown(rest)} comes after the call's JSON", "call")
        return True

    def _announce(self, index: int, call_id: object, name: object) -> None:
        """A call's id, which some servers repeat, and its name, which clients put together from its pieces."""
        is_second = False
        if isinstance(call_id, str) and call_id:
            is_second = self._ids.setdefault(index, call_id[:_ID_CHARACTERS]) != call_id[:_ID_CHARACTERS]
        if isinstance(name, str) and name:
            is_second = is_second or index in self._named
            self._named.add(index)
            self.name_tokens += len(encode(name[:_NAME_CHARACTERS])) + 1
        if is_second:
            self._report.find(Kind.SECOND_CALL, f"call {index} is announced a second time", "call")


def odd_text(text: ReadText) -> str:
    """What is wrong with a member that clients add up, and that is no text."""
    name, value = text.name, text.value
    if name == "tool_calls":
        return "tool_calls is no list of calls"
    kind = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else shown(value)
    return f"{name} is {kind}, and clients add it up as text"
