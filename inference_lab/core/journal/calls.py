"""Calls as a row keeps them: an id and a digest of the arguments, never their text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.journal.bounds import and_more
from inference_lab.core.journal.parameters import digest
from inference_lab.core.journal.row import Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from inference_lab.core.answer.templates import Format

MOST_CALLS: Final = 128
"""Calls of one row that are kept; of a history the last ones."""
_OURS: Final = re.compile(r"call_[0-9a-f]{24}(_[0-9]{1,3})?")
"""What an id of a call looks like that this server has made."""


def arguments_digest(text: str) -> str:
    """16 hex digits, the same for the same JSON however it is written, else for the same text."""
    try:
        return digest(msgspec.json.encode(msgspec.json.decode(text), order="deterministic"))
    except (ValueError, RecursionError):
        return digest(text.encode("utf-8", "surrogatepass"))


def calls_in(messages: object) -> tuple[Call, ...]:
    """The calls of ours that a request's messages hold; what has another shape is passed over."""
    found = [
        Call(call["id"], arguments_digest(_written(call)))
        for call in _calls_of(messages)
        if isinstance(call.get("id"), str) and _OURS.fullmatch(call["id"])
    ]
    return (*further_calls(len(found)), *found[-MOST_CALLS:])


def further_calls(count: int) -> tuple[Call, ...]:
    """What stands for those of `count` calls that are not kept: no id that anything could be judged by."""
    return (Call(None, and_more(count - MOST_CALLS)),) if count > MOST_CALLS else ()


def _calls_of(messages: object) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        yield from (call for call in (calls if isinstance(calls, list) else ()) if isinstance(call, dict))


def _written(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def arguments_so_far(style: Format, region: str) -> str:
    """The JSON arguments that an answer has said of the call it is in, up to where it breaks off."""
    if not style.json_key_close:
        return region.rpartition(style.name_close)[2] if style.name_close in region else ""
    key, is_told, value = region.rpartition(style.key_open)[2].partition(style.key_close)
    return f'{{"{key}": "{value}' if is_told else ""


class SentCalls:
    """The arguments of an answer's calls by their numbers, as far as they have been sent."""

    def __init__(self) -> None:
        self._texts: dict[int, bytearray] = {}

    def take(self, fragments: Iterable[tuple[int, str]]) -> None:
        """More of their arguments."""
        for number, text in fragments:
            self._texts.setdefault(number, bytearray()).extend(text.encode())

    def __len__(self) -> int:
        return len(self._texts)

    def by_number(self) -> Iterator[tuple[int, str]]:
        """Each call's number and arguments."""
        return ((number, text.decode()) for number, text in self._texts.items())
