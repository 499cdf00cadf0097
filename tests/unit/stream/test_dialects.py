"""The dialects: literal frames, as docs/dialects.md has them, on the fault path and on the engine's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.answer.pieces import Piece
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.completions.writer import CompletionsWriter
from inference_lab.core.apis.contract import Completion, Form, quote
from inference_lab.core.apis.dialects import DIALECTS, Dialect
from inference_lab.core.oracle import verify
from tests.support.dialect_blocks import ASKED, EACH, LITERAL, PATHS, literal
from tests.support.lab import MODEL, MemoryLab, write

if TYPE_CHECKING:
    from tests.support.rawclient import Received


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """A model of each dialect, whose whole answer is two words."""
    models = {
        name: f'dialect = "{name}"\n{MODEL.format(name=name)}[answer]\ntokens = 2\n' for name in DIALECTS
    }
    return MemoryLab(write(tmp_path_factory.mktemp("dialects"), models))


def ask(
    lab: MemoryLab, endpoint: str, model: str, fault: str | None = None, *, usage: bool = True
) -> Received:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": usage}, **ASKED[endpoint]}
    got = lab.exchange(PATHS[endpoint], body, {"x-inference-lab-fault": fault} if fault else None)
    assert got.status == 200, got.raw
    return got


@pytest.mark.parametrize(("name", "endpoint"), EACH)
def test_the_frames_of_a_fault_in_a_dialect_are_those_of_the_document(
    lab: MemoryLab, name: str, endpoint: str
) -> None:
    got = ask(lab, endpoint, "lab", f"ok;delay_ms=0;dialect={name}")
    assert literal(got, "lab") == LITERAL[name, endpoint]


@pytest.mark.parametrize(("name", "endpoint"), EACH)
def test_a_models_dialect_is_that_of_its_healthy_streams_and_of_its_faults(
    lab: MemoryLab, name: str, endpoint: str
) -> None:
    assert literal(ask(lab, endpoint, name), name) == LITERAL[name, endpoint]
    assert literal(ask(lab, endpoint, name, "ok;delay_ms=0"), name) == LITERAL[name, endpoint]
    fault = "ok;delay_ms=0;dialect=lab"
    assert literal(ask(lab, endpoint, name, fault), name) == LITERAL["lab", endpoint]


def test_the_document_has_each_dialect_on_each_endpoint() -> None:
    assert sorted(LITERAL) == sorted(EACH)


def test_a_dialect_that_nobody_asked_usage_of() -> None:
    writer = ChatWriter(Completion("c", 1, "m"), DIALECTS["openai"])
    assert b'"usage"' not in writer.finish("stop")[0].data
    writer = ChatWriter(Completion("c", 1, "m"), DIALECTS["dynamo"])
    assert writer.finish("stop")[0].data.endswith(b',"usage":null}\n\n')


PIECES = (
    Piece("text", " qu0001", "</think> qu0001", 3, 1),
    Piece("reasoning", 'QU"0000', "<think>QU0000", 3, 1),
    Piece("call", "", '{"name": "', 3, 0, name="look"),
    Piece("call", '{"city": "qu0000', "qu0000", 1, 1, call=1),
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("asked", [False, True])
def test_a_template_around_a_text_is_the_frame_that_says_it(dialect: Dialect, *, asked: bool) -> None:
    completion, form = Completion("chatcmpl-0", 1, "$ID"), Form(usage_asked=asked, reasoning_key="$SAID")
    chat, raw = ChatWriter(completion, dialect, form), CompletionsWriter(completion, dialect, form)
    for writer in (chat, raw):
        first, second = (writer.content(PIECES[0])[0] for _ in range(2))
        assert (first == second) == writer.is_first_alike
    for piece in PIECES:
        before, after = raw.template(piece.channel) or (b"", b"")
        assert raw.content(piece)[0].data == before + quote(piece.raw) + after
        if piece.channel != "call":
            before, after = chat.template(piece.channel) or (b"", b"")
            assert chat.content(piece)[0].data == before + quote(piece.delta) + after
    assert chat.template("call") is None


def test_frames_that_tell_ids_have_no_template() -> None:
    for writer in (ChatWriter, CompletionsWriter):
        assert writer(Completion("c", 1, "m"), form=Form(prompt_ids=[1])).template("text") is None


# Directive behind `ok;delay_ms=0`, on a chat of two words: what stands in the body, and what does not.
OVER_A_DIALECT = {
    "dialect=vllm;text_in_finish=false": (b'"content":""},"logprobs":null,"finish_reason":"stop"', b"qu0002"),
    "dialect=vllm;text_in_finish=true": (b'hk0002"},"logprobs":null,"finish_reason":"stop"', b"hk0003"),
    "dialect=dynamo;after_chunks=1": (b'"hk0000","role":"assistant"},"finish_reason":"stop"', b"hk0001"),
    "dialect=dynamo;after_chunks=0": (b'"delta":{},"finish_reason":"stop"', b"role"),
    "dialect=openrouter;comments=0": (b"hk0001", b"OPENROUTER"),
    "dialect=openrouter;comments=1": (b": inference-lab\n", b"OPENROUTER"),
    "dialect=openrouter;after_chunks=1;content=reasoning": (
        b'"content":"","reasoning":"HK0000"',
        b"reasoning_content",
    ),
    "dialect=openrouter;after_chunks=1;content=reasoning;reasoning_key=reasoning_content": (
        b'"content":"","reasoning_content":"HK0000"',
        b'"reasoning":',
    ),
    "dialect=openrouter;empty_finish=true": (
        b'"finish_reason":"","native_finish_reason":null',
        b'":null,"finish_reason":""',
    ),
    "dialect=openai;usage=every_chunk": (
        b'"usage":{"prompt_tokens":9,"completion_tokens":1,',
        b'"usage":null',
    ),
    "dialect=dynamo;usage=null_every_chunk": (b'"usage":null', b'"usage":null,"usage"'),
    "dialect=vllm;usage=on_finish": (b'"usage":{"prompt_tokens":9,"total_tokens":11,', b'"choices":[]'),
    "dialect=vllm;sequence=choices_empty;after_chunks=2": (
        b'"content":""},"logprobs":null,"finish_reason":"stop"',
        b"x",
    ),
    "dialect=vllm;malformed=true;after_chunks=2": (
        b'"content":""},"logprobs":null,"finish_reason":"stop"',
        b"x",
    ),
    "dialect=vllm;after_chunks=1;then=rest": (
        b'hk0001"},"logprobs":null,"finish_reason":"stop"',
        b'"content":""}',
    ),
    "dialect=vllm;after_chunks=1;error=openai;finish=stop": (
        b'"content":""},"logprobs":null,"finish_reason":"stop"',
        b"x",
    ),
    "dialect=vllm;content_type=text/plain": (b"hk0001", b"hk0002"),
}


@pytest.mark.parametrize("directive", OVER_A_DIALECT)
def test_a_key_of_the_directive_wins_over_the_dialect(lab: MemoryLab, directive: str) -> None:
    there, missing = OVER_A_DIALECT[directive]
    got = ask(lab, "chat", "lab", f"ok;delay_ms=0;{directive}")
    assert there in got.body
    assert missing not in got.body.replace(b"index", b"")
    assert ("content_type" in directive) == (got.headers["content-type"] == "text/plain")


def test_a_comment_stands_before_each_content_frame_whatever_becomes_of_it(lab: MemoryLab) -> None:
    comment = b": OPENROUTER PROCESSING\n\n"
    for fault, count in (
        ("cut_mid_frame;after_chunks=2", 3),
        ("ok;after_chunks=2;frame_bytes=500", 2),
        ("ok;after_chunks=1;then=rest", 2),
        ("ok;after_chunks=2;sequence=after_finish", 3),
        ("ok;after_chunks=2;sequence=dup:1", 3),
        ("ok;after_chunks=2;sequence=swap:2", 4),
        ("ok;after_chunks=2;sequence=choices_empty", 2),
        ("ok;after_chunks=0", 0),
    ):
        chunks = ask(lab, "chat", "openrouter", f"{fault};delay_ms=0").chunked.chunks
        assert chunks.count(comment) == count, fault
    got = ask(lab, "chat", "openrouter", "ok;delay_ms=0;retry=250").body
    assert got.startswith(comment + b"retry: 250\ndata: {")
    assert got.count(b"retry:") == 1


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("endpoint", PATHS)
def test_a_death_comes_after_n_content_frames_in_every_dialect(
    lab: MemoryLab, endpoint: str, name: str
) -> None:
    for count in (0, 1, 3):
        for mode in ("cut_between_frames", "no_done", "cut_mid_frame;utf8=true"):
            got = ask(lab, endpoint, name, f"{mode};delay_ms=0;after_chunks={count}")
            torn = mode.startswith("cut_mid")
            assert len(re.findall(rb'" ?[a-z]{2}[0-9]{4}', got.body)) == count + torn
            verdict = verify(got.body)
            ended = "whole" if count else "wrong"  # a normal end without a single word
            assert verdict.outcome == (ended if mode == "no_done" else "honest prefix"), verdict
            assert verdict.words.get("text", 0) == count


def test_a_frame_torn_at_the_front_of_the_stream_is_the_first_one(lab: MemoryLab) -> None:
    whole = ask(lab, "chat", "dynamo", "ok;delay_ms=0;after_chunks=1").body
    torn = ask(lab, "chat", "dynamo", "cut_mid_frame;after_chunks=0;tear=byte:90").body
    assert re.sub(rb"chatcmpl-\w+", b"", whole).startswith(re.sub(rb"chatcmpl-\w+", b"", torn))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("ok;at=role;dialect=dynamo", "at=role needs a role frame"),
        ("overloaded_503;dialect=vllm", "dialect is seen on a stream only"),
        ("ok;dialect=bard", "dialect is 'bard', expected lab, openai"),
    ],
)
def test_what_a_dialect_cannot_show_is_refused(lab: MemoryLab, fault: str, reason: str) -> None:
    body = {"model": "lab", "stream": True, **ASKED["chat"]}
    got = lab.exchange(PATHS["chat"], body, {"x-inference-lab-fault": fault})
    assert got.status == 400
    assert reason in got.error["message"]


@pytest.mark.parametrize(("name", "endpoint"), EACH)
def test_a_healthy_stream_is_whole_to_the_oracle_in_every_dialect(
    lab: MemoryLab, name: str, endpoint: str
) -> None:
    for usage in (True, False):
        for told in (True, False):
            body = {"model": name, "stream": True, "return_token_ids": told, **ASKED[endpoint]}
            body |= {"stream_options": {"include_usage": usage}}
            verdict = verify(lab.exchange(PATHS[endpoint], body).body, tokens=2, ended="clean")
            assert verdict.outcome == "whole", verdict
            assert (verdict.completion_tokens == 2) is usage
