"""Raw completions text: reasoning, content and calls told apart by the markup of all formats."""

import re
from typing import Final

from inference_lab.oracle.arguments import CallJson
from inference_lab.oracle.verdict import Kind, Report
from inference_lab.oracle.words import Said, WordChecker

_BAR: Final = "\uff5c"
_TAGS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", f"<{_BAR}DSML{_BAR}tool_calls>")
_MARK: Final = re.compile("\n{0,2}(?:(" + "|".join(_TAGS) + r")|(?=\{))")
_HELD: Final = re.compile(r"\n{0,2}(?:<[^<>]{0,18})?\Z")
_VALUE_OPEN: Final = ' string="true">'
_VALUE_CLOSE: Final = f"</{_BAR}DSML{_BAR}parameter>"
_LAST_TAG: Final = "/tool_calls"
_TAG_CHARACTERS: Final = 65536
_BLOCK_CHARACTERS: Final = 4096
_CALL_TAG: Final = re.compile(
    f'([^<]*)<(?:{_BAR}DSML{_BAR}(invoke name=".*"|parameter name=".*" string="(?:true|false)")'
    f"|/{_BAR}DSML{_BAR}(invoke|parameter|tool_calls))>"
)
_NEXT_TAGS: Final = {
    "tool_calls": {"invoke"},
    "invoke": {"parameter", "/invoke"},
    "parameter": {"/parameter"},
    "/parameter": {"parameter", "/invoke"},
    "/invoke": {"invoke", "/tool_calls"},
}
"""What may stand behind each tag of a call."""


def _tag_name(tag: str) -> str:
    """What a tag of a call opens or, with a slash, closes, JSON in front of it included; '' if it is none."""
    found = _CALL_TAG.fullmatch(tag)
    if not found:
        return ""
    json, opened, closed = found.groups()
    name = opened.split(" ")[0] if opened else f"/{closed}"
    return "" if json and name != "/parameter" else name


class RawText:
    """The text of a completions stream. `markup` tells whether there was any, `is_open` of a call."""

    def __init__(self, report: Report, said: Said) -> None:
        self._report, self._said = report, said
        self._reasoning = WordChecker(report, said, "reasoning")
        self._content = WordChecker(report, said, "text")
        self._channel: WordChecker | None = None
        self._held = ""
        self._line_feeds = 0
        self._json: CallJson | None = None
        self._tag = ""
        self._is_wrapped = self._has_called = False
        self._value: WordChecker | None = None
        self.markup = False

    @property
    def is_open(self) -> bool:
        """Whether the text stands inside a call."""
        return self._json is not None or self._is_wrapped or bool(self._tag)

    @property
    def words_held(self) -> int:
        """Whole words that wait to be judged."""
        return sum(bool(words and words.holds_word) for words in self._parts)

    @property
    def _parts(self) -> tuple[WordChecker | CallJson | None, ...]:
        return self._reasoning, self._content, self._value, self._json

    def feed(self, text: str) -> None:
        """Take more text, in blocks: what is left of one is copied behind each piece of markup."""
        for place in range(0, len(text), _BLOCK_CHARACTERS):
            self._feed(text[place : place + _BLOCK_CHARACTERS])

    def _feed(self, text: str) -> None:
        text, self._held = self._held + text, ""
        while text:
            if self._json:
                text = text[self._json.feed(text) :]
                if self._json.closed:
                    self._json = None
            elif self._value:
                text = self._in_value(self._value, text)
            elif self._tag:
                text = self._in_tags(text)
            else:
                text = self._outside(text)

    def end(self, *, dead: bool) -> None:
        """The stream ends; on a dead one markup may be torn like a word."""
        if self._held and not dead:
            (self._value or self._plain(self._held)).feed(self._held)
        for words in self._parts:
            if words:
                words.end(dead=dead)

    def _outside(self, text: str) -> str:
        """Reasoning and content up to the next markup; what is still to be read."""
        if self._line_feeds and text.startswith("\n"):
            self._line_feeds -= 1
            return text[1:]
        self._line_feeds = 0
        found = _MARK.search(text)
        if not found:
            held = _HELD.search(text, max(0, len(text) - 22))
            start = held.start() if held else len(text)
            tag = text[start:].lstrip("\n")
            if tag and not any(mark.startswith(tag) for mark in _TAGS):
                start = len(text)
            self._held = text[start:]
            self._say(text[:start])
            return ""
        self._say(text[: found.start()])
        self.markup = True
        if found[1] is None:
            self._json = CallJson(self._report, WordChecker(self._report, self._said, "call"), 2)
            self._has_called = True
        else:
            self._mark(found[1])
        return text[found.end() :]

    def _mark(self, tag: str) -> None:
        """A tag outside calls."""
        if tag == "<think>":
            if self._channel is not None or self._has_called:
                behind = "a call" if self._has_called else "other text"
                self._report.find(Kind.OTHER_TEXT, f"reasoning opens behind {behind}", "text")
            self._channel, self._line_feeds = self._reasoning, 1
        elif tag == "</think>":
            if self._channel is self._content:
                self._report.find(Kind.OTHER_TEXT, f"{tag!r} closes nothing", "text")
            self._reasoning.end(dead=False)
            self._channel, self._line_feeds = self._content, 2
        elif tag == "</tool_call>":
            self._is_wrapped = False
        elif tag == "<tool_call>":
            self._is_wrapped = self._has_called = True
            self._line_feeds = 1
        else:
            self._tag = "tool_calls"
            self._has_called = True

    def _say(self, text: str) -> None:
        if not text:
            return
        words = self._plain(text)
        if self._has_called and words is self._content:
            spoken = self._said.words.get("text", 0)
            self._report.find(Kind.OTHER_TEXT, f"{text[:64]!r} comes behind a call", "text", spoken)
            self._has_called = False
        words.feed(text)

    def _plain(self, text: str) -> WordChecker:
        """The channel of text outside markup: a prompt may have opened the reasoning block itself."""
        if self._channel is None:
            is_reasoning = text.lstrip(" ")[:1].isupper()
            self.markup = self.markup or is_reasoning
            self._channel = self._reasoning if is_reasoning else self._content
        return self._channel

    def _in_tags(self, text: str) -> str:
        """Tags of a call, up to the next value or the end of the calls."""
        text = text.lstrip("\n")
        end = text.find(">") + 1
        if not end and len(text) < _TAG_CHARACTERS:
            self._held = text
            return ""
        end = end or len(text)
        name = _tag_name(text[:end])
        if name not in _NEXT_TAGS[self._tag]:
            self._report.find(Kind.OTHER_TEXT, f"{text[: min(end, 64)]!r} is no tag of a call here", "call")
        if name in _NEXT_TAGS:
            self._tag = name
        elif name == _LAST_TAG:
            self._tag = ""
        if text.endswith(_VALUE_OPEN, 0, end):
            self._value = WordChecker(self._report, self._said, "call")
        return text[end:]

    def _in_value(self, value: WordChecker, text: str) -> str:
        """An argument's text, up to its closing tag."""
        end = text.find(_VALUE_CLOSE)
        if end >= 0:
            value.feed(text[:end])
            value.end(dead=False)
            self._value, self._tag = None, "/parameter"
            return text[end + len(_VALUE_CLOSE) :]
        start = text.rfind("<", -len(_VALUE_CLOSE))
        if start < 0 or not _VALUE_CLOSE.startswith(text[start:]):
            start = len(text)
        self._held = text[start:]
        value.feed(text[:start])
        return ""
