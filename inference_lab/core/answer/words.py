"""What answer text says of itself: its last whole word, and the torn piece after it."""

import re
from typing import Final

import msgspec

from inference_lab.core.tokens import ANY_WORD, parts_of, spell

_TORN_FIRST_WORD: Final = re.compile("[a-z](?:[a-z]0{0,3})?|[A-Z](?:[A-Z]0{0,3})?")
_ACCENT_ESCAPE: Final = re.compile(r"\\u00([eEcC])9")
_TORN_ESCAPE: Final = re.compile(r"\\(?:u(?:0(?:0[eEcC]?)?)?)?\Z")


class Tail(msgspec.Struct, frozen=True):
    """The end of a text in one channel: its words' letters ('' if it has none), the next index, the rest.

    `rest` is the text after the last whole word, a torn next word included.
    """

    letters: str
    next_index: int
    rest: str


def tail_of(text: str, *, reasoning: bool = False) -> Tail:
    """Read the end of a text; only words of the channel's case count.

    A last word out of order that begins the word due there is torn: after ` qu9999`, ` qu1000` is part of `
    qu10000`.
    """
    before = last = None
    for found in ANY_WORD.finditer(text):
        if is_reasoning(found[0]) is reasoning:
            before, last = last, found
    if last is None:
        return Tail("", 0, text.lstrip("\n"))
    letters, index = parts_of(last[0])
    if before and last.end() == len(text):
        expected = next_word(before[0])
        if expected != last[0] and expected.startswith(last[0]):
            return Tail(*parts_of(expected), last[0])
    return Tail(letters, index + 1, text[last.end() :])


def argument_tail_of(text: str) -> Tail:
    """The end of a JSON string's text, where é may be written as an escape; a torn escape stays in `rest`."""
    return tail_of(_ACCENT_ESCAPE.sub(lambda found: "é" if found[1] in "eE" else "É", text))


def is_reasoning(word: str) -> bool:
    """Whether a word is in capitals."""
    return word.lstrip(" ") < "a"


def next_word(word: str) -> str:
    """The word that follows a word."""
    letters, index = parts_of(word)
    return spell(letters, index + 1)


def torn_letters(rest: str, tag: str) -> str:
    """The tag, in lower case, that a torn first word shows, a second letter from `tag` if need be, or ''."""
    if not _TORN_FIRST_WORD.fullmatch(rest):
        return ""
    return rest[:2].lower() if len(rest) > 1 else rest.lower() + tag[1]


def completion_of(rest: str, word: str) -> str:
    """What `word` lacks where the text ends in `rest`; '' where `rest` does not begin it, or is nothing."""
    if not rest:
        return ""
    if word.startswith(rest):
        return word[len(rest) :]
    escape = _TORN_ESCAPE.search(rest)
    if escape and rest[: escape.start()] == word[:-1] and word[-1] == "é":
        return r"\u00e9"[len(escape[0]) :]
    return ""
