"""What hides credentials in a capture, however the response repeats them: an `x` in place of each byte.

Looked for is each credential as it was sent or decoded, in large letters or small, every character of it plain,
percent-encoded, escaped as in JSON (both once or several times over), as in HTML or in a program's strings; and the
whole in hex or base64, also as a part of something longer. It is looked for in the data as it came, and in what a
client makes of it: the body without the sizes of its chunks, and for each key of JSON the strings of all frames,
one after the other.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left, bisect_right
from html.entities import html5
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from inference_lab.commands.record.capture import Recorded, Step

LOOKED_FOR: Final = "as sent, decoded, percent-encoded, escaped as in JSON and HTML, in hex and base64"

_Span = tuple[int, int]
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]+[^\r\n]*\r\n(.*)\r\n", re.DOTALL)
_MEMBER: Final = re.compile(rb'"(\w+)"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)

# JSON within JSON has its backslashes doubled each time.
_BACKSLASHES: Final = rb"\\\\{0,7}"
_BASE64: Final = rb"[A-Za-z0-9+/_-]"
_URL_SAFE: Final = {"+": b"-", "/": b"_"}
# Encoders for mail and PEM end a line after 64 or 76 characters; in JSON a line feed is escaped.
_BREAK: Final = rb"(?:[\r\n]|\\+[rn]){0,2}"
_HTML: Final[dict[str, list[bytes]]] = {}
for _name, _char in html5.items():
    if _name.endswith(";"):
        _HTML.setdefault(_char, []).append(b"&%b" % _name.encode())


class Mask:
    """Hides `secrets`; `in_head` and `in_body` count the places where that was needed."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._patterns = [re.compile(pattern) for secret in secrets for pattern in _patterns(secret)]
        self.in_head = self.in_body = 0

    @property
    def has_secrets(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._patterns)

    def of(self, recorded: Recorded) -> Recorded:
        """The capture without them: in its head, and in its body, also where one is cut over several steps."""
        self.in_body += mask_steps(recorded.steps, self._patterns)
        headers = []
        for name, value in recorded.headers:
            hidden, places = self._hide(value.encode("latin-1"))
            self.in_head += places
            headers.append((name, hidden.decode("latin-1")))
        return msgspec.structs.replace(recorded, headers=tuple(headers))

    def text(self, text: str) -> str:
        """A text of the request without them."""
        return self._hide(text.encode())[0].decode()

    def _hide(self, data: bytes) -> tuple[bytes, int]:
        return _hidden(data, self._patterns)


def mask_steps(steps: Sequence[Step], patterns: Sequence[re.Pattern[bytes]]) -> int:
    """Hide what matches in the joined data of steps, also what a client puts together; the number of places."""
    data = b"".join(step.data for step in steps)
    whole, places = _hidden(data, patterns, (_payload(steps), *_strings(data)))
    place = 0
    for step in steps if places else ():
        step.data = whole[place : place + len(step.data)]
        place += len(step.data)
    return places


def _payload(steps: Sequence[Step]) -> list[_Span]:
    """Where the body stands in the data, without the sizes of chunks that are kept as they were spelled."""
    spans = []
    place = 0
    for step in steps:
        size = None if step.framed else _CHUNK.fullmatch(step.data)
        begin, end = (0, len(step.data)) if size is None else size.span(1)
        spans.append((place + begin, place + end))
        place += len(step.data)
    return spans


def _strings(data: bytes) -> Iterable[list[_Span]]:
    """Where the values of each key stand that are strings: frames spell an answer by them, piece by piece."""
    by_key: dict[bytes, list[_Span]] = {}
    for found in _MEMBER.finditer(data):
        by_key.setdefault(found[1], []).append(found.span(2))
    return by_key.values()


def _hidden(
    data: bytes, patterns: Sequence[re.Pattern[bytes]], parts: Iterable[list[_Span]] = ()
) -> tuple[bytes, int]:
    """The data with each place that matches hidden, places that overlap being one; how many there were.

    Looked at is the whole, and what each list of `parts` of it comes to, one after the other.
    """
    matches = [matched for spans in ([(0, len(data))], *parts) for matched in _matches(data, spans, patterns)]
    hidden = bytearray(data)
    places = end = 0
    for spans in sorted(matches):
        places += spans[0][0] >= end
        end = max(end, spans[-1][1])
        for begin, behind in spans:
            hidden[begin:behind] = b"x" * (behind - begin)
    return bytes(hidden), places


def _matches(
    data: bytes, spans: Sequence[_Span], patterns: Iterable[re.Pattern[bytes]]
) -> Iterator[list[_Span]]:
    """Where each match stands in the data: in one place, or in some of the spans."""
    joined = b"".join(data[begin:end] for begin, end in spans)
    starts = list(accumulate((end - begin for begin, end in spans), initial=0))
    for pattern in patterns:
        for found in pattern.finditer(joined):
            begin, behind = found.span()
            matched = []
            for index in range(bisect_right(starts, begin) - 1, bisect_left(starts, behind)):
                offset = spans[index][0] - starts[index]
                first, last = max(begin, starts[index]), min(behind, starts[index + 1])
                if first < last:
                    matched.append((first + offset, last + offset))
            yield matched


def _patterns(secret: bytes) -> Iterator[bytes]:
    yield b"".join(map(_any_form, secret.decode()))
    yield rb"[ :-]?".join(b"(?i:%02x)" % byte for byte in secret)
    for before in range(3):  # bytes before it, in the group of three that base64 makes four characters of
        after = before + len(secret)
        # Of these all six bits are the secret's own.
        own = base64.b64encode(bytes(before) + secret)[-(-8 * before // 6) : 8 * after // 6].decode()
        yield _BREAK.join(map(_any_base64, own)) + (_BASE64 + rb"?" if after % 3 else b"")


def _any_base64(char: str) -> bytes:
    form = _any_form(char, of_base64=True)
    other = _URL_SAFE.get(char)
    return form if other is None else b"(?:%b|%b)" % (other, form)


def _any_form(char: str, *, of_base64: bool = False) -> bytes:
    """What matches a character, in whatever way it is written; of base64 a large letter is another than a small one."""
    forms = [re.escape(char.encode())]
    if not of_base64 and len(char.swapcase()) == 1:
        forms.append(re.escape(char.swapcase().encode()))
    if not char.isalnum():
        forms.append(_BACKSLASHES + re.escape(char.encode()))
    if not char.isascii():
        # What a head holds that is not printable is a question mark by now.
        heads = ["".join(c if c.isprintable() else "?" for c in form.decode("latin-1")) for form in forms[:2]]
        forms += [re.escape(form.encode("latin-1")) for form in heads if "?" in form]
    units = char.encode("utf-16-be")
    forms += [
        b"".join(b"%bu(?i:%02x%02x)" % (_BACKSLASHES, *units[at : at + 2]) for at in range(0, len(units), 2)),
        b"".join(b"%%(?:25){0,7}(?i:%02x)" % byte for byte in char.encode()),
        b"".join(b"%bx(?i:%02x)" % (_BACKSLASHES, byte) for byte in char.encode()),
        b"%bu\\{0{0,4}(?i:%x)\\}" % (_BACKSLASHES, ord(char)),
        b"&#0{0,6}%d;?" % ord(char),
        b"&#[xX]0{0,6}(?i:%x);?" % ord(char),
        *map(re.escape, _HTML.get(char, ())),
    ]
    if char == " ":
        forms.append(rb"\+")
    # The longest form first: a backslash that escapes belongs to what it escapes.
    return b"(?:%b)" % b"|".join(reversed(forms))
