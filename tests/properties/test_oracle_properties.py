"""The oracle, whatever it is given: nothing makes it raise, and any chain of legs by the rules is whole."""

import json
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.pieces import Piece
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.oracle import verify
from inference_lab.core.prompts.messages import Message
from tests.support.streams import DONE, ROLE, chunk, delta_of, event, raw_chunk, usage_frame, words

ASKED = [Message("user", "hello")]

FRAGMENTS = [
    b"data: ",
    b"\n",
    b"\r",
    b"\n\n",
    b": c",
    b"[DONE]",
    b"{",
    b"}",
    b"event: error",
    b"\xef\xbb\xbf",
    b"\xc3",
]
RAW = [
    "<think>QU0000",
    '{"name": "f"',
    "<\uff5cDSML\uff5ctool_calls>\n",
    ' string="true">qu',
    "</think",
    "\n",
]
TORN_CALL = {"tool_calls": [{"index": 0, "function": {"arguments": '{"k": "qu\\u00'}}]}
FRAMES = [
    ROLE,
    DONE,
    *words([0, 1, 2]),
    chunk(finish="stop"),
    usage_frame(3),
    chunk(TORN_CALL),
    *map(raw_chunk, RAW),
]
PARTS = st.sampled_from([*FRAGMENTS, *FRAMES, b"qu0000", b" qu0001"])


@given(st.lists(st.one_of(PARTS, st.binary(max_size=9))), st.none() | st.integers(0, 4))
def test_no_bytes_make_it_raise(parts: list[bytes], tokens: int | None) -> None:
    verdict = verify(parts, tokens=tokens)
    at_once = verify(b"".join(parts), tokens=tokens)
    assert (verdict.outcome, verdict.words, verdict.finish) == (
        at_once.outcome,
        at_once.words,
        at_once.finish,
    )
    assert (verdict.outcome == "wrong") is bool(verdict.finding_count)


NAMES = [
    *("id", "choices", "delta", "content", "tool_calls", "function"),
    *("arguments", "usage", "finish_reason", "completion_tokens"),
    *("prompt_tokens", "total_tokens", "text", "role", "index", "error", "message"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("qu0000"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@given(st.lists(JSON))
def test_no_json_makes_it_raise(frames: list[object]) -> None:
    verify(b"".join(event(json.dumps(frame)) for frame in frames))


@given(
    st.sampled_from(list(FORMATS.values())),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(0, 200)), max_size=4),
)
def test_any_chain_of_torn_legs_adds_up_to_a_whole_answer(
    template: ChatTemplate, thinking: bool, legs: list[tuple[int, int, int]]
) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    said = ""
    # A torn `<` may begin reasoning as well as a call: no later leg goes back to an earlier channel.
    for channel, frames, torn in sorted(legs, key=lambda leg: leg[0]):
        position = locate(template, prompt + said)
        try:
            pieces = fault_pieces(
                template, replace(position, is_raw=True), ("reasoning", "text", "call")[channel]
            )
        except ValueError:
            continue
        raw = "".join(piece.raw for piece in islice(pieces, frames))
        said += raw[: max(1, len(raw) - torn)]
    position = locate(template, prompt + said)
    if position.trapped:
        return
    plan = healthy(
        template, replace(position, is_raw=True), reasoning_words=10 if thinking else 0, answer_words=20
    )
    pieces_left = [said, *(piece.raw for piece in plan.pieces)]
    whole = [*(raw_chunk(text) for text in pieces_left), raw_chunk(finish=plan.finish), DONE]
    verdict = verify(whole)
    assert (verdict.outcome, verdict.findings) == ("whole", ())


class Client:
    """A gateway that resumes by prefill: it knows the deltas it has passed on, and nothing else."""

    def __init__(self, template: ChatTemplate, *, thinking: bool) -> None:
        self._style, self._thinking = template, thinking
        self.said = {"reasoning": "", "text": "", "call": ""}
        self.frames: list[bytes] = [ROLE]

    def prompt(self) -> str:
        called = bool(self.said["call"]) or any(b"call_1" in frame for frame in self.frames)
        call = {"function": {"name": "get_current_weather", "arguments": self.said["call"]}}
        message = Message(
            "assistant",
            self.said["text"] or None,
            reasoning_content=self.said["reasoning"] or None,
            tool_calls=[call] if called else None,
        )
        return self._style.render([*ASKED, message], thinking=self._thinking)

    def take(self, pieces: list[Piece], torn: int) -> None:
        for place, piece in enumerate(pieces):
            last = place == len(pieces) - 1
            delta = piece.delta[: max(1, len(piece.delta) - torn)] if last else piece.delta
            self.said[piece.channel] += delta
            self.frames.append(chunk(delta_of(Piece(piece.channel, delta, "", 0, 0))))


@given(
    st.sampled_from(list(FORMATS.values())),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(0, 5)), max_size=4),
)
def test_any_chain_of_prefills_adds_up_to_a_whole_answer(
    template: ChatTemplate, thinking: bool, legs: list[tuple[int, int, int]]
) -> None:
    client = Client(template, thinking=thinking)
    for channel, frames, torn in sorted(legs, key=lambda leg: leg[0]):
        position = locate(template, client.prompt())
        try:
            pieces = fault_pieces(template, position, ("reasoning", "text", "call")[channel])
        except ValueError:
            continue
        # Arguments that break off in a key cannot be told in every format.
        client.take(list(islice(pieces, frames)), 0 if channel == 2 and frames < 3 else torn)
    position = locate(template, client.prompt())
    plan = healthy(template, position, reasoning_words=10 if thinking else 0, answer_words=20)
    client.take(list(plan.pieces), 0)
    verdict = verify([*client.frames, chunk(finish=plan.finish), DONE])
    assert (verdict.outcome, verdict.findings) == ("whole", ())
