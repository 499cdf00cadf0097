"""Calls that break off in places a model of ours would not choose: announced by their own name, left whole JSON."""

from itertools import islice

import msgspec
import pytest

from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.prompts.messages import Message

LAB = FORMATS["lab"]
ASKED = [Message("user", "hello")]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {key: {"type": "string"}}}}}
    for name, key in (("find_it", "q"), ("say_it", "what"), ("söt", "k"))
]


def prompt_of(content: str) -> str:
    return LAB.render([*ASKED, Message("assistant", content)], TOOLS)


def test_a_half_typed_call_is_announced_by_the_name_it_is_completed_to() -> None:
    for template in FORMATS.values():
        opening = template.calls_open + template.call_open
        for typed, name in (
            ("", "find_it"),
            ("f", "find_it"),
            ("sa", "say_it"),
            ("say_it", "say_it"),
            ("x", "x"),
        ):
            prompt = template.render([*ASKED, Message("assistant", f"ab0000{opening}{typed}")], TOOLS)
            plan = healthy(template, locate(template, prompt))
            faulted = fault_pieces(template, locate(template, prompt), "call")
            for pieces in (plan.pieces, faulted):
                first, second = islice(pieces, 2)
                assert (first.name, first.delta, second.name) == (name, "", None)
            assert plan.finish == "tool_calls"


@pytest.mark.parametrize(
    ("typed", "name", "raw"),
    [
        ("s\\", "s\\", "\\"),
        ("s\\u00f6", "sö", ""),
        ("s\\u0", "s\0", "000"),
        ("s\\\\", "s\\", ""),
        ("\\ud800", "\ufffd", ""),
    ],
)
def test_a_name_that_breaks_off_in_an_escape_stays_json(typed: str, name: str, raw: str) -> None:
    plan = healthy(LAB, locate(LAB, prompt_of('{"name": "' + typed)))
    first = next(iter(plan.pieces))
    assert first.name == name
    assert first.raw == raw + '", "arguments": {"location": "'


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        ('{"q', '": "'),
        ('{"other', '": "'),
        ('{"other\\', '\\": "'),
        ('{"other"', ': "'),
        ('{"other":', ' "'),
        ('{"other": ', '"'),
        ('{"n": 5,', ' "q": "'),
        ('{"n": "ab0000 ab0001", ', '"q": "'),
        ('{"n": "a\\', "\\"),
        ('{"n": "a\\u00', "00"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_arguments_are_json_wherever_they_were_broken_off(arguments: str, rest: str, chat: bool) -> None:
    opening = '{"name": "find_it", "arguments": '
    plan = healthy(LAB, locate(LAB, prompt_of(opening + arguments), is_raw=not chat))
    pieces = list(plan.pieces)
    assert all(piece.name is None for piece in pieces)
    assert pieces[0].raw.lstrip(" ").startswith(rest.lstrip(" "))
    said = arguments + "".join(piece.delta for piece in pieces)
    assert list(msgspec.json.decode(said).values())[-1].endswith("0015é")
    whole = opening + arguments + "".join(piece.raw for piece in pieces)
    assert msgspec.json.decode(whole)["name"] == "find_it"


@pytest.mark.parametrize(
    "text", ['{"name": "bob"}', 'Say: {"name": "bob", "age": 5}', '{"name": "f", "arguments": {}}x']
)
def test_content_that_only_begins_like_a_call_is_content(text: str) -> None:
    for template in (LAB, FORMATS["hermes"]):
        content = text if template is LAB else f"<tool_call>\n{text}"
        position = locate(template, template.render([*ASKED, Message("assistant", content)]))
        first = next(iter(healthy(template, position).pieces))
        assert (first.channel, first.delta[2:]) == ("text", "0000")


def test_a_call_that_lacks_only_its_outer_brace_is_not_announced_again() -> None:
    position = locate(LAB, prompt_of('{"name": "find_it", "arguments": {"q": "ab0000"}'))
    (last,) = healthy(LAB, position).pieces
    assert (last.raw, last.delta, last.name, last.words) == ("}", "", None, 0)
