"""The echo-directive: an answer that a chat message spells out, `<<respond:{"text": …}>>`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from inference_lab.core.answer.templates import ChatTemplate
from inference_lab.core.identity import TEST_ID, TEST_ID_EXPECTED
from inference_lab.core.json_text import Ends, scan, spaced
from inference_lab.core.prompts.messages import Call
from inference_lab.core.tokens import count_tokens

_OPENING: Final = "<<respond:"
_PIECE: Final = re.compile(b"[^ ]+| [^ ]*")
_CLOSING: Final = re.compile(r"[ \t\n\r]*>>")


class Echo(msgspec.Struct, frozen=True):
    """An answer to be given verbatim; `test` is the id of the test that asks."""

    text: str
    tool_calls: tuple[Call, ...]
    finish_reason: str
    test: str | None = None

    def text_pieces(self) -> Iterator[str]:
        """The text of each content frame: cut before each blank, so that the pieces joined are the text.

        It is held in UTF-8 while they are made, however many there are: one emoji makes a text of Python's four times
        as large.
        """
        return map(_piece, _PIECE.finditer(self.text.encode("utf-8", "surrogatepass")))

    def completion_tokens(self, template: ChatTemplate) -> int:
        """Ids of the text and of each call in the format's markup."""
        return count_tokens(self.text) + sum(count_tokens(template.call(call)) for call in self.tool_calls)


def _piece(found: re.Match[bytes]) -> str:
    return found[0].decode("utf-8", "surrogatepass")


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any]


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    tool_calls: list[_Call] | None = None
    finish_reason: str | None = None
    test: str | None = None

    def __post_init__(self) -> None:
        if self.test is not None and not TEST_ID.fullmatch(self.test):
            raise ValueError(f"test is {self.test[:80]!r}, expected {TEST_ID_EXPECTED}")


def find(texts: Iterable[str]) -> Echo | None:
    """The last echo-directive of the messages' texts that is JSON and closes with `>>`, or None.

    Linear in the texts' length: see `json_text.scan`.

    Raises:
        ValueError: its JSON has another shape than `{text, tool_calls: [{name, arguments}], finish_reason, test}`.
    """
    for text in reversed(list(texts)):
        start = text.rfind(_OPENING)
        while start >= 0:
            value = _value(text, start + len(_OPENING))
            if value is not None:
                return _echo(value)
            start = text.rfind(_OPENING, 0, start)
    return None


def _value(text: str, start: int) -> msgspec.Raw | None:
    """The JSON between the directive's opening and closing, None if there is no such thing."""
    found = scan(text, start)
    if found.ends is not Ends.WHOLE or not _CLOSING.match(text, found.end):
        return None
    try:
        return msgspec.json.decode(text[start : found.end], type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _echo(value: msgspec.Raw) -> Echo:
    try:
        answer = msgspec.json.decode(value, type=_Answer)
        calls = tuple(
            Call(call.name, call.arguments if isinstance(call.arguments, str) else spaced(call.arguments))
            for call in answer.tool_calls or ()
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"<<respond:…>>: {error}") from None
    finish = answer.finish_reason
    reason = finish if finish is not None else "tool_calls" if calls else "stop"
    return Echo(answer.text or "", calls, reason, answer.test)
