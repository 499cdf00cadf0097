"""A call's JSON as it comes: its outline, and the text of its string values."""

import json
import re
from typing import Final

from inference_lab.json_text import DEPTH_LIMIT
from inference_lab.oracle.verdict import Kind, Report
from inference_lab.oracle.words import WordChecker

_BLANKS_AND_SCALARS: Final = re.compile(r"[ \t\n\r0-9+\-.eEtrufalsn]*")
_STRING_STOP: Final = re.compile(r'["\\]')
_ESCAPE_LENGTH: Final = 2
_UNICODE_ESCAPE_LENGTH: Final = 6


class CallJson:
    """One JSON object in pieces; the strings that are values at `depth` or deeper go to the word checker."""

    def __init__(self, report: Report, words: WordChecker, depth: int) -> None:
        self._report, self._words, self._depth = report, words, depth
        self._brackets: list[str] = []
        self._before = ""
        self._in_string = False
        self._escape = ""
        self._broken = False
        self.closed = False

    def feed(self, text: str) -> int:
        """Take text up to the object's end; how many characters of it belonged to the object."""
        place = 0
        while place < len(text) and not self.closed:
            place = self._string(text, place) if self._in_string else self._outside(text, place)
        return place

    @property
    def holds_word(self) -> bool:
        """See `WordChecker.holds_word`."""
        return self._words.holds_word

    def end(self, *, dead: bool) -> None:
        """The stream ends."""
        self._words.end(dead=dead)

    def _outside(self, text: str, place: int) -> int:
        found = _BLANKS_AND_SCALARS.match(text, place)
        place = found.end() if found else place
        if place == len(text):
            return place
        mark = text[place]
        if mark == '"':
            self._in_string = True
        elif mark in "{[" and len(self._brackets) < DEPTH_LIMIT:
            self._brackets.append(mark)
            self._before = mark
        elif mark in "}]" and self._brackets and (self._brackets.pop() == "{") == (mark == "}"):
            self._before = mark
            self.closed = not self._brackets
        elif mark in ":,":
            self._before = mark
        elif not self._broken:
            self._broken = True
            self._report.find(Kind.OTHER_TEXT, f"{text[place : place + 16]!r} breaks the call's JSON", "call")
        return place + 1

    def _string(self, text: str, place: int) -> int:
        if self._escape:
            return self._escaped(text, place)
        found = _STRING_STOP.search(text, place)
        end = found.start() if found else len(text)
        self._say(text[place:end])
        if not found:
            return end
        if found[0] == "\\":
            self._escape = "\\"
        else:
            self._in_string = False
            if self._is_words:
                self._words.end(dead=False)
            self._before = '"'
        return end + 1

    def _escaped(self, text: str, place: int) -> int:
        self._escape += text[place]
        is_long = self._escape[1] == "u"
        if len(self._escape) == (_UNICODE_ESCAPE_LENGTH if is_long else _ESCAPE_LENGTH):
            try:
                self._say(json.loads(f'"{self._escape}"'))
            except ValueError:
                self._say(self._escape)
            self._escape = ""
        return place + 1

    @property
    def _is_words(self) -> bool:
        """Whether the current string is a value of the arguments."""
        in_array = self._before in {"[", ","} and self._brackets[-1:] == ["["]
        return len(self._brackets) >= self._depth and (self._before == ":" or in_array)

    def _say(self, text: str) -> None:
        if text and self._is_words:
            self._words.feed(text)
