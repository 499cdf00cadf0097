"""What hides credentials in a capture, however the response repeats them: an `x` in place of each byte.

Looked for is each credential as it was sent or decoded, every character of it plain, percent-encoded, escaped as in
JSON (once or several times over) or as in HTML; and the whole in base64, also as a part of something longer.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from inference_lab.record.capture import Recorded, Step

LOOKED_FOR: Final = "as sent, decoded, percent-encoded, escaped as in JSON and HTML, and in base64"

# JSON within JSON has its backslashes doubled each time.
_BACKSLASHES: Final = rb"\\\\{0,7}"
_BASE64: Final = rb"[A-Za-z0-9+/_-]"
_URL_SAFE: Final = {"+": b"-", "/": b"_"}
_HTML: Final = {"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&quot;", "'": b"&apos;"}


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


def mask_steps(steps: Sequence[Step], patterns: Iterable[re.Pattern[bytes]]) -> int:
    """Hide what matches in the joined data of steps; the number of places."""
    whole, places = _hidden(b"".join(step.data for step in steps), patterns)
    place = 0
    for step in steps if places else ():
        step.data = whole[place : place + len(step.data)]
        place += len(step.data)
    return places


def _hidden(data: bytes, patterns: Iterable[re.Pattern[bytes]]) -> tuple[bytes, int]:
    """The data with each place that matches hidden, places that overlap being one; how many there were."""
    spans = sorted(found.span() for pattern in patterns for found in pattern.finditer(data))
    hidden = bytearray(data)
    places = end = 0
    for begin, behind in spans:
        places += begin >= end
        end = max(end, behind)
        hidden[begin:behind] = b"x" * (behind - begin)
    return bytes(hidden), places


def _patterns(secret: bytes) -> Iterator[bytes]:
    yield b"".join(map(_any_form, secret.decode()))
    for before in range(
        3
    ):  # bytes in front of it, in the group of three that base64 makes four characters of
        after = before + len(secret)
        # Of these all six bits are the secret's own.
        own = base64.b64encode(bytes(before) + secret)[-(-8 * before // 6) : 8 * after // 6].decode()
        yield b"".join(map(_any_base64, own)) + (_BASE64 + rb"?" if after % 3 else b"")


def _any_base64(char: str) -> bytes:
    other = _URL_SAFE.get(char)
    return _any_form(char) if other is None else b"(?:%b|%b)" % (other, _any_form(char))


def _any_form(char: str) -> bytes:
    """What matches a character, in whatever way it is written."""
    forms = [re.escape(char.encode())]
    if not char.isalnum():
        forms.append(_BACKSLASHES + re.escape(char.encode()))
    units = char.encode("utf-16-be")
    forms += [
        b"".join(b"%bu(?i:%02x%02x)" % (_BACKSLASHES, *units[at : at + 2]) for at in range(0, len(units), 2)),
        b"".join(b"%%(?:25)?(?i:%02x)" % byte for byte in char.encode()),
        b"&#0{0,4}%d;" % ord(char),
        b"&#[xX]0{0,4}(?i:%x);" % ord(char),
    ]
    if char in _HTML:
        forms.append(_HTML[char])
    if char == " ":
        forms.append(rb"\+")
    # The longest form first: a backslash that escapes belongs to what it escapes.
    return b"(?:%b)" % b"|".join(reversed(forms))
