"""A fault shown without a server: the script that a small request would be answered with, printed as values."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from inference_lab.core.answer.answer import word
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.contract import Prompt
from inference_lab.core.faults.death import Close
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.plan import FaultPlan, plan_from_header
from inference_lab.core.stream.assemble import Asked, Model, completion_of, script
from inference_lab.core.stream.chunks import Spelled, shown
from inference_lab.core.stream.events import TURN, Frame, Head, Pause, Turn, single
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from inference_lab.core.apis.contract import Api
    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.stream.events import Event

WORDS: Final = 8
"""How many words the whole answer of the shown request has."""
MOST_EVENTS: Final = 200
MOST_LEGS: Final = 16
MOST_BYTES: Final = 2**18
"""Of what is sent, over all legs: whoever asks waits for them to be made, and so does everybody else."""
_SHOWN_BYTES: Final = 2000
_PROMPT: Final = "<|user|>hello<|end|><|assistant|>"
_MODEL: Final = Model(name="MODEL")
_DIGITS: Final = "0" * 24
_PASSED_ON: Final = 4
"""Words after a request on which a key of later legs is shown."""

Value: TypeAlias = dict[str, object]


def preview(directive: str, *, api: Api[Any] = CHAT, incidents: Incidents = NO_INCIDENTS) -> list[Value]:
    """As `preview_in_turns`, at once."""
    values: list[Value] = []

    def take() -> Generator[Turn]:
        values.extend((yield from preview_in_turns(directive, api=api, incidents=incidents)))

    deque(take(), maxlen=0)
    return values


def preview_in_turns(
    directive: str, *, api: Api[Any] = CHAT, incidents: Incidents = NO_INCIDENTS
) -> Generator[Turn, None, list[Value]]:
    """What each element of a directive is answered with: `leg`, `progress`, `fault`, `events` and `end`.

    `leg` is the leg whose fate it is, `progress` where in the answer that begins. An element that is for some requests
    only has `times` too, and shares the leg of the next where it adds no word; nothing is counted.
    An event is a `head`, a `pause_ms`, a `chunk`, `bytes` without a chunk around them, or `raw` bytes; `end` is the
    close, None where more follows than is shown. At most `MOST_LEGS` elements are shown, and of each `MOST_EVENTS`; if
    there are others, the last value says how many `more`.

    Raises:
        ValueError: a directive, or a shown death, that the server would refuse.
    """
    plan = plan_from_header(directive, incidents)
    values: list[Value] = []
    left_bytes = MOST_BYTES
    for fault, (leg, progress) in islice(zip(plan.elements, _legs(plan), strict=True), MOST_LEGS):
        if left_bytes <= 0:
            break
        value, sent_bytes = yield from _element(leg, fault, progress, left_bytes, api)
        values.append(value)
        yield TURN
        left_bytes -= sent_bytes
    more = len(plan.elements) - len(values)
    return [*values, {"more": more}] if more else values


def _legs(plan: FaultPlan) -> Iterator[tuple[int, int]]:
    """The leg of each element, and how many words are passed on before it."""
    leg, progress = 0, _PASSED_ON if plan.leg_key else 0
    for words in plan.words_per_leg():
        yield leg, progress
        leg += words != 0
        progress += words or 0


def _element(
    number: int, fault: Fault, progress: int, most_bytes: int, api: Api[Any]
) -> Generator[Turn, None, tuple[Value, int]]:
    """An element's value, and how many bytes it sends, as far as it is shown."""
    fault = fault.in_stream
    leg: Value = {"leg": number, "progress": progress}
    if fault.death.times is not None:
        leg["times"] = fault.death.times
    leg["fault"] = fault.canonical() if fault.settings or not fault.is_engine else None
    on_leg = FaultPlan((fault,), every_leg=True).fault_for(progress)
    if on_leg is None:
        return {**leg, "events": [], "end": "as the engine answers"}, 0
    events: list[Value] = []
    end = None
    count = sent_bytes = 0
    framing = "stream"
    for event in shown(single(_script(on_leg, progress, api))):
        if isinstance(event, Turn):
            yield event
            continue
        count += 1
        if isinstance(event, Close):
            end = event.ending
        elif isinstance(event, Head):
            framing = event.framing
            events.append({"head": _head(event)})
        elif isinstance(event, Pause):
            events.append({"pause_ms": event.ms})
        elif isinstance(event, (Frame, Spelled)):
            kind = "raw" if isinstance(event, Spelled) else "chunk" if framing == "stream" else "bytes"
            events.append({kind: _shown(event.data)})
            sent_bytes += len(event.data)
        if sent_bytes >= most_bytes or count >= MOST_EVENTS:
            break
    return {**leg, "events": events, "end": end}, sent_bytes


def _script(fault: Fault, progress: int, api: Api[Any]) -> Iterator[Event]:
    fresh = locate(_MODEL.template, _PROMPT, is_raw=api.is_raw)
    # The last word alone says where the answer goes on, however many stand before it.
    so_far = word(fresh.tag, progress - 1) if progress else ""
    position = locate(_MODEL.template, _PROMPT + so_far, is_raw=api.is_raw) if progress else fresh
    prompt_tokens = len(encode(_PROMPT)) + progress  # a word is a token
    asked = Asked(api, api.sample(WORDS), Prompt([0] * prompt_tokens, position, thinking=False), _MODEL)
    completion = completion_of(asked, fault, _DIGITS)

    def whole(*_: object) -> Generator[Turn, None, bytes]:
        yield from ()
        return msgspec.json.encode({"id": completion.id, "object": "the whole answer"})

    try:
        return script(asked, fault, completion, whole=whole)
    except ValueError as error:
        raise ValueError(f"{fault.mode}: {error}") from None


def _head(head: Head) -> Value:
    headers = [f"{name.decode()}: {value.decode('latin-1')}" for name, value in head.headers]
    if head.closes:
        headers.append("connection: close")
    if head.content_length is not None:
        headers.append(f"content-length: {head.content_length}")
    if head.framing == "stream":
        headers.append("transfer-encoding: chunked")
    return {"status": head.status, "headers": headers}


def _shown(data: bytes) -> str:
    """Bytes as text, what is no UTF-8 escaped, cut where they are many."""
    text = data[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return text if len(data) <= _SHOWN_BYTES else f"{text}… ({len(data)} bytes)"
