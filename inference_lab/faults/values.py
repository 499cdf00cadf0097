"""Kinds of values an axis may have, each read from a directive's word and from a TOML value."""

from __future__ import annotations

import re
from typing import Final, Protocol, TypeAlias

import msgspec

from inference_lab.faults.grammar import Word, shown

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
# Leading zeros are allowed without bound; the digits that count are bounded: int() refuses 4,300 of them.
_DIGITS: Final = re.compile(r"0*([0-9]{1,20})")


class Sub(msgspec.Struct, frozen=True):
    """A word with a number behind a colon, such as `byte:7` or `dup:2`."""

    word: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.word}:{self.number}" if self.number else self.word


class Bare(msgspec.Struct, frozen=True):
    """A bare word with a meaning of its own where a string could stand too: `null`, `absent`."""

    word: str


Value: TypeAlias = int | bool | str | Sub | Bare | None


class Kind(Protocol):
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
        if word.text in self.words and not word.quoted:
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


class IntegerOrText(Integer):
    """An integer, bare; or any string, quoted."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.expected += " or a quoted string"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        return word.text if word.quoted and word.text else super().read(word)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        return value if isinstance(value, str) and value else super().take(value)


class Signed:
    """`none`, or an integer with its sign; further `words` mean themselves."""

    def __init__(self, most: int, *, words: tuple[str, ...] = ()) -> None:
        self.most = most
        self.words = words
        self.expected = " or ".join(["+n or -n", *words])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.text in self.words and not word.quoted:
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
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = ", ".join(words)

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.quoted:
            raise ValueError(f'"{word.text}" in quotes')
        return self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(_written(value))
        return value


class Flag:
    """true or false."""

    expected = "true or false"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.quoted or word.text not in {"true", "false"}:
            raise ValueError(shown(word.text))
        return word.text == "true"

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, bool):
            raise ValueError(_written(value))
        return value


class Text:
    """Any string, bare or quoted, except the `reserved` bare words, which mean something else: `none`."""

    def __init__(self, *reserved: str) -> None:
        self.reserved = reserved
        self.expected = " or ".join(["a string", *reserved])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if not word.text and not word.quoted:
            raise ValueError("empty")
        return Bare(word.text) if word.text in self.reserved and not word.quoted else word.text

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, str):
            raise ValueError(_written(value))
        return Bare(value) if value in self.reserved else value


class Code:
    """An error's code: bare digits an integer, a quoted string a string, `null` and `absent` as they say."""

    expected = "an integer, a string, null or absent"

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if not word.quoted:
            digits = _DIGITS.fullmatch(word.text)
            if digits:
                return int(digits[1])
            if not word.text:
                raise ValueError("empty")
        return word.text if word.quoted else self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if value in {"null", "absent"}:
            return Bare(str(value))
        if isinstance(value, str) or type(value) is int:
            return value
        raise ValueError(_written(value))


class SubChoice:
    """One of `words`, or one of `numbered` with `:n` behind it, n at least what is given for it."""

    def __init__(self, words: tuple[str, ...], numbered: dict[str, int]) -> None:
        self.words = words
        self.numbered = numbered
        self.expected = ", ".join([*words, *(f"{word}:n" for word in numbered)])

    def read(self, word: Word) -> Value:
        """See `Kind.read`."""
        if word.quoted:
            raise ValueError(f'"{word.text}" in quotes')
        return self.take(word.text)

    def take(self, value: object) -> Value:
        """See `Kind.take`."""
        if not isinstance(value, str):
            raise ValueError(_written(value))
        if value in self.words:
            return Sub(value)
        name, _, number = value.partition(":")
        digits = _DIGITS.fullmatch(number)
        if (
            name not in self.numbered
            or digits is None
            or not self.numbered[name] <= int(digits[1]) <= U32_MAX
        ):
            raise ValueError(shown(value))
        return Sub(name, int(digits[1]))


def _written(value: object) -> str:
    """A TOML value in a message; integers that Python refuses to print cannot come from TOML."""
    return (
        shown(value)
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
