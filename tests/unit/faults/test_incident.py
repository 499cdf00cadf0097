"""Incidents as scripts: what a captured response sends, with no server running."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.answer import fault_pieces
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import LAB
from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.contract import Completion
from inference_lab.core.apis.table import APIS
from inference_lab.core.faults.death import Close
from inference_lab.core.faults.directive import DirectiveError, parse_directive
from inference_lab.core.faults.incident import Incident, Piece, incident_script, parts_of
from inference_lab.core.faults.plan import plan_from_header, plan_from_prompt, plan_from_table
from inference_lab.core.stream.chunks import END, Shown, Spelled, shown
from inference_lab.core.stream.events import Break, Event, Frame, Head, Pause

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api

COMPLETION = Completion("chatcmpl-0", 1, 'a "model"')
SSE = ((b"content-type", b"text/event-stream"),)
CAPTURED = (Piece((b"one",)), Pause(40), Piece((b"two",)), Piece((b"0\r\n",), framed=False), Pause(5))


def incident(name: str = "captured", **more: object) -> Incident:
    given_fields = {"status": 200, "headers": SSE, "framing": "chunked", "close": "fin", "steps": CAPTURED}
    return Incident(name=name, **{**given_fields, **more})  # type: ignore[arg-type]


def script(value: Incident, delay_ms: int | None = None, api: Api[Any] = CHAT) -> list[Event]:
    words = fault_pieces(LAB, locate(LAB, "p266", is_raw=api.is_raw), "text")
    return list(incident_script(value, COMPLETION, map(api.text_of, words), delay_ms=delay_ms))


def test_a_replay_has_the_recorded_pieces_and_pauses() -> None:
    assert script(incident(head_pause_ms=7)) == [
        Pause(7),
        Head(200, SSE),
        Frame(b"one"),
        Pause(40),
        Frame(b"two"),
        Break("raw", b"0\r\n"),
        Pause(5),
        Close.FIN,
    ]


@pytest.mark.parametrize("delay_ms", [0, 9])
def test_a_delay_stands_between_the_pieces_in_place_of_the_recorded_pauses(delay_ms: int) -> None:
    pause = [Pause(delay_ms)] if delay_ms else []
    assert script(incident(head_pause_ms=7), delay_ms) == [
        Head(200, SSE),
        Frame(b"one"),
        *pause,
        Frame(b"two"),
        *pause,
        Break("raw", b"0\r\n"),
        Close.FIN,
    ]


@pytest.mark.parametrize(
    ("framing", "off_by", "head"),
    [
        ("chunked", 0, Head(200, SSE)),
        ("length", 0, Head(200, SSE, "length", content_length=9)),
        ("length", -9, Head(200, SSE, "length", content_length=0)),
        ("both", 5, Head(200, SSE, content_length=14)),
        ("none", 0, Head(200, SSE, "none")),
    ],
)
def test_the_framing_says_what_the_head_announces(framing: str, off_by: int, head: Head) -> None:
    assert script(incident(framing=framing, length_off_by=off_by))[0] == head


@pytest.mark.parametrize(
    ("close", "idle_ms", "end"),
    [
        ("terminator", 0, [Close.TERMINATOR]),
        ("terminator_rst", 0, [Spelled(END), Close.TERMINATOR_RST]),
        ("idle_close", 3, [Close.TERMINATOR]),
        ("stale", 0, [Spelled(END), Close.STALE]),
        ("fin", 0, [Close.FIN]),
        ("rst", 0, [Close.RST]),
        ("hang", 0, [Close.HANG]),
        ("tls_raw", 0, [Close.TLS_RAW]),
    ],
)
def test_every_close_ends_as_the_axis_of_its_name_does(close: str, idle_ms: int, end: list[Shown]) -> None:
    ends = shown(script(incident(steps=(), close=close, idle_ms=idle_ms)))
    assert list(ends) == [Head(200, SSE, idle_ms=idle_ms or None), *end]
    _, *unchunked = shown(script(incident(steps=(), close=close, idle_ms=idle_ms, framing="length")))
    assert unchunked == [event for event in end if not isinstance(event, Spelled)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"close": "eof"}, "close is 'eof', expected one of terminator, terminator_rst, "),
        ({"close": "terminator", "framing": "none"}, "close is 'terminator', which a body without an end"),
        ({"idle_ms": 1}, "idle_ms is 1, which goes with close idle_close only"),
        ({"length_off_by": 1}, "head.length_off_by is 1, which goes with framing length or both only"),
        ({"framing": "length", "length_off_by": -10}, "head.length_off_by is -10, but the body has 9 bytes"),
    ],
)
def test_what_makes_no_sense_together_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="is") as refused:
        incident(**fields)
    assert str(refused.value).startswith(message)


def test_a_status_without_a_body_is_complete_without_framing() -> None:
    empty = incident(status=204, framing="none", steps=(), close="terminator", headers=())
    assert script(empty) == [Head(204, (), "none"), Close.TERMINATOR]


def test_a_length_below_zero_is_refused_before_the_first_event() -> None:
    value = incident(framing="length", length_off_by=-12, steps=(Piece(parts_of("<<id>>")),))
    with pytest.raises(ValueError, match="is -12, but the body has 10 bytes"):
        incident_script(value, COMPLETION, (), delay_ms=None)


# -- placeholders


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_placeholders_carry_the_requests_own_id_model_and_words(api: Api[Any]) -> None:
    words = "qu0000 qu0001"
    said = '"delta":{"content":"<<word>>"}' if api is CHAT else '"text":"<<word>>"'
    steps = tuple(
        Piece(parts_of(f'data: {{"id":"<<id>>","model":"<<model>>","choices":[{{{said}}}]}}\n\n'))
        for _ in range(2)
    )
    filled = [frame.data.decode() for frame in script(incident(steps=steps), api=api)[1:3]]  # type: ignore[union-attr]
    for frame, word in zip(filled, (words[:6], words[6:]), strict=True):
        assert frame.startswith('data: {"id":"chatcmpl-0","model":"a \\"model\\""')
        assert f'"{word}"' in frame


def test_a_replay_takes_no_more_words_than_it_has_places_for() -> None:
    words = (piece.delta for piece in fault_pieces(LAB, locate(LAB, "p266"), "text"))
    value = incident(steps=(Piece(parts_of("<<word>><<word>>")),))
    list(incident_script(value, COMPLETION, words, delay_ms=None))
    assert next(words) == " qu0002"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("<<>>", (b"<<",)),
        ("a<<>>id>>b", (b"a<<id>>b",)),
        ("<", (b"<",)),
        (">>", (b">>",)),
        ("<<>>>>", (b"<<>>",)),
        ("é{{id}}${id}", ("é{{id}}${id}".encode(),)),
    ],
)
def test_a_literal_is_written_with_an_empty_placeholder(text: str, parts: tuple[bytes, ...]) -> None:
    assert parts_of(text) == parts


@pytest.mark.parametrize("text", ["<<", "cout << x", "<<ids>>", "<<id>", "<< id >>", "<<ID>>", "<<<"])
def test_any_other_double_angle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no placeholder, expected <<id>>, <<model>>, <<word>>, or <<>>"):
        parts_of(text)


@given(st.text("<>id é"))
def test_any_text_can_be_written_as_a_literal(text: str) -> None:
    assert b"".join(part for part in parts_of(text.replace("<<", "<<>>")) if isinstance(part, bytes)) == (
        text.encode()
    )


# -- as a mode

KNOWN = {"captured": incident(), "spoken": incident("spoken", steps=(Piece(parts_of("<<word>>" * 3)),))}


def test_an_incident_is_a_mode_in_header_prompt_and_table() -> None:
    fault = parse_directive("captured;delay_ms=5;name=x", KNOWN)
    assert fault.incident is KNOWN["captured"]
    assert fault.canonical() == "captured;delay_ms=5;name=x"
    assert plan_from_header("captured;delay_ms=5;name=x", KNOWN).elements == (fault,)
    assert plan_from_prompt("captured;delay_ms=5;name=x", KNOWN).elements == (fault,)
    table = {"mode": "captured", "delay_ms": 5, "name": "x"}
    assert plan_from_table(table, KNOWN).elements == (fault,)


@pytest.mark.parametrize("setting", ["close=fin", "after_chunks=3", "utf8=false", "bom=false", "error=tgi"])
def test_what_else_is_set_is_refused_with_the_reason(setting: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        plan_from_header(f"captured;{setting}", KNOWN)
    key = setting.partition("=")[0]
    assert str(refused.value).startswith(
        f"captured: {key} does not go with an incident, whose file says all that is sent;"
        " only delay_ms, name, test and times do"
    )


@pytest.mark.parametrize("text", ["nope", "nope;after_chunks=3", "reset,nope"])
def test_the_refusal_of_an_unknown_mode_lists_the_incidents_among_the_modes(text: str) -> None:
    with pytest.raises(DirectiveError, match=r"unknown mode 'nope'; .* stale_connection, captured, spoken$"):
        plan_from_header(text, KNOWN)


@pytest.mark.parametrize("text", ["reset;", "captured;close=fin", "captured;x=1", "reset,,"])
def test_the_refusal_of_anything_else_lists_no_incident(text: str) -> None:
    with pytest.raises(DirectiveError, match="basic modes: ") as refused:
        plan_from_header(text, KNOWN)
    assert "spoken" not in str(refused.value)


def test_in_a_list_an_incident_is_a_leg_of_as_many_words_as_it_carries() -> None:
    plan = plan_from_header("spoken, reset, ok", KNOWN)
    assert [fault and fault.mode for fault in map(plan.fault_for, (0, 2, 3, 6))] == [
        "spoken",
        "reset",
        "reset",
        None,
    ]
    with pytest.raises(DirectiveError, match="element 0 of the list adds no word"):
        plan_from_header("captured, reset", KNOWN)


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
        (b"text/event-streams", False),
    ],
)
def test_server_sent_events_need_a_request_for_a_stream(kind: bytes, needs: bool) -> None:
    assert incident(headers=((b"content-type", kind),)).needs_stream is needs
    assert not incident(headers=()).needs_stream


def test_words_are_made_for_their_places_only() -> None:
    many = incident(steps=tuple(Piece(parts_of("<<word>>")) for _ in range(9)))
    words = (piece.delta for piece in fault_pieces(LAB, locate(LAB, "p266"), "text"))
    events = incident_script(many, COMPLETION, words, delay_ms=0)
    texts = [event.data.decode() for event in islice(events, 1, 10) if isinstance(event, Frame)]
    assert "".join(texts) == " ".join(f"qu000{index}" + "é" * (index == 7) for index in range(9))
