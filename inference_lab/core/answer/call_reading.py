"""Read the calls at the end of an answer so far, broken off anywhere, and find what would complete them."""

import json
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from inference_lab.core.answer.cursor import Cursor
from inference_lab.core.answer.templates import ChatTemplate
from inference_lab.core.answer.words import Tail, argument_tail_of, completion_of, tail_of, torn_letters
from inference_lab.core.json_text import Ends, escape_rest, quoted, scan, unquoted
from inference_lab.core.prompts.messages import CallTarget
from inference_lab.core.tokens import spell

_QUOTED: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*\\?', re.DOTALL)


def torn_opening(template: ChatTemplate, missing: str, targets: Sequence[CallTarget]) -> Cursor:
    """The place after a call's opening that lacks `missing` up to its name."""
    return _from_name(template, missing, "", targets)


def read_calls(template: ChatTemplate, text: str, targets: Sequence[CallTarget], tag: str) -> Cursor:
    """Read calls from the place of the first one's name. `tag` helps where a torn word shows but one letter.

    A half-typed name or key is completed to the first of the `targets` it fits, else ended where it stands.
    What cannot be read as a call leaves the place behind its last whole word; without one it is text.
    """
    return _Reader(template, text, targets, tag).read()


def _from_name(template: ChatTemplate, missing: str, begun: str, targets: Sequence[CallTarget]) -> Cursor:
    fitting = (target for target in targets if quoted(target.name).startswith(begun))
    target = next(fitting, None)
    name = quoted(target.name) if target else begun + escape_rest(begun)
    called = CallTarget(_told(name), (target or CallTarget()).key)
    key = quoted(called.key)
    markup = f"{missing}{name[len(begun) :]}{template.name_close}{template.key_open}{key}{template.key_close}"
    return Cursor("call", markup=markup, arguments=f'{{"{key}": "', name=called.name, called=called)


def _told(name: str) -> str:
    """A name as a chat tells it; with a broken escape, as it stands."""
    try:
        return unquoted(name)
    except ValueError:
        return name


class _Reader(msgspec.Struct):
    template: ChatTemplate
    text: str
    targets: Sequence[CallTarget]
    tag: str
    at: int = 0
    progress: int = 0
    shown: str = ""
    number: int = 0
    called: CallTarget | None = None

    def read(self) -> Cursor:
        """Call after call, until one breaks off or the text ends."""
        place = None
        while place is None:
            place = self._call()
        if place.channel == "end" and not place.readable and not self.progress:
            place = self._unreadable()
        return msgspec.structs.replace(
            place,
            progress=self.progress + place.progress,
            tag=place.tag or self.shown,
            number=self.number,
            called=place.called or self.called,
        )

    def _call(self) -> Cursor | None:
        """One call from its name on; None where another one's name follows it."""
        template = self.template
        name = self._quoted()
        if self.at == len(self.text):
            torn = _from_name(template, "", name, self._likely)
            # With a blank in it, it is more likely somebody's text about calls.
            return msgspec.structs.replace(torn, readable=not any(map(str.isspace, name)))
        key = next((target.key for target in self.targets if quoted(target.name) == name), CallTarget().key)
        opening = f"{template.key_open}{quoted(key)}{template.key_close}"
        missing = self._take(template.name_close)
        if missing is None:
            return self._unreadable()
        self.called = CallTarget(_told(name), self._first_key(key))
        if missing or self.at == len(self.text):
            return Cursor("call", markup=missing + opening, arguments=f'{{"{quoted(key)}": "')
        place = self._tags(key) if template.json_key_close else self._json(key)
        return place or self._after_call()

    def _after_call(self) -> Cursor | None:
        """What follows a whole call: the closing of all calls, or the next call."""
        closing, between = self.template.calls_close, self.template.call_between + self.template.call_open
        after = self.text[self.at :]
        if not after:
            return Cursor("end", after="")
        missing = self._take(closing) if closing else None
        if missing is not None:
            return Cursor("end", after=after, readable=closing.startswith(after))
        missing = self._take(between)
        if missing is None:
            return Cursor("end", readable=False)
        self.number += 1
        return _from_name(self.template, missing, "", self._likely) if missing else None

    @property
    def _likely(self) -> Sequence[CallTarget]:
        """What a torn name may become: an answer's calls are of one tool."""
        return [self.called, *self.targets] if self.called else self.targets

    def _first_key(self, due: str) -> str:
        """The key of the first argument as it stands; the one that is due where none does."""
        template = self.template
        if not self.text.startswith(template.key_open, self.at):
            return due
        found = _QUOTED.match(self.text, self.at + len(template.key_open))
        return _told(found[0]) if found and self.text.startswith(template.key_close, found.end()) else due

    def _json(self, key: str) -> Cursor | None:
        """Arguments as JSON; None after the whole call."""
        template, start = self.template, self.at
        opening = f"{template.key_open}{quoted(key)}{template.key_close}"
        missing = self._take(opening)
        self.at = start
        if missing:
            return Cursor("call", markup=missing, arguments=missing)
        found = scan(self.text, start)
        if found.ends is Ends.IN_VALUE:
            place = self._value(argument_tail_of(self.text[found.string :]))
            rest = "" if place.completion else escape_rest(self.text[found.string :])
            return msgspec.structs.replace(place, markup=rest, arguments=rest)
        if found.ends is Ends.IN_KEY:
            begun = self.text[found.string :]
            fits = quoted(key).startswith(begun)
            rest = quoted(key)[len(begun) :] if fits else escape_rest(begun)
            return Cursor("call", markup=rest + template.key_close, arguments=rest + template.key_close)
        if found.ends is Ends.WHOLE:
            self._count(argument_tail_of(self.text[start : found.end]))
            self.at = found.end
            missing = self._take(template.call_close)
            if missing:
                return Cursor("end", markup=missing, after="")
            return None if missing == "" else Cursor("end", readable=False)
        begun = self.text[start:]
        if found.ends is Ends.OPEN and _is_object(begun + "}"):
            self._count(argument_tail_of(begun))
            return Cursor("end", markup="}" + template.call_close, arguments="}", after="")
        # After a key, after its colon, after a comma.
        for missing in (template.key_close.removeprefix('"'), '"', f'"{quoted(key)}{template.key_close}'):
            if found.ends is Ends.OPEN and _is_object(f'{begun}{missing}"}}'):
                self._count(argument_tail_of(begun))
                return Cursor("call", markup=missing, arguments=missing)
        return self._unreadable()

    def _tags(self, key: str) -> Cursor | None:
        """Arguments as one tag each; None after the whole call."""
        template = self.template
        begun = 0
        while True:
            if begun and self.at == len(self.text):
                return Cursor("end", markup=template.call_close, arguments="}", after="")
            missing = self._take(template.call_close) if begun or self.at < len(self.text) else None
            if missing == "":
                return None
            if missing and begun:
                return Cursor("end", markup=missing, arguments="}", after="")
            missing = self._take(template.key_open)
            if missing:
                return self._from_key(key, missing, "", begun)
            if missing is None:
                return self._unreadable()
            typed = self._quoted()
            if self.at == len(self.text):
                return self._from_key(key, "", typed, begun)
            missing = self._take(template.key_close)
            if missing is None:
                missing = self._take(template.json_key_close)
            if missing is None:
                return self._unreadable()
            if missing:
                return Cursor("call", markup=missing, arguments=_argument(typed, begun))
            place = self._tag_value()
            if place is not None:
                return place
            begun += 1

    def _from_key(self, key: str, missing: str, typed: str, begun: int) -> Cursor:
        whole = quoted(key) if quoted(key).startswith(typed) else typed + escape_rest(typed)
        markup = f"{missing}{whole[len(typed) :]}{self.template.key_close}"
        return Cursor("call", markup=markup, arguments=_argument(whole, begun))

    def _tag_value(self) -> Cursor | None:
        """A tag's value and closing; None after them."""
        closing = self.template.value_close
        end = self.text.find(closing.rstrip("\n"), self.at)
        value = self.text[self.at :] if end < 0 else self.text[self.at : end]
        if end < 0:
            mark = value.rfind("<")
            if mark < 0 or not closing.startswith(value[mark:]):
                return self._value(tail_of(value))
            end = self.at + mark
            value = value[:mark]
        self._count(tail_of(value))
        self.at = end
        missing = self._take(closing)
        if not missing:
            return None
        return Cursor("end", markup=missing + self.template.call_close, arguments='"}', after="")

    def _value(self, tail: Tail) -> Cursor:
        """The place inside an open argument."""
        letters = tail.letters or torn_letters(tail.rest, self.tag)
        self._count(tail)
        if not letters:
            return Cursor("call", tail.next_index, readable=not tail.rest)
        completion = completion_of(tail.rest, spell(letters, tail.next_index))
        shown = letters if tail.letters or completion else ""
        readable = bool(completion) or not tail.rest
        return Cursor("call", tail.next_index, completion, tag=shown, readable=readable)

    def _unreadable(self) -> Cursor:
        tail = tail_of(self.text[self.at :])
        self._count(tail)
        return Cursor("call" if self.progress else "text", tail.next_index, readable=False)

    def _count(self, tail: Tail) -> None:
        self.progress += tail.next_index
        self.shown = tail.letters or self.shown

    def _quoted(self) -> str:
        """Take text up to a closing quote or the end."""
        found = _QUOTED.match(self.text, self.at)
        taken = found[0] if found else ""
        self.at += len(taken)
        return taken

    def _take(self, literal: str) -> str | None:
        """Take a literal; what the text lacks of it, '' if it is whole, None if something else is there."""
        text, start = self.text, self.at
        if text.startswith(literal, start):
            self.at += len(literal)
            return ""
        if len(text) - start < len(literal) and literal.startswith(text[start:]):
            return literal[len(text) - start :]
        return None


def _is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _argument(key: str, begun: int) -> str:
    return f'{", " if begun else "{"}"{key}": "'
