"""Echo-directives: which one counts, what is skipped, what is refused."""

from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.apis.chat.echo import echo_frames
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.contract import Completion
from inference_lab.core.prompts.echo import Echo, find
from inference_lab.core.prompts.messages import Call
from inference_lab.core.stream.read_back import said_in
from inference_lab.core.tokens import encode
from tests.support.growth import calls_of

LAB = FORMATS["lab"]


@pytest.mark.parametrize(
    ("texts", "echo"),
    [
        ([], None),
        (["hello", "<<respond:"], None),
        (['<<respond:{"text":"hi"}>>'], Echo("hi", (), "stop")),
        (['say <<respond: {"text":"a>>b"} >> now'], Echo("a>>b", (), "stop")),
        (['<<respond:{"text":"a"}>>', '<<respond:{"text":"b"}>>'], Echo("b", (), "stop")),
        (['<<respond:{"text":"a"}>><<respond:{"text":"b"}>>'], Echo("b", (), "stop")),
        (['<<respond:{"text":"a"}>>', '<<respond:{"text":"b"}'], Echo("a", (), "stop")),
        (['<<respond:{"text":"a"}>><<respond:{"text":b}>>'], Echo("a", (), "stop")),
        (['<<respond:{"text":"a"}>> <<respond:[1,,2]>>'], Echo("a", (), "stop")),
        (['<<respond:{"text":"<<respond:x>>"}>>'], Echo("<<respond:x>>", (), "stop")),
        (["<<respond:{}>>"], Echo("", (), "stop")),
        (['<<respond:{"text":null,"finish_reason":"length"}>>'], Echo("", (), "length")),
        (
            ['<<respond:{"tool_calls":[{"name":"f","arguments":"{}"},{"name":"g","arguments":{"a": 1}}]}>>'],
            Echo("", (Call("f", "{}"), Call("g", '{"a": 1}')), "tool_calls"),
        ),
        (["<<respond:" + "[" * 100_000 + "]" * 100_000 + ">>"], None),
        (['<<respond:{"text":"\\ud800"}>>'], None),
    ],
)
def test_the_last_directive_that_is_json_counts(texts: list[str], echo: Echo | None) -> None:
    assert find(texts) == echo


@pytest.mark.parametrize(
    "value",
    ["5", '"text"', "[]", '{"text":5}', '{"txt":"a"}', '{"tool_calls":{}}', '{"tool_calls":[{"name":"f"}]}'],
)
def test_json_of_another_shape_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"^<<respond:…>>: "):
        find([f"<<respond:{value}>>"])


@given(st.text(" ab\n"))
def test_frames_are_cut_before_each_blank_and_lose_nothing(text: str) -> None:
    pieces = list(Echo(text, (), "stop").text_pieces())
    assert "".join(pieces) == text
    assert all(" " not in piece[1:] for piece in pieces)
    assert all(piece.startswith(" ") for piece in pieces[1:])


def test_tokens_are_those_of_the_text_and_of_the_calls() -> None:
    call = '{"name": "f", "arguments": {}}'
    assert Echo("one two", (Call("f", "{}"),), "stop").completion_tokens(LAB) == 2 + len(encode(call))


@given(
    st.lists(st.sampled_from(["<<respond:", '{"text":', '"', "a", "}", ">>", "[", "]", "\\", ",", "\ud800"]))
)
def test_any_text_is_an_echo_none_or_a_refusal(pieces: list[str]) -> None:
    try:
        find(["".join(pieces)])
    except ValueError as refusal:
        assert str(refusal).startswith("<<respond:…>>: ")  # noqa: PT017


@pytest.mark.parametrize(
    "unit", ["<<respond:[", '<<respond:["', '<<respond:[",', '<<respond:{"a":', "<<respond:"]
)
def test_a_text_full_of_openings_is_read_in_linear_time(unit: str) -> None:
    assert find([unit * 20_000]) is None


def test_a_frame_of_text_is_made_as_it_is_sent_and_not_read_back() -> None:
    writer = ChatWriter(Completion("chatcmpl-0", 0, "m"))
    few, many = (
        calls_of(lambda n=n: deque(echo_frames(writer, Echo("a " * n, (), "stop")), maxlen=0))
        for n in (1000, 2000)
    )
    assert many - few <= 9 * 1000
    frames = echo_frames(writer, Echo("a " * 100_000, (), "stop"))
    assert calls_of(lambda: next(frames)) <= 20


def test_each_call_is_read_back_as_all_of_them_together_would_be() -> None:
    writer = ChatWriter(Completion("chatcmpl-0", 0, "m"))
    calls = tuple(Call("f", text) for text in ("{}", "", '{"a":', '{"city": "qu0000"}', "x", "null"))
    got = list(echo_frames(writer, Echo("", calls, "stop")))
    together = said_in(frame for frame, _ in got)
    assert [msgspec.structs.replace(said, calls=()) for _, said in got] == [
        msgspec.structs.replace(said, words=0, calls=()) for said in together
    ]
