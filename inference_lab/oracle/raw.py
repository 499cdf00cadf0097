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
_CALLS_CLOSE: Final = f"</{_BAR}DSML{_BAR}tool_calls>"
_TAG_CHARACTERS: Final = 65536


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
        self._tagged = False
        self._value: WordChecker | None = None
        self.markup = False

    @property
    def is_open(self) -> bool:
        """Whether the text stands inside a call."""
        return self._json is not None or self._tagged

    @property
    def words_held(self) -> int:
        """Whole words that wait to be judged."""
        return sum(bool(words and words.holds_word) for words in self._parts)

    @property
    def _parts(self) -> tuple[WordChecker | CallJson | None, ...]:
        return self._reasoning, self._content, self._value, self._json

    def feed(self, text: str) -> None:
        """Take more text."""
        text, self._held = self._held + text, ""
        while text:
            if self._json:
                text = text[self._json.feed(text) :]
                if self._json.closed:
                    self._json = None
            elif self._value:
                text = self._in_value(self._value, text)
            elif self._tagged:
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
        else:
            self._mark(found[1])
        return text[found.end() :]

    def _mark(self, tag: str) -> None:
        """A tag outside calls."""
        spoken = self._said.words
        if tag == "<think>":
            if spoken.get("text"):
                self._report.find(Kind.OTHER_TEXT, "reasoning opens behind content", "text", spoken["text"])
            self._channel, self._line_feeds = self._reasoning, 1
        elif tag == "</think>":
            if self._channel is self._content:
                self._report.find(Kind.OTHER_TEXT, f"{tag!r} closes nothing", "text", spoken.get("text", 0))
            self._reasoning.end(dead=False)
            self._channel, self._line_feeds = self._content, 2
        elif tag == "<tool_call>":
            self._line_feeds = 1
        else:
            self._tagged = tag != "</tool_call>"

    def _say(self, text: str) -> None:
        if text:
            self._plain(text).feed(text)

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
        if not end:
            self._held = text if len(text) < _TAG_CHARACTERS else ""
            return ""
        tag = text[:end]
        if tag == _CALLS_CLOSE:
            self._tagged = False
        elif tag.endswith(_VALUE_OPEN):
            self._value = WordChecker(self._report, self._said, "call")
        elif not re.match(f"</?{_BAR}DSML{_BAR}", tag):
            self._report.find(Kind.OTHER_TEXT, f"{tag[:64]!r} is no tag of a call", "call")
        return text[end:]

    def _in_value(self, value: WordChecker, text: str) -> str:
        """An argument's text, up to its closing tag."""
        end = text.find(_VALUE_CLOSE)
        if end >= 0:
            value.feed(text[:end])
            value.end(dead=False)
            self._value = None
            return text[end + len(_VALUE_CLOSE) :]
        start = text.rfind("<", -len(_VALUE_CLOSE))
        if start < 0 or not _VALUE_CLOSE.startswith(text[start:]):
            start = len(text)
        self._held = text[start:]
        value.feed(text[:start])
        return ""
