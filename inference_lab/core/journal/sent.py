"""What a row tells of what was sent: read off the frames that went out, whoever wrote them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.end import SILENCE, End, Spoken, end_of
from inference_lab.core.identity import call_id
from inference_lab.core.journal.bounds import TEXT_BYTES
from inference_lab.core.journal.calls import MOST_CALLS, arguments_digest, further_calls
from inference_lab.core.journal.parameters import digest
from inference_lab.core.journal.row import Call

if TYPE_CHECKING:
    from inference_lab.core.journal.calls import SentCalls
    from inference_lab.core.stream.events import Said

_OPEN_CALL: Final = Spoken(calls_begun=1)


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

    def fields(self, said: Said, calls: SentCalls, status: int | None) -> dict[str, Any]:
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
