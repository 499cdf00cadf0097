"""The oracle's reader on its own: what has been said, block by block."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from inference_lab.core.answer.answer import healthy
from inference_lab.core.answer.end import End, Spoken, end_of
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.oracle import Reader, verify
from inference_lab.core.prompts.messages import Message
from tests.support.streams import (
    DONE,
    ROLE,
    chat,
    chunk,
    completion,
    event,
    raw_chunk,
    usage,
    usage_frame,
    words,
)


def test_facts_are_added_up_block_by_block() -> None:
    reader = Reader()
    seen = [reader.facts]
    for block in (ROLE, *words([0, 1]), b": ping\n\n", chunk(finish="stop"), usage_frame(2), DONE):
        reader.feed(block)
        seen.append(reader.facts)
    said = [(now.content_frames - was.content_frames, now.words - was.words) for was, now in pairwise(seen)]
    assert said == [(0, 0), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0), (0, 0)]
    assert [facts.finish for facts in seen] == [None] * 5 + ["stop"] * 3
    assert [facts.done for facts in seen] == [False] * 7 + [True]
    assert seen[-2].usage == usage(2)
    assert seen[-1].spoken == Spoken("stop", text=True)
    reader.end(dead=False)
    assert (reader.form, reader.has_own_words) == ("events", True)


def test_an_event_counts_once_its_blank_line_has_come() -> None:
    reader = Reader(start=5)
    frame = chunk({"content": " qu0005"})
    reader.feed(frame[:-1])
    assert (reader.facts.words, reader.facts.content_frames) == (0, 0)
    reader.feed(frame[-1:])
    assert (reader.facts.words, reader.facts.content_frames) == (1, 1)


def test_text_that_is_of_no_answer_shows_at_the_end() -> None:
    for text, is_own in ((" qu0001", True), (" qu0002", False), (" hello", False), (" qu00", True)):
        reader = Reader()
        for block in (*words([0]), chunk({"content": text})):
            reader.feed(block)
        reader.end(dead=True)
        assert reader.has_own_words is is_own


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"", "events"),
        (b'data: {"a"', "events"),
        (b'{"choices":[]}', "json"),
        (b"<html><head>", "page"),
        (b"qu0000", "plain"),
        (b"\x1f\x8b\x08", "foreign"),
        (b"HTTP/1.1 200 OK\r\n", "foreign"),
    ],
)
def test_the_first_bytes_say_what_a_body_is(body: bytes, form: str) -> None:
    reader = Reader()
    reader.feed(body)
    reader.end(dead=True)
    assert reader.form == form


def test_a_json_answer_is_read_at_its_end() -> None:
    choice = {"message": {"content": "qu0000 qu0001"}, "finish_reason": "length"}
    reader = Reader()
    reader.feed(json.dumps({"choices": [choice], "usage": usage(2)}).encode())
    assert (reader.form, reader.facts.words) == ("json", 0)
    reader.end(dead=False)
    assert (reader.facts.words, reader.facts.finish, reader.facts.usage) == (2, "length", usage(2))


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("reasoning", [0, 4])
def test_a_healthy_answer_ends_whole_and_is_cut_before(
    template: ChatTemplate, make: object, reasoning: int
) -> None:
    assert callable(make)
    prompt = template.render([Message("user", "hello")], thinking=bool(reasoning))
    plan = healthy(
        template, locate(template, prompt, is_raw=make is not chat), reasoning_words=reasoning, answer_words=5
    )
    reader = Reader()
    ends = []
    for frame in make(plan.pieces):
        reader.feed(frame)
        ends.append(end_of(reader.facts.spoken))
    assert ends == sorted(ends, key=lambda end: end is End.WHOLE)
    assert ends[-1] is End.WHOLE
    assert reader.facts.content_frames == len(list(plan.pieces))


@pytest.mark.parametrize("markup", ['{"name": "f", "arguments": {}}', "<tool_call>\n</tool_call>"])
def test_a_call_as_text_that_says_nothing_is_empty(markup: str) -> None:
    reader = Reader()
    reader.feed(raw_chunk(markup))
    spoken = reader.facts.spoken
    assert (spoken.calls_begun, spoken.calls_closed, spoken.calls_empty) == (1, 1, 1)


def test_a_frame_with_many_members_is_a_finding_and_costs_little() -> None:
    line = b'data: {"choices":[' + b"{}," * 2_000_000 + b"{}]}\n\n"
    verdict = verify([line, *words([0]), chunk(finish="stop")])
    assert [finding.kind.value for finding in verdict.findings] == ["too_long"]
    assert verify(event({"choices": [], "ids": list(range(1000))})).is_honest_prefix
