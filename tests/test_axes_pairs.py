"""Every two values of two axes: served as asked, or refused with a reason; and never without an effect.

What is served is held against two things of their own: the model of `axes_model`, byte by byte, and the promises of
each value in what a strict parser makes of the bytes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from inference_lab.answers.answer import fault_pieces
from inference_lab.answers.dialect_shapes import DialectShape
from inference_lab.answers.dialects import DIALECTS
from inference_lab.answers.shapes import ChatShape, Completion, CompletionsShape, Shape
from inference_lab.faults.axes import AXES
from inference_lab.faults.death import HEALTHY, Close, Death
from inference_lab.faults.directive import DirectiveError, parse_directive
from inference_lab.faults.events import Event, Frame, Head, Raw, single
from inference_lab.faults.leg_keys import LEG_KEYS
from inference_lab.faults.script import fault_script
from inference_lab.faults.values import Choice, Flag, Integer, IntegerOrHeader, Signed, SubChoice
from inference_lab.formats import LAB
from inference_lab.progress.position import locate
from inference_lab.prompts.calls import CallTarget
from inference_lab.web.checks import without_effect as without_effect_on
from tests.axes_frames import Answer
from tests.axes_model import Response, respond
from tests.axes_promises import broken_promises
from tests.wire.contract import Stream
from tests.wire.rawclient import CHAT, COMPLETIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inference_lab.answers.pieces import Channel, Pieces

WORDS, PROMPT_TOKENS = 10, 5
FRESH = locate(LAB, "p266")
IDENTS = {CHAT: "chatcmpl-0", COMPLETIONS: "cmpl-0"}
ENDS = {
    Close.TERMINATOR: "keep",
    Close.COMPLETE: "keep",
    Close.FIN: "fin",
    Close.TLS_RAW: "fin",
    Close.RST: "rst",
    Close.HANG: "open",
    Close.STALE: "stale",
}
# Values for the kinds that do not list theirs; and for some that do, to meet more than their edges.
SAMPLES = {
    "content": (
        "text",
        "reasoning",
        "tool_call",
    ),  # the others have an answer of their own: test_call_contents.py
    "after_chunks": ("0", "1", "9", "all"),
    "delay_ms": ("0", "7"),
    "frame_bytes": ("300", "70000"),
    "pause_ms": ("2500",),
    "ttft_ms": ("2500",),
    "heartbeat_ms": ("400",),
    "beats": ("2", "unlimited"),
    "gap_ms": ("30",),
    "idle_ms": ("20",),
    "status": ("204", "429", "503"),
    "retry_after": ("1", '"Wed, 21 Oct 2026 07:28:00 GMT"'),
    "code": ("7", "null", "absent", '"7"', "late"),
    "message": ("M%M",),
    "type": ("sad",),
    "error": (
        "none",
        "vllm",
        "dynamo_comment",
        "openrouter",
        "raw_html",
        "plain",
    ),  # all of them: test_axes.py
    "finish": ("none", "empty_each", "abort"),
    "content_type": ("text/plain",),
    "name": ("x",),
    "test": ("t-1",),
    "times": ("2",),
    "tokens_per_frame": ("1", "3", "varied"),
    "multiline": ("1", "4", "30"),
    "comments": ("0", "2"),
    "retry": ("none", "5", "alone"),
    "segment": ("frame", "byte", "utf8", "crlf", "whole", "3"),
    "length": ("none", "+9", "-9", "both"),
    "tear": ("none", "half", "utf8", "byte:40"),
    "sequence": (
        "none",
        "double_finish",
        "after_finish",
        "after_done",
        "choices_null",
        "choices_empty",
        "dup:2",
        "drop:2",
        "swap:3",
    ),
}
# Keys that the model does not know: what a later leg does, and how others write.
ELSEWHERE = {*LEG_KEYS, "strict_params", "dialect"}
PAIRED = [key for key in AXES if key not in ELSEWHERE]
# Keys that say nothing on their own, and what they need to.
COMPANIONS = {
    "code": "error=openai",
    "message": "error=openai",
    "type": "error=openai",
    "reasoning_key": "content=reasoning;after_chunks=3",
    "content": "after_chunks=3",
    "heartbeat": "ttft_ms=2500",
    "heartbeat_ms": "heartbeat=ping;ttft_ms=2500",
    "beats": "heartbeat=ping;ttft_ms=9500",
    "pause_ms": "after_chunks=3;then=rest",
    "then": "after_chunks=3",
    "retry_after": "status=503",
    "body": "status=503",
    "gap_ms": "segment=byte",
    "idle_ms": "close=idle_close",
    "chunk_error": "close=fin",
}


def values_of(key: str) -> tuple[str, ...]:
    """Every word of an axis, and a few of what has no end of values."""
    kind = AXES[key].kind
    if key in SAMPLES:
        return SAMPLES[key]
    if isinstance(kind, Choice):
        return kind.words
    assert isinstance(kind, Flag), f"{key} needs samples"
    return ("false", "true")


def changes_of(key: str) -> tuple[str, ...]:
    """The values of an axis but for its default."""
    default = str(getattr(HEALTHY, key)).lower()
    return tuple(value for value in values_of(key) if value != default)


def settings_for(key: str, value: str) -> dict[str, str]:
    companions = dict(part.split("=", 1) for part in COMPANIONS.get(key, "").split(";") if part)
    if key == "chunk_error" and value == "trailer":
        companions = {}
    if key == "segment" and value == "crlf":
        companions = {"eol": "crlf"}
    if key == "at" and value == "request":
        companions = {"close": "fin"}
    if key == "status" and value == "204":
        companions = {"body": "empty"}
    if key == "sequence" and value.startswith(("drop", "swap")):
        companions = {"after_chunks": "3", "then": "rest"}
    return {**companions, key: value}


def directive_of(settings: Iterable[tuple[str, str]]) -> str:
    return ";".join(["ok", *(f"{key}={value}" for key, value in settings)])


class Source:
    words = WORDS
    finish = "length"

    def __init__(self, *, chat: bool) -> None:
        self.chat = chat

    def endless(self, content: str) -> Pieces:
        channel: Channel = "text" if content == "text" else "reasoning" if content == "reasoning" else "call"
        return fault_pieces(
            LAB, FRESH, channel, chat=self.chat, call=CallTarget("get_current_weather", "location")
        )


def answer_for(endpoint: str) -> Answer:
    return Answer(Stream(endpoint, IDENTS[endpoint], 1, "m", "qu"), WORDS, "length", PROMPT_TOKENS)


def script_of(death: Death, endpoint: str) -> list[Event]:
    """The events, an endless stream's only so far as the model goes."""
    events = single(
        fault_script(
            death,
            shape_for(endpoint, death),
            Source(chat=endpoint == CHAT),
            prompt_tokens=PROMPT_TOKENS,
            include_usage=True,
            whole=lambda: respond("json_200", answer_for(endpoint)).wire,
        )
    )
    return list(islice(events, 60_000 if death.segment in {"byte", "crlf"} else 600))


def played(events: list[Event]) -> Response:
    """What a player makes of a script; the head as a test sees it."""
    head = events[0] if isinstance(events[0], Head) else None
    wire = b""
    for event in events:
        if isinstance(event, Raw) or (isinstance(event, Frame) and not (head and head.chunked)):
            wire += event.data
        elif isinstance(event, Frame):
            wire += b"%x\r\n%b\r\n" % (len(event.data), event.data)
    close = events[-1]
    if not isinstance(close, Close):
        return Response(wire, "open", 200, endless=True)
    if close is Close.TERMINATOR and head is not None and head.chunked:
        wire += b"0\r\n\r\n"
    end = "idle" if head is not None and head.idle_ms is not None else ENDS[close]
    if head is None:
        return Response(wire, end, 0)
    headers = {name.decode(): value.decode() for name, value in head.headers}
    if head.content_length is not None:
        headers["content-length"] = str(head.content_length)
    if head.chunked:
        headers["transfer-encoding"] = "chunked"
    return Response(wire, end, head.status, tuple(headers.items()))


def shape_for(endpoint: str, death: Death) -> Shape:
    completion = Completion(IDENTS[endpoint], 1, "m")
    chat = endpoint == CHAT
    if death.dialect is not None:
        return DialectShape(DIALECTS[death.dialect], completion, is_chat=chat, usage_asked=True)
    return ChatShape(completion, death.reasoning_key) if chat else CompletionsShape(completion)


@lru_cache(maxsize=4096)
def served(settings: tuple[tuple[str, str], ...], endpoint: str) -> list[Event] | None:
    """The script; None for a refusal, which must give a reason in one line."""
    directive = directive_of(settings)
    try:
        fault = parse_directive(directive)
        reason = without_effect_on(fault.death, secure=True, chat=endpoint == CHAT, counts=True)
        return None if reason else script_of(fault.death, endpoint)
    except ValueError as error:
        reason = str(error)
        from_table = isinstance(error, DirectiveError)
    assert reason.startswith("ok: ") == from_table, directive
    assert "valid modes" not in reason, directive
    assert "\n" not in reason, directive
    return None


def test_the_values_are_all_there_are() -> None:
    for key in PAIRED:
        kind, values = AXES[key].kind, values_of(key)
        words: set[str] = set()
        if isinstance(kind, (Choice, Integer, Signed, SubChoice)):
            words |= set(kind.words)
        if isinstance(kind, SubChoice):
            values = tuple(value.partition(":")[0] for value in values)
            words |= set(kind.numbered)
        assert words <= set(values) or key in {"error", "content"}, key
        assert not isinstance(kind, IntegerOrHeader) or key == "retry_after"


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", PAIRED)
def test_any_two_values_are_served_as_asked_or_refused(key: str, endpoint: str) -> None:
    answer = answer_for(endpoint)
    others = PAIRED[PAIRED.index(key) + 1 :]
    some = slice(None) if endpoint == CHAT else slice(-1, None)  # the other endpoint meets a part of it
    failures: list[str] = []
    met = 0
    for value in values_of(key):
        first = settings_for(key, value)
        pairs = [(other, second) for other in others for second in changes_of(other)[some]]
        for other, second in [(key, value), *pairs]:
            settings = {**settings_for(other, second), **first, other: second, key: value}
            got = served(tuple(settings.items()), endpoint)
            if got is None:
                continue
            met += 1
            directive = directive_of(settings.items())
            response = played(got)
            failures += difference(directive, response, respond(directive, answer))
            failures += [f"{directive}: {text}" for text in broken_promises(directive, response, answer)]
            failures += without_effect(settings, got, endpoint)
    assert not failures, "\n".join(failures[:20]) + f"\n… {len(failures)} of {met}"
    assert met or (key, endpoint) == ("reasoning_key", COMPLETIONS)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "lab"])
def test_any_value_is_served_in_any_dialect_or_refused(dialect: str, endpoint: str) -> None:
    answer = answer_for(endpoint)
    failures: list[str] = []
    met = 0
    for key in PAIRED:
        for value in values_of(key):
            settings = {**settings_for(key, value), "dialect": dialect}
            got = served(tuple(settings.items()), endpoint)
            if got is None:
                continue
            met += 1
            directive = directive_of(settings.items())
            kept = broken_promises(
                directive, played(got), answer, ("after_chunks", "bom", "done", "eol", "multiline")
            )
            failures += [f"{directive}: {text}" for text in kept]
    assert not failures, "\n".join(failures[:20])
    assert met > 100


def without_effect(settings: dict[str, str], got: list[Event], endpoint: str) -> list[str]:
    """The settings that change nothing: the same script comes without them."""
    found = []
    death = parse_directive(directive_of(settings.items())).death
    for key, value in settings.items():
        is_default = getattr(death, key) == getattr(HEALTHY, key)
        # The request asks for usage anyway, a torn frame has nothing behind it anyway, an error may be the end anyway.
        says_so = (
            (key, value) == ("usage", "always")
            or ("tear" in settings and value in {"none", "false"})
            or (key == "done" and "error" in settings)
        )
        if is_default or says_so or key in {"name", "test", "times", "delay_ms"}:
            continue
        rest = tuple((name, word) for name, word in settings.items() if name != key)
        if served(rest, endpoint) == got:
            found.append(f"{directive_of(settings.items())}: {key} changes nothing")
    return found


def difference(directive: str, got: Response, wanted: Response) -> list[str]:
    if wanted.endless:
        same = got.wire.startswith(wanted.wire) and got.endless
    else:
        same = got.wire == wanted.wire and (got.end, got.status) == (wanted.end, wanted.status)
        headers = dict(got.headers)
        same = same and all(headers.get(name) == value for name, value in wanted.headers)
    if same:
        return []
    place = next(
        (i for i, (a, b) in enumerate(zip(got.wire, wanted.wire, strict=False)) if a != b),
        min(len(got.wire), len(wanted.wire)),
    )
    return [
        (
            f"{directive}: {got.end} {got.status} for {wanted.end} {wanted.status}, at byte {place}"
            f" {got.wire[max(0, place - 30) : place + 60]!r} for {wanted.wire[max(0, place - 30) : place + 60]!r}"
            f" {dict(got.headers)} for {dict(wanted.headers)}"
        )
    ]
