r"""The directive's grammar: text into elements, keys and words, before anything knows what they mean.

    list = element *( "," element )      element = mode *( ";" key "=" value )

Blanks and tabs around each part do not count; key and value part at the first `=`. A value is a bare word (no blank,
comma, semicolon or quote) or a quoted string, in which `\"` and `\\` stand for `"` and `\` and `,` `;` mean
nothing.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

SHOWN: Final = 60
"""How many characters of somebody's own text a message shows."""

MOST_ELEMENTS: Final = 1000
"""The longest list: reading an element takes some 50 µs, in which nobody else is served."""

_BLANK: Final = " \t"
# A run of what has no meaning outside quotes, one quoted string, or one separator.
_PIECE: Final = re.compile(r'[^",;]+|"(?:[^"\\]|\\["\\])*"|[",;]')
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class GrammarError(ValueError):
    """Text that is no list of elements; the message says why."""


class Word(msgspec.Struct, frozen=True):
    """A value as it was written: a quoted string never means a word of the grammar."""

    text: str
    quoted: bool = False


class Element(msgspec.Struct, frozen=True):
    """One element of a list: a mode and its settings in order."""

    mode: str
    settings: tuple[tuple[str, Word], ...] = ()


def parse(text: str) -> tuple[Element, ...]:
    """Read a list of elements; at least one.

    Raises:
        GrammarError: an empty part, an unclosed quote, a key without a value or given twice, a control character, more
            than `MOST_ELEMENTS`.
    """
    if re.search(r"[\r\n\0]", text):
        raise GrammarError("a line feed, carriage return or NUL")
    return tuple(_element(parts) for parts in _split(text))


def shown(text: str) -> str:
    """A client's own text, quoted and cut so that a message stays one short line."""
    quoted = repr(text[: SHOWN + 1])  # which may be much longer, where it escapes
    return quoted if len(quoted) <= SHOWN + 2 else f"{quoted[: SHOWN + 1]}…{quoted[0]}"


def _split(text: str) -> list[list[list[str]]]:
    """Elements of parts of pieces."""
    elements: list[list[list[str]]] = [[[]]]
    # Found one by one: after a quote that does not close, each later quote would be looked at to the end of the text.
    for found in _PIECE.finditer(text):
        piece = found[0]
        if piece == ",":
            if len(elements) == MOST_ELEMENTS:
                raise GrammarError(f"a list of more than {MOST_ELEMENTS} elements")
            elements.append([[]])
        elif piece == ";":
            elements[-1].append([])
        elif piece == '"':
            raise GrammarError(
                "a quoted string that does not close, or holds a backslash that escapes nothing"
            )
        else:
            elements[-1][-1].append(piece)
    return elements


def _element(parts: list[list[str]]) -> Element:
    mode = "".join(parts[0]).strip(_BLANK)
    if not mode:
        raise GrammarError("the fault has no mode")
    settings: dict[str, Word] = {}
    for part in parts[1:]:
        if not "".join(part).strip(_BLANK):
            raise GrammarError("an empty part (two semicolons, or one at the end)")
        key, word = _setting(part)
        if key in settings:
            raise GrammarError(f"{key:.{SHOWN}} is given twice")
        settings[key] = word
    return Element(mode, tuple(settings.items()))


def _setting(part: list[str]) -> tuple[str, Word]:
    head, equals, rest = part[0].partition("=")
    key = head.strip(_BLANK)
    pieces = [piece for piece in (rest.strip(_BLANK), *(piece.strip(_BLANK) for piece in part[1:])) if piece]
    if not equals or part[0].startswith('"'):
        raise GrammarError(f"{shown(key)} has no value, expected key=value")
    if len(pieces) > 1:
        raise GrammarError(
            f"{key:.{SHOWN}} is {shown(' '.join(pieces))}, expected one bare word or one quoted string"
        )
    value = pieces[0] if pieces else ""
    if value.startswith('"'):
        return key, Word(_ESCAPED.sub(r"\1", value[1:-1]), quoted=True)
    if re.search(r"[ \t]", value):
        raise GrammarError(f"{key:.{SHOWN}} is {shown(value)}: a value with blanks goes in quotes")
    return key, Word(value)
