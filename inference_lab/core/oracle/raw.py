"""Raw completions text: reasoning, content and calls told apart by the markup of all formats."""

import re
from typing import Final

import msgspec

from inference_lab.core.oracle.arguments import CallJson
from inference_lab.core.oracle.markup import Markup
from inference_lab.core.oracle.verdict import Kind, Report
from inference_lab.core.oracle.words import WordChecker, WordsRead
from inference_lab.core.tokens import encode

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
"""What may stand after each tag of a call."""


def _tag_name(tag: str) -> str:
    """What a tag of a call opens or, with a slash, closes, JSON before it included; '' if it is none."""
    found = _CALL_TAG.fullmatch(tag)
    if not found:
        return ""
    json, opened, closed = found.groups()
    name = opened.split(" ")[0] if opened else f"/{closed}"
    return "" if json and name != "/parameter" else name


def _with_tag(seen: Markup, name: str, tag: str) -> Markup:
    """What a tag of a call adds: its name, its key, or JSON before a closing one."""
    json, _, rest = tag.partition("<")
    quoted = rest.partition('"')[2].partition('"')[0]
    if name == "invoke":
        return msgspec.structs.replace(seen, call_names=seen.call_names + len(encode(quoted)))
    if name == "parameter":
        return msgspec.structs.replace(seen, members=seen.members + 1, keys=seen.keys + len(quoted))
    return msgspec.structs.replace(seen, outline=seen.outline + len(json))


def _with_call(seen: Markup, call: CallJson) -> Markup:
    """What a call's JSON adds."""
    return msgspec.structs.replace(
        seen,
        call_names=seen.call_names + len(encode(call.name)),
        members=seen.members + call.members,
        outline=seen.outline + call.outline_characters,
        keys=seen.keys + call.key_characters,
    )


class RawText:
    """The text of a completions stream, and what it said of each channel.

    Calls are counted in groups, as their markup opens and closes them: `calls_begun`, and `calls_empty` of those that
    were closed with a call in them, or instead of one, whose arguments say nothing.
    """

    def __init__(self, report: Report, said: WordsRead) -> None:
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
        self._call_has_text = False
        self._group_calls = self._group_empty = 0
        self._seen = Markup()
        self.has_text = self.has_reasoning = False
        self.calls_begun = self.calls_empty = 0

    @property
    def is_open(self) -> bool:
        """Whether the text stands inside a call."""
        return self._json is not None or self._is_wrapped or bool(self._tag)

    @property
    def calls_closed(self) -> int:
        """How many groups of calls have come to their end."""
        return self.calls_begun - self.is_open

    @property
    def markup(self) -> Markup:
        """What has been seen of calls, and whether anything was reasoned."""
        seen = self._seen if self._json is None else _with_call(self._seen, self._json)
        return msgspec.structs.replace(seen, reasoning=self.has_reasoning, after_reasoning=self.has_text)

    @property
    def held_characters(self) -> int:
        """Of what may be the beginning of markup."""
        return len(self._held)

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
                    self._close_json(self._json)
            elif self._value:
                text = self._in_value(self._value, text)
            elif self._tag:
                text = self._in_tags(text)
            else:
                text = self._outside(text)

    def end(self, *, dead: bool, is_short: bool = False) -> None:
        """The stream ends; on a dead one markup may be torn like a word, and where the answer ran out (`is_short`)."""
        if self._held and not (dead or is_short or self.is_open):
            (self._value or self._plain(self._held)).feed(self._held)
            self._held = ""
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
        if found[1] is None:
            if not self._is_wrapped:
                self._begin_group()
            self._begin_call()
            self._json = CallJson(self._report, WordChecker(self._report, self._said, "call"), 2)
            self._has_called = True
        else:
            self._mark(found[1])
        return text[found.end() :]

    def _mark(self, tag: str) -> None:
        """A tag outside calls."""
        if tag == "<think>":
            if self._channel is not None or self._has_called:
                before = "a call" if self._has_called else "other text"
                self._report.find(Kind.OTHER_TEXT, f"reasoning opens after {before}", "text")
            self._channel, self._line_feeds = self._reasoning, 1
        elif tag == "</think>":
            if self._channel is self._content:
                self._report.find(Kind.OTHER_TEXT, f"{tag!r} closes nothing", "text")
            self._reasoning.end(dead=False)
            self._channel, self._line_feeds = self._content, 2
        elif tag == "</tool_call>":
            if self._is_wrapped:
                self._end_group()
            self._is_wrapped = False
        elif tag == "<tool_call>":
            if not self._is_wrapped:
                self._begin_group()
            self._is_wrapped = self._has_called = True
            self._line_feeds = 1
        else:
            self._begin_group()
            self._tag = "tool_calls"
            self._has_called = True

    def _begin_group(self) -> None:
        self.calls_begun += 1
        self._group_calls = self._group_empty = 0

    def _begin_call(self) -> None:
        self._seen = msgspec.structs.replace(self._seen, calls=self._seen.calls + 1)
        self._group_calls += 1
        self._call_has_text = False

    def _end_call(self) -> None:
        self._group_empty += not self._call_has_text

    def _end_group(self) -> None:
        self.calls_empty += bool(self._group_empty or not self._group_calls)

    def _close_json(self, call: CallJson) -> None:
        self._seen, self._json = _with_call(self._seen, call), None
        self._call_has_text = call.has_text
        self._end_call()
        if not self._is_wrapped:
            self._end_group()

    def _say(self, text: str) -> None:
        if not text:
            return
        words = self._plain(text)
        if self._has_called and words is self._content:
            spoken = self._said.words.get("text", 0)
            self._report.find(Kind.OTHER_TEXT, f"{text[:64]!r} comes after a call", "text", spoken)
            self._has_called = False
        if words is self._content:
            self.has_text = True
        else:
            self.has_reasoning = True
        words.feed(text)

    def _plain(self, text: str) -> WordChecker:
        """The channel of text outside markup: a prompt may have opened the reasoning block itself."""
        if self._channel is None:
            is_reasoning = text.lstrip(" ")[:1].isupper()
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
            self._end_group()
        if name == "invoke":
            self._begin_call()
        elif name == "/invoke":
            self._end_call()
        if name:
            self._seen = _with_tag(self._seen, name, text[:end])
        if text.endswith(_VALUE_OPEN, 0, end):
            self._value = WordChecker(self._report, self._said, "call")
        return text[end:]

    def _in_value(self, value: WordChecker, text: str) -> str:
        """An argument's text, up to its closing tag."""
        end = text.find(_VALUE_CLOSE)
        if end >= 0:
            self._call_has_text = self._call_has_text or end > 0
            value.feed(text[:end])
            value.end(dead=False)
            self._value, self._tag = None, "/parameter"
            return text[end + len(_VALUE_CLOSE) :]
        start = text.rfind("<", -len(_VALUE_CLOSE))
        if start < 0 or not _VALUE_CLOSE.startswith(text[start:]):
            start = len(text)
        self._held = text[start:]
        self._call_has_text = self._call_has_text or start > 0
        value.feed(text[:start])
        return ""
