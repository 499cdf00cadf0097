"""Directives as scripts, without a server: what the core makes of one, and the bytes that a player puts on the wire."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import LAB
from inference_lab.core.apis.contract import Completion, Prompt
from inference_lab.core.apis.request import Common, StreamOptions
from inference_lab.core.apis.table import APIS
from inference_lab.core.faults.applies import why_invisible
from inference_lab.core.faults.death import Close, Death
from inference_lab.core.faults.directive import DirectiveError, Fault, parse_directive
from inference_lab.core.faults.leg_keys import on_leg
from inference_lab.core.stream.assemble import Asked, Model, script
from inference_lab.core.stream.chunks import Spelled, shown
from inference_lab.core.stream.events import Event, Frame, Head, single
from tests.reference_model.contract import CHAT, COMPLETIONS, Stream, word
from tests.reference_model.frames import Answer
from tests.reference_model.model import Response
from tests.support.axes_values import directive_of

WORDS, PROMPT_TOKENS, REASONING = 10, 5, 4
FRESH = locate(LAB, "p266")
PASSED_ON = 5
LEG = locate(LAB, "p266" + "".join(word("qu", index) for index in range(PASSED_ON)))
"""Where a request stands that asks for the rest of an answer."""
API_OF = {api.path: api for api in APIS.values()}
IDENTS = {CHAT: "chatcmpl-0", COMPLETIONS: "cmpl-0"}
ENDS = {
    Close.TERMINATOR: "keep",
    Close.COMPLETE: "keep",
    Close.FIN: "fin",
    Close.TLS_RAW: "fin",
    Close.RST: "rst",
    Close.TERMINATOR_RST: "rst",
    Close.HANG: "open",
    Close.STALE: "stale",
}


def answer_for(endpoint: str, *, leg: bool = False) -> Answer:
    stream = Stream(endpoint, IDENTS[endpoint], 1, "m", "qu")
    return Answer(stream, WORDS, "length", PROMPT_TOKENS, begins=PASSED_ON if leg else 0, reasons=REASONING)


def script_of(
    death: Death, endpoint: str, *, leg: bool = False, streaming: bool = True, most: int = 600
) -> list[Event]:
    """The events, an endless stream's only so far as the model goes; `streaming` is what the request asked for."""
    api = API_OF[endpoint]
    position = replace(LEG if leg else FRESH, is_raw=api.is_raw)
    if leg:
        found = on_leg(death, is_later=True)
        assert found is not None
        death = found
    body = Common(stream=streaming, stream_options=StreamOptions(include_usage=True), max_tokens=WORDS)
    prompt = Prompt([0] * PROMPT_TOKENS, position, thinking=True)
    asked = Asked(api, body, prompt, Model(name="m", reasoning_words=REASONING))
    events = single(script(asked, Fault("ok", (), death), Completion(IDENTS[endpoint], 1, "m")))
    return list(islice(events, 60_000 if death.segment in {"byte", "crlf"} else most))


def played(events: list[Event]) -> Response:
    """What a player makes of a script; the head as a test sees it."""
    head = events[0] if isinstance(events[0], Head) else None
    wire = b""
    in_chunks = head is not None and head.framing == "stream"
    for event in shown(events):
        if isinstance(event, Spelled) or (isinstance(event, Frame) and not in_chunks):
            wire += event.data
        elif isinstance(event, Frame):
            wire += b"%x\r\n%b\r\n" % (len(event.data), event.data)
    close = events[-1]
    if not isinstance(close, Close):
        return Response(wire, "open", 200, infinite_pieces=True)
    if close is Close.TERMINATOR and in_chunks:
        wire += b"0\r\n\r\n"
    end = "idle" if head is not None and head.idle_ms is not None else ENDS[close]
    if head is None:
        return Response(wire, end, 0)
    headers = {name.decode(): value.decode() for name, value in head.headers}
    if head.closes:
        headers["connection"] = "close"
    if head.content_length is not None:
        headers["content-length"] = str(head.content_length)
    if in_chunks:
        headers["transfer-encoding"] = "chunked"
    return Response(wire, end, head.status, tuple(headers.items()))


@lru_cache(maxsize=4096)
def served(
    settings: tuple[tuple[str, str], ...], endpoint: str, *, leg: bool = False, streaming: bool = True
) -> list[Event] | None:
    """The script, on the first leg or a later one; None for a refusal, which must give a reason in one line."""
    directive = directive_of(settings)
    try:
        fault = parse_directive(directive)
        if why_invisible(fault, api=API_OF[endpoint], counts=True) is not None:  # whatever the leg
            return None
        return script_of(fault.death, endpoint, leg=leg, streaming=streaming)
    except ValueError as error:
        reason = str(error)
        from_table = isinstance(error, DirectiveError)
    assert reason.startswith("ok: ") == from_table, directive
    assert "modes: " not in reason, directive
    assert "\n" not in reason, directive
    return None
