"""Kinds of values an axis may have, each read from a directive's word and from a TOML value.

Where a kind takes words of its own only, quotes change nothing about a word; where it takes free text too, they mean
the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from inference_lab.core.faults.grammar import SHOWN, Word, shown
from inference_lab.core.identity import TEST_ID, TEST_ID_EXPECTED

if TYPE_CHECKING:
    from collections.abc import Mapping

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
# Leading zeros are allowed without bound; the digits that count are bounded: int() refuses 4,300 of them.
_DIGITS: Final = re.compile(r"0*([0-9]{1,20})")
_CONTROL: Final = re.compile(r"[\r\n\0]")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class NumberedWord(msgspec.Struct, frozen=True):
    """A word with a number after a colon, such as `byte:7` or `dup:2`."""

    word: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.word}:{self.number}" if self.number else self.word


class Keyword(msgspec.Struct, frozen=True):
    """A bare word with a meaning of its own where a string could stand too: `null`, `absent`."""

    word: str

    def __str__(self) -> str:
        return self.word


Value: TypeAlias = int | bool | str | NumberedWord | Keyword | None


class ValueKind(Protocol):
    """A kind of value; `expected` says in a few words what it may be. Both readers raise ValueError otherwise."""

    expected: str

    def read(self, word: Word) -> Value:
        """From a directive."""

    def take(self, value: object) -> Value:
        """From TOML, with TOML's own types."""


class Integer:
    """An integer in ASCII digits, `least` to `most`; or one of `words`."""

    def __init__(self, most: int, *, least: int = 0, words: tuple[str, ...] = ()) -> None:
        self.least = least
        self.most = most
        self.words = words
        self.expected = " or ".join([f"an integer from {least} to {most}", *words])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.text in self.words:
            return word.text
        digits = None if word.quoted else _DIGITS.fullmatch(word.text)
        if digits is None:
            raise ValueError(shown(word.text))
        return self.take(int(digits[1]))

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if isinstance(value, str) and value in self.words:
            return value
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(_written(value))
        return value


class SignedInteger:
    """`none`, or an integer with its sign; further `words` mean themselves."""

    def __init__(self, most: int, *, words: tuple[str, ...] = ()) -> None:
        self.most = most
        self.words = words
        self.expected = " or ".join(["a number +n or -n", *words])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.text in self.words:
            return word.text
        match = None if word.quoted else re.fullmatch(r"([+-])0*([0-9]{1,20})", word.text)
        if match is None or not 0 < int(match[2]) <= self.most:
            raise ValueError(shown(word.text))
        return int(match[1] + match[2])

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if isinstance(value, str) and value in self.words:
            return value
        if type(value) is not int or not 0 < abs(value) <= self.most:
            raise ValueError(_written(value))
        return value


class Choice:
    """One of some words; where `true` and `false` are among them, TOML has a type for these."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = ", ".join(words)

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        return self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        word = str(value).lower() if isinstance(value, bool) else value
        if not isinstance(word, str) or word not in self.words:
            raise ValueError(_written(value))
        return word


class Flag:
    """true or false."""

    expected = "true or false"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.text not in {"true", "false"}:
            raise ValueError(shown(word.text))
        return word.text == "true"

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, bool):
            raise ValueError(_written(value))
        return value


class Text:
    """A line of text, bare or quoted, except the `reserved` bare words, which mean something else: `none`.

    Bare words that have `moved` to another setting are refused with its name: as text they would pass in silence.
    """

    def __init__(self, *reserved: str, moved: Mapping[str, str] | None = None) -> None:
        self.reserved = reserved
        self._moved = moved or {}
        self.expected = " or ".join(["a string of one line", *reserved])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if not word.text and not word.quoted:
            raise ValueError("empty")
        return self._checked(word.text) if word.quoted else self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, str):
            raise ValueError(_written(value))
        if value in self._moved:
            raise ValueError(f"{shown(value)}, which is {self._moved[value]} now")
        return Keyword(value) if value in self.reserved else self._checked(value)

    def _checked(self, text: str) -> str:
        # What the grammar refuses in a directive, which a table could hold.
        if _CONTROL.search(text):
            raise ValueError(shown(text))
        return text


class HeaderText(Text):
    """A header's value: printable ASCII, neither empty nor with a blank at either end."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = "printable ASCII, as a header's value has to be"

    def _checked(self, text: str) -> str:
        if not _HEADER_VALUE.fullmatch(text):
            raise ValueError(shown(text))
        return text


class Identifier(Text):
    """A test's id."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = TEST_ID_EXPECTED

    def _checked(self, text: str) -> str:
        if not TEST_ID.fullmatch(text):
            raise ValueError(shown(text))
        return text


class IntegerOrHeader(HeaderText):
    """An integer, bare; or a header's value, quoted."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._integer = Integer(most)
        self.expected = f"{self._integer.expected} or a quoted string of printable ASCII"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        return super().read(word) if word.quoted else self._integer.read(word)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        return super().take(value) if isinstance(value, str) else self._integer.take(value)


class Code:
    """An error's code: bare digits an integer, a quoted string a string, `null` and `absent` as they say."""

    expected = f"an integer from 0 to {U64_MAX}, a string of one line, null or absent"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.quoted:
            return word.text
        if re.fullmatch(r"[0-9]+", word.text):
            return _CODE_NUMBER.read(word)
        if not word.text:
            raise ValueError("empty")
        return self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if isinstance(value, str) and not _CONTROL.search(value):
            return Keyword(value) if value in {"null", "absent"} else value
        return _CODE_NUMBER.take(value)


_CODE_NUMBER: Final = Integer(U64_MAX)


class NumberedChoice:
    """One of `words`, or one of `numbered` with `:n` after it, n from the first to the second number given."""

    def __init__(self, words: tuple[str, ...], numbered: dict[str, tuple[int, int]]) -> None:
        self.words = words
        self.numbered = numbered
        ranges = (f"{word}:n with n from {least} to {most}" for word, (least, most) in numbered.items())
        self.expected = ", ".join([*words, *ranges])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        return self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, str):
            raise ValueError(_written(value))
        if value in self.words:
            return NumberedWord(value)
        name, _, number = value.partition(":")
        digits = _DIGITS.fullmatch(number)
        least, most = self.numbered.get(name, (1, 0))
        if digits is None or not least <= int(digits[1]) <= most:
            raise ValueError(shown(value))
        return NumberedWord(name, int(digits[1]))


def _written(value: object) -> str:
    """A TOML value in a message; integers that Python refuses to print cannot come from TOML."""
    if isinstance(value, str):
        return shown(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
