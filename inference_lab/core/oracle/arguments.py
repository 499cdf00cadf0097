"""A call's JSON as it comes: its outline, and the text of its string values."""

import json
import re
from typing import Final

from inference_lab.core.json_text import DEPTH_LIMIT
from inference_lab.core.oracle.verdict import Kind, Report
from inference_lab.core.oracle.words import WordChecker

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_SCALAR: Final = re.compile(r"[0-9+\-.eEtrufalsn]+")
_STRING_STOP: Final = re.compile(r'["\\]')
_ESCAPE_LENGTH: Final = 2
_UNICODE_ESCAPE_LENGTH: Final = 6
_CALL_KEYS: Final = ("name", "arguments")
"""What stands around the arguments where a call is written out as text."""
_KEY_CHARACTERS: Final = 16
_NAME_CHARACTERS: Final = 256


class CallJson:
    """One JSON object in pieces; the strings that are values at `depth` or deeper go to the word checker.

    `has_text` tells whether any of these held any text. For what the rest costs: `name` is what a call that is written
    out says its name is, `members` how many keys its arguments had, `key_characters` of so many characters, and
    `outline_characters` counts all that stands in them beside their strings.
    """

    def __init__(self, report: Report, words: WordChecker, depth: int) -> None:
        self._report, self._words, self._depth = report, words, depth
        self._brackets: list[str] = []
        self._before = ""
        self._key = ""
        self._in_string = False
        self._escape = ""
        self._broken = False
        self.name = ""
        self.members = self.key_characters = self.outline_characters = 0
        self.has_text = self.closed = False

    def feed(self, text: str) -> int:
        """Take text up to the object's end; how many characters of it belonged to the object."""
        place = 0
        while place < len(text) and not self.closed:
            begin, is_inside = place, len(self._brackets) >= self._depth and not self._is_words
            place = self._string(text, place) if self._in_string else self._outside(text, place)
            if is_inside:
                self.outline_characters += place - begin
        return place

    @property
    def holds_word(self) -> bool:
        """See `WordChecker.holds_word`."""
        return self._words.holds_word

    def end(self, *, dead: bool) -> None:
        """The stream ends."""
        self._words.end(dead=dead)

    def _outside(self, text: str, place: int) -> int:
        found = _BLANKS.match(text, place)
        place = found.end() if found else place
        if place == len(text):
            return place
        mark = text[place]
        if scalar := _SCALAR.match(text, place):
            # A number or word may come in pieces, which is all that is asked of its spelling.
            self._expect(text, place, may_come=self._before == "scalar" or self._is_value_due)
            self._before = "scalar"
            return scalar.end()
        if mark == '"':
            self._expect(text, place, may_come=self._is_key_due or self._is_value_due)
            self._in_string = True
            self._key = ""
        elif mark in "{[" and len(self._brackets) < DEPTH_LIMIT:
            self._expect(text, place, may_come=self._is_value_due if self._brackets else mark == "{")
            self._brackets.append(mark)
            self._before = mark
        elif mark in "}]" and self._brackets:
            is_match = (self._brackets.pop() == "{") == (mark == "}")
            self._expect(text, place, may_come=is_match and self._before not in {",", ":", "key"})
            self._before = "value"
            self.closed = is_match and not self._brackets
        elif mark in ":,":
            has_value = self._before in {"value", "scalar"}
            self._expect(text, place, may_come=self._before == "key" if mark == ":" else has_value)
            self._before = mark
        else:
            self._expect(text, place, may_come=False)
        return place + 1

    def _expect(self, text: str, place: int, *, may_come: bool) -> None:
        """What breaks the JSON is told once."""
        if not may_come and not self._broken:
            self._broken = True
            self._report.find(Kind.OTHER_TEXT, f"{text[place : place + 16]!r} breaks the call's JSON", "call")

    @property
    def _is_key_due(self) -> bool:
        return self._brackets[-1:] == ["{"] and self._before in {"{", ","}

    @property
    def _is_value_due(self) -> bool:
        return self._before in {":", "["} or (self._before == "," and self._brackets[-1:] == ["["])

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
            if self._is_key_due and len(self._brackets) < self._depth and self._key not in _CALL_KEYS:
                self._expect(self._key, 0, may_come=False)
            if self._is_key_due and len(self._brackets) >= self._depth:
                self.members += 1
            self._before = "key" if self._is_key_due else "value"
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
        return len(self._brackets) >= self._depth and self._is_value_due

    def _say(self, text: str) -> None:
        if text and self._is_words:
            self.has_text = True
            self._words.feed(text)
            return
        if self._is_key_due and len(self._brackets) >= self._depth:
            self.key_characters += len(text)
        elif self._is_value_due and len(self.name) < _NAME_CHARACTERS:
            self.name += text[:_NAME_CHARACTERS]
        if len(self._key) < _KEY_CHARACTERS:
            self._key += text[:_KEY_CHARACTERS]
