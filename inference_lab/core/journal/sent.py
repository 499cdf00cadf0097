"""What a row keeps of what was sent, read off the frames that went out; of calls an id and a digest of arguments."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.end import SILENCE, End, Spoken, end_of
from inference_lab.core.identity import call_id
from inference_lab.core.journal.row import TEXT_BYTES, Call, and_more, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.stream.events import Delivered

MOST_CALLS: Final = 128
"""Calls of one row that are kept; of a history the last ones."""
_OURS: Final = re.compile(r"call_[0-9a-f]{24}(_[0-9]{1,3})?")
"""What an id of a call looks like that this server has made."""

_OPEN_CALL: Final = Spoken(calls_begun=1)


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


def arguments_so_far(template: ChatTemplate, region: str) -> str:
    """The JSON arguments that an answer has said of the call it is in, up to where it breaks off."""
    if not template.json_key_close:
        return region.rpartition(template.name_close)[2] if template.name_close in region else ""
    key, is_told, value = region.rpartition(template.key_open)[2].partition(template.key_close)
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


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """What a response is to its answer.

    `start` is how many words a client holds before its first, None where that cannot be counted; `progress` is what
    the prompt holds, `arguments_before` those of the call it breaks off in. `completion_id` is what ids of calls are
    made of, None where frames have none. Of a captured response the words, or even the end, may be unknown.
    """

    start: int | None
    progress: int
    arguments_before: str = ""
    completion_id: str | None = None
    are_words_known: bool = True
    is_end_known: bool = True

    def fields(self, said: Delivered, calls: SentCalls, status: int | None) -> dict[str, Any]:
        """A row's fields for what has been said, by their names; `status` is None where none has been sent."""
        words = said.words if self.are_words_known else None
        spoken = said.whole_spoken
        # Arguments of a call that was not announced: the leg goes on in one.
        goes_on = len(calls) > spoken.calls_begun
        end = end_of((_OPEN_CALL if goes_on else SILENCE) + spoken, may_be_empty=self.progress > 0)
        return {
            "content_frames": said.content_frames,
            "words": words,
            "reached": None if self.start is None or words is None else self.start + words,
            "done_sent": said.done,
            "finish": spoken.finish,
            "usage": None if said.usage is None else _usage(said.usage),
            "error_sent": spoken.error,
            "calls": tuple(self._calls(calls, goes_on=goes_on)),
            "ends_well": status == 200 and end is End.WHOLE if self.is_end_known else None,
        }

    def _calls(self, calls: SentCalls, *, goes_on: bool) -> list[Call]:
        found = []
        for number, text in islice(calls.by_number(), MOST_CALLS):
            if goes_on and number == 0:
                found.append(Call(None, arguments_digest(self.arguments_before + text)))
            elif self.completion_id is not None:
                found.append(Call(call_id(self.completion_id, number), arguments_digest(text)))
        return [*found, *further_calls(len(calls))] if found else []


def _usage(raw: bytes) -> object:
    return msgspec.json.decode(raw) if len(raw) <= TEXT_BYTES else {"digest": digest(raw)}
