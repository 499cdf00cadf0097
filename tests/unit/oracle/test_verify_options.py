"""What is known beside the bytes: the options of `verify`, in Python and on the command line."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from itertools import islice

import pytest
from msgspec.structs import replace

from inference_lab.commands.verify import main
from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.oracle import Kind, Note, Verdict, Weight, kinds_named, verify
from inference_lab.core.prompts.messages import CallTarget, Message
from tests.support.paths import ROOT
from tests.support.streams import chat, chunk, completion, raw_chunk, stream, usage_frame, words

WHOLE = stream(words([0, 1]))
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "qu0000 qu0001"}, "finish_reason": "stop"}]}
).encode()
ERROR = b'{"error":{"message":"M"}}'
PAGE = b"<!doctype html><html><head></head></html>"
STYLES = pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)


def judged(verdict: Verdict) -> tuple[str, list[str]]:
    return verdict.outcome, [finding.kind.value for finding in verdict.findings]


def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], data: bytes, *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status = main(arguments)
    said = capfd.readouterr()
    return status, said.out, said.err


# A response's status, and whether a stream was asked for.


@pytest.mark.parametrize(
    "body",
    [b"Bad Gateway", b"", b'{"detail":"Not Found"}', PAGE, ERROR, WHOLE, stream(words([0, 2])), b"\x1f\x8b"],
)
@pytest.mark.parametrize("status", [400, 429, 502, 599])
@pytest.mark.parametrize("asked", [False, True])
def test_behind_the_status_of_a_failure_any_body_is_an_honest_prefix(
    body: bytes, status: int, *, asked: bool
) -> None:
    verdict = verify(body, status=status, stream=asked, ended="clean", usage="asked", finish="stop", tokens=9)
    assert judged(verdict) == ("honest prefix", [])
    assert (verdict.error, verdict.byte_count) == (True, len(body))


@pytest.mark.parametrize(
    ("body", "status", "outcome", "kinds"),
    [
        (WHOLE, None, "whole", []),
        (WHOLE, 200, "whole", []),
        (b"", 200, "honest prefix", []),
        (ANSWER, None, "wrong", ["not_a_stream"]),
        (ANSWER, 200, "wrong", ["not_a_stream"]),
        (ANSWER[:-9], 200, "wrong", ["not_a_stream"]),
        (b"qu0000 qu0001", 200, "wrong", ["not_a_stream"]),
        (PAGE, 200, "wrong", ["not_a_stream"]),
        (ERROR, 200, "wrong", ["not_a_stream"]),
        # It may be the body of a failure.
        (ERROR, None, "honest prefix", []),
        (PAGE, None, "honest prefix", []),
    ],
)
def test_a_client_that_asked_for_a_stream_reads_nothing_else(
    body: bytes, status: int | None, outcome: str, kinds: list[str]
) -> None:
    assert judged(verify(body, status=status, stream=True)) == (outcome, kinds)
    assert verify(body, status=status).outcome != "wrong"


# What the upstream said, and what was asked for.


@pytest.mark.parametrize(
    ("said", "upstream", "outcome", "kinds"),
    [
        ("stop", "stop", "whole", []),
        ("stop", "length", "wrong", ["finish_changed"]),
        ("length", "stop", "wrong", ["finish_changed"]),
        ("stop", "abort", "wrong", ["finish_changed"]),
        ("abort", "stop", "honest prefix", []),
        (None, "stop", "honest prefix", []),
    ],
)
def test_another_normal_finish_than_the_upstreams_is_a_change(
    said: str | None, upstream: str, outcome: str, kinds: list[str]
) -> None:
    assert judged(verify(stream(words([0, 1]), said), finish=upstream)) == (outcome, kinds)


def test_a_call_on_completions_ends_as_completions_spell_it() -> None:
    call = [raw_chunk('{"name": "f", "arguments": {"k": "qu0000"}}'), raw_chunk(finish="stop")]
    assert verify(call, finish="tool_calls").is_whole
    assert judged(verify(call, finish="length")) == ("wrong", ["finish_changed"])


@pytest.mark.parametrize(
    ("body", "outcome", "kinds"),
    [
        (WHOLE, "wrong", ["usage_lost"]),
        (WHOLE + usage_frame(2), "whole", []),
        (ANSWER, "wrong", ["usage_lost"]),
        (stream(words([0, 1]), None), "honest prefix", []),
    ],
)
def test_usage_that_was_asked_for_comes_with_a_normal_end(
    body: bytes, outcome: str, kinds: list[str]
) -> None:
    assert judged(verify(body, usage="asked")) == (outcome, kinds)
    assert verify(body).outcome in {"whole", "honest prefix"}


# Tokens, markup included.


def answers(template: ChatTemplate, limit: int, *, is_chat: bool) -> list[list[bytes]]:
    """Healthy answers of at most so many tokens: text, with reasoning, a call that was begun."""
    found = []
    for thinking, call in ((False, False), (True, False), (False, True)):
        prompt = template.render([Message("user", "hello")], thinking=thinking)
        begun = []
        if call:
            target = CallTarget("get_weather", "city")
            place = locate(template, prompt)
            begun = list(
                islice(fault_pieces(template, replace(place, is_raw=not is_chat), "call", call=target), 2)
            )
        used = sum(piece.token_count for piece in begun)
        if used >= limit:
            continue
        said = prompt + "".join(piece.raw for piece in begun)
        plan = healthy(
            template,
            locate(template, said, is_raw=not is_chat),
            reasoning_words=5 if thinking else 0,
            max_tokens=limit - used,
        )
        make = chat if is_chat else completion
        found.append(make([*begun, *plan.pieces], plan.finish))
    return found


@STYLES
@pytest.mark.parametrize("limit", [*range(1, 60), 200])
@pytest.mark.parametrize("is_chat", [False, True])
def test_a_healthy_answer_keeps_to_max_tokens(template: ChatTemplate, limit: int, *, is_chat: bool) -> None:
    for frames in answers(template, limit, is_chat=is_chat):
        assert judged(verify(frames, max_tokens=limit)) == ("whole", [])


def test_an_answer_past_max_tokens_or_short_of_them_is_wrong() -> None:
    text = stream(words(range(10)), "length")
    assert judged(verify(text, max_tokens=9)) == ("wrong", ["too_many_words"])
    assert verify(text, max_tokens=10).is_whole
    assert judged(verify(text, max_tokens=11)) == ("wrong", ["silent_truncation"])
    assert verify(text, max_tokens=11, hidden_tokens=1).is_whole
    assert verify(stream(words(range(10))), max_tokens=99).is_whole  # another finish has no lower bound
    thought = stream([chunk({"reasoning_content": "QU0000"}), *words(range(9))], "length")
    assert judged(verify(thought, max_tokens=10)) == ("wrong", ["too_many_words"])
    assert verify(thought, max_tokens=14).is_whole
    assert judged(verify(thought, max_tokens=40)) == ("wrong", ["silent_truncation"])


def test_words_and_tokens_exclude_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        verify(b"", tokens=1, max_tokens=1)
    assert main(["--tokens", "1", "--max-tokens", "1"]) == 64
    assert capfd.readouterr().err.count("\n") == 1


# Weights.

THREE = stream([*words([0]), chunk({"content": " qu0001"}, id="d"), *words([3])]) + usage_frame(3, total=1)


def test_findings_are_counted_by_weight() -> None:
    verdict = verify(THREE)
    assert next(verdict.lines()) == (
        "wrong: words 3 text; finish stop; findings 4 (1 text, 2 shape, 1 accounting)"
    )
    assert {finding.kind: finding.weight for finding in verdict.findings} == {
        Kind.GAP: Weight.TEXT,
        Kind.ID_CHANGED: Weight.SHAPE,
        Kind.USAGE_SUM: Weight.ACCOUNTING,
    }


@pytest.mark.parametrize(
    ("ignored", "left", "outcome"),
    [
        (["gap"], 3, "wrong"),
        (["shape"], 2, "wrong"),
        (["text", "accounting"], 2, "wrong"),
        (["text", "shape", "usage_sum"], 0, "whole"),
        (["text", "shape", "accounting", "blank"], 0, "whole"),
    ],
)
def test_what_is_ignored_does_not_count(ignored: list[str], left: int, outcome: str) -> None:
    verdict = verify(THREE, ignore=ignored)
    assert (verdict.outcome, verdict.finding_count, len(verdict.ignored)) == (outcome, left, 4 - left)
    assert len(list(verdict.lines())) == 1 + left


def test_a_death_without_findings_that_count_is_a_death() -> None:
    cut = stream(words([0, 2]), None)
    assert verify(cut, ended="clean", ignore=["text"]).is_honest_prefix
    assert verify(cut, ignore=["gap"]).is_honest_prefix


def test_what_is_ignored_takes_no_room_from_what_counts() -> None:
    repeats = [chunk({"content": " qu0001"}, id=str(place)) for place in range(300)]
    verdict = verify(stream([*words([0, 1, 3]), *repeats]), ignore=["shape", "repeat"])
    assert {finding.kind for finding in verdict.findings} == {Kind.GAP}
    assert (verdict.finding_count, len(verdict.ignored)) == (1, 100)


def test_every_name_of_a_finding_or_a_weight_can_be_ignored() -> None:
    assert kinds_named(kind.value for kind in Kind) == set(Kind)
    assert kinds_named(weight.value for weight in Weight) == set(Kind)
    with pytest.raises(
        ValueError, match="'gab' is no finding and no weight; weights: text, shape, accounting"
    ):
        verify(b"", ignore=["gab"])


def test_the_document_has_each_finding_with_its_weight_and_each_note() -> None:
    text = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \| (text|shape|accounting) \|", text, re.MULTILINE)
    told = {name: weight for names, weight in rows for name in re.findall("`([a-z_]+)`", names)}
    assert told == {kind.value: kind.weight.value for kind in Kind}
    assert {note.value for note in Note} <= set(
        re.findall("`([a-z_]+)`", text[text.index("Notes change nothing") :])
    )


# The command.


@pytest.mark.parametrize(
    ("data", "arguments", "status", "out"),
    [
        (
            b"Bad Gateway",
            ("--status", "502"),
            1,
            "honest prefix: words none; finish error frame; findings 0\n",
        ),
        (
            ANSWER,
            ("--stream", "--ignore", "not_a_stream"),
            0,
            "whole: words 2 text; finish stop; findings 0\n",
        ),
        (
            WHOLE,
            ("--finish", "stop", "--max-tokens", "9"),
            0,
            "whole: words 2 text; finish stop; findings 0\n",
        ),
        (
            WHOLE,
            ("--usage", "asked", "--finish", "length"),
            2,
            (
                "wrong: words 2 text; finish stop; findings 2 (1 text, 1 accounting)\n"
                "finish_changed: word 2, byte {0}: finish 'stop' where the upstream said 'length'\n"
                "usage_lost: word 2, byte {0}: usage was asked for, and none came\n"
            ),
        ),
        (
            WHOLE,
            (
                "--usage",
                "asked",
                "--finish",
                "length",
                "--ignore",
                "accounting",
                "--ignore",
                "finish_changed",
            ),
            0,
            "whole: words 2 text; finish stop; findings 0\n",
        ),
    ],
)
def test_the_command_takes_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    data: bytes,
    arguments: tuple[str, ...],
    status: int,
    out: str,
) -> None:
    got = run(monkeypatch, capfd, data, *arguments)
    assert got == (status, out.format(len(data)), "")


def test_json_lists_what_was_ignored_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(monkeypatch, capfd, WHOLE, "--usage", "asked", "--ignore", "accounting", "--json")
    said = json.loads(out)
    assert (status, said["verdict"], said["finding_count"]) == (0, "whole", 0)
    (finding,) = said["findings"]
    assert (finding["kind"], finding["weight"], finding["ignored"]) == ("usage_lost", "accounting", True)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + WHOLE, "without -i"),
        (b"HTTP/2 200 \r\n\r\n", "without -i"),
        (gzip.compress(WHOLE), "--compressed"),
    ],
)
def test_an_input_that_is_no_body_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], data: bytes, hint: str
) -> None:
    status, out, err = run(monkeypatch, capfd, data)
    assert (status, out, err.count("\n")) == (64, "", 1)
    assert hint in err
    assert judged(verify(data)) == ("wrong", ["not_a_stream"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--status", "20"),
        ("--status", "600"),
        ("--status", "ok"),
        ("--usage", "yes"),
        ("--ignore", "gab"),
        ("--max-tokens", "-1"),
    ],
)
def test_what_cannot_be_known_is_wrong_usage(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main(arguments) == 64
    assert capfd.readouterr().err.count("\n") == 1


def test_notes_tell_a_finish_that_is_no_normal_one_and_an_error_behind_an_end() -> None:
    assert verify(stream(words([0]), "abort"), ended="clean").notes[Note.UNUSUAL_FINISH] == 1
    late = verify(WHOLE + b'data: {"error":"M"}\n\n' + b"data: [DONE]\n\n", ended="clean")
    assert (late.outcome, late.notes[Note.ERROR_AFTER_END]) == ("honest prefix", 1)
    assert next(late.lines()) == "honest prefix: words 2 text; finish stop; error frame; findings 0"
    assert Note.ERROR_AFTER_END not in verify(b'data: {"error":"M"}\n\n' + WHOLE).notes
