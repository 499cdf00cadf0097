"""The edges of an answer, as gateways and splices showed them; `tests/support/gateways.py` searches their kinds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.oracle import Kind, Note, verify
from tests.support.streams import DONE, HEAD, ROLE, chunk, event, raw_chunk, stream, usage, usage_frame, words

if TYPE_CHECKING:
    from inference_lab.core.oracle import Ended

STOP = chunk(finish="stop")
ERROR = event({"error": {"message": "upstream failed"}})


def other(delta: dict[str, Any] | None = None, finish: str | None = None, index: object = 1) -> bytes:
    return event({**HEAD, "choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}]})


def silent(**members: Any) -> bytes:
    """A frame without choices, of nobody's answer."""
    return event({**HEAD, "id": "b", "model": "n", "role": "assistant", "choices": [], **members})


def call(arguments: object = "", index: int = 0, name: str | None = "f") -> bytes:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    announced = {"index": index, "function": function} | ({"id": f"c{index}"} if name else {})
    return chunk({"tool_calls": [announced]})


def whole_answer(message: dict[str, Any], finish: str = "stop", count: int = 2, **members: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({**HEAD, "choices": [choice], "usage": usage(count), **members}).encode()


def whole_text(text: object, finish: str = "stop", count: int = 2) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return json.dumps({**HEAD, "choices": [choice], "usage": usage(count)}).encode()


CALL = call('{"k": "qu0000 qu0001"}')


@pytest.mark.parametrize(
    ("frames", "ended", "outcome"),
    [
        # A role that opens nothing: behind the finish, `[DONE]` or an error, or in every frame.
        ([ROLE, *words([0]), STOP, chunk({"role": "assistant", "content": ""}), DONE], "unknown", "whole"),
        ([chunk({"role": "assistant", "content": "qu0000"}), STOP, ROLE, usage_frame(1)], "unknown", "whole"),
        ([ROLE, *words([0]), STOP, DONE, ROLE], "unknown", "whole"),
        ([ROLE, *words([0]), ERROR, ROLE], "clean", "honest prefix"),
        ([ROLE, CALL, chunk(finish="tool_calls"), ROLE, DONE], "unknown", "whole"),
        (
            [
                chunk({"role": "assistant", "content": "qu0000"}),
                chunk({"role": "assistant", "content": ""}),
                chunk({"role": "assistant", "content": " qu0001"}),
                STOP,
            ],
            "unknown",
            "whole",
        ),
        ([chunk({"role": "assistant", "content": "qu0000"}), *[ROLE] * 3], "unknown", "honest prefix"),
        # A frame without choices says nothing but its usage.
        ([ROLE, *words([0]), silent(), *words([1]), STOP, DONE], "unknown", "whole"),
        ([silent(choices=None), ROLE, *words([0]), silent(), ERROR], "clean", "honest prefix"),
        ([raw_chunk("qu0000"), silent(), raw_chunk(" qu0001"), raw_chunk(finish="stop")], "unknown", "whole"),
        ([ROLE, *words([0, 1]), STOP, silent(usage=usage(2)), DONE], "unknown", "whole"),
        # Running totals in frames of their own.
        ([ROLE, *words([0]), usage_frame(1), *words([1])], "broken", "honest prefix"),
        (
            [ROLE, usage_frame(0), *words([0]), usage_frame(1), *words([1]), STOP, usage_frame(2)],
            "clean",
            "whole",
        ),
        ([raw_chunk("<think>QU0000"), usage_frame(3), raw_chunk(" QU0001")], "broken", "honest prefix"),
        (
            [ROLE, *words([0]), chunk({"content": " qu00"}), usage_frame(2), chunk({"content": "01"})],
            "broken",
            "honest prefix",
        ),
        # An error body without a member `error`.
        ([b'{"status":"failure","message":"M"}'], "clean", "honest prefix"),
        ([b'{"detail":"Not Found"}'], "clean", "honest prefix"),
        ([b'{"choices":null,"code":500}'], "clean", "honest prefix"),
        ([b'{"choices":[]}'], "clean", "wrong"),
        # A finish that is no normal one shows the death.
        ([ROLE, *words([0]), chunk(finish="abort")], "clean", "honest prefix"),
        ([raw_chunk("qu0000"), raw_chunk(finish="cancelled"), DONE], "clean", "honest prefix"),
        # A whole answer reported as failed.
        ([ROLE, *words([0]), STOP, ERROR], "clean", "honest prefix"),
        ([ROLE, *words([0]), STOP, DONE, ERROR, DONE], "clean", "honest prefix"),
        # A forced call ends with `stop`; markup alone fills small limits.
        ([ROLE, CALL, STOP, usage_frame(20)], "unknown", "whole"),
        ([ROLE, chunk(finish="length"), usage_frame(2)], "unknown", "whole"),
        ([raw_chunk("<thi"), raw_chunk(finish="length"), usage_frame(1)], "unknown", "whole"),
        ([ROLE, chunk({"reasoning": "QU0000"}), chunk(finish="length"), usage_frame(3)], "unknown", "whole"),
    ],
)
def test_what_says_nothing_false_is_not_wrong(frames: list[bytes], ended: Ended, outcome: str) -> None:
    verdict = verify(frames, ended=ended)
    assert verdict.outcome == outcome, verdict


REASONED = chunk({"reasoning_content": "QU0000"})


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        # tool_calls, and no call
        (stream(words([0, 1]), "tool_calls"), [Kind.PHANTOM_CALL]),
        (stream([REASONED], "tool_calls"), [Kind.PHANTOM_CALL]),
        (raw_chunk("qu0000") + raw_chunk(finish="tool_calls"), [Kind.PHANTOM_CALL]),
        (whole_answer({"content": "qu0000 qu0001"}, "tool_calls"), [Kind.PHANTOM_CALL]),
        (whole_text("qu0000 qu0001", "tool_calls"), [Kind.PHANTOM_CALL]),
        # a call stamped {}
        (stream([call("{}")], "tool_calls"), [Kind.PHANTOM_CALL]),
        (stream([call("{}")], "stop"), [Kind.PHANTOM_CALL]),
        (stream([call(), call("{", 0, None), call("}", 0, None)], "tool_calls"), [Kind.PHANTOM_CALL]),
        (stream([CALL, call("{}", 1)], "tool_calls"), [Kind.PHANTOM_CALL]),
        (stream([*words([0]), call('{"k": ""}')], "tool_calls"), [Kind.PHANTOM_CALL]),
        (raw_chunk('{"name": "f", "arguments": {}}') + raw_chunk(finish="stop"), [Kind.PHANTOM_CALL]),
        (
            raw_chunk('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>') + raw_chunk(finish="stop"),
            [Kind.PHANTOM_CALL],
        ),
        (
            whole_answer(
                {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}, "tool_calls", 9
            ),
            [Kind.PHANTOM_CALL],
        ),
        # the rest as another choice
        (
            stream([*words([0]), other({"content": " qu0001"}), other({"content": " qu0002"})]),
            [Kind.OTHER_CHOICE],
        ),
        (stream([*words([0]), other(finish="stop")]), [Kind.OTHER_CHOICE]),
        (stream([*words([0]), other({"content": " qu0001"}, index="0")]), [Kind.OTHER_CHOICE]),
        (
            raw_chunk("qu0000")
            + event({**HEAD, "choices": [{"index": 1, "text": " qu0001", "finish_reason": "stop"}]})
            + raw_chunk(finish="stop"),
            [Kind.OTHER_CHOICE],
        ),
        (
            json.dumps(
                {"choices": [{"message": {"content": "qu0000"}, "finish_reason": "stop"}, {"message": {}}]}
            ).encode(),
            [Kind.OTHER_CHOICE],
        ),
        # text that is no string
        *(
            (stream([*words([0]), chunk({"content": value})]), [Kind.OTHER_TEXT])
            for value in (4, 0, [], {}, False)
        ),
        (stream([chunk({"reasoning": ["QU0000"]}), *words([0])]), [Kind.OTHER_TEXT]),
        (stream([CALL, call({"k": 1}, 0, None)], "tool_calls"), [Kind.OTHER_TEXT]),
        (raw_chunk("qu0000") + raw_chunk(4) + raw_chunk(finish="stop"), [Kind.OTHER_TEXT]),  # type: ignore[arg-type]
        (whole_answer({"content": [{"type": "text", "text": "qu0000 qu0001"}]}), [Kind.OTHER_TEXT]),
        (whole_text(["qu0000"]), [Kind.OTHER_TEXT]),
        # more tokens than any markup costs
        (stream([REASONED, *words([0])]) + usage_frame(1000), [Kind.USAGE_WORDS]),
        (stream([REASONED, *words([0])]) + usage_frame(20), [Kind.USAGE_WORDS]),
        (stream([CALL], "tool_calls") + usage_frame(200), [Kind.USAGE_WORDS]),
        (
            raw_chunk("<think>QU0000</think>qu0000") + raw_chunk(finish="stop") + usage_frame(20),
            [Kind.USAGE_WORDS],
        ),
        (whole_answer({"content": "qu0000", "reasoning": "QU0000"}, count=99), [Kind.USAGE_WORDS]),
        (stream([REASONED], "length") + usage_frame(20), [Kind.USAGE_WORDS]),
        # a gateway's own count is no truncation
        (stream(words([0, 1])) + usage_frame(7), [Kind.USAGE_WORDS]),
        # a total that was wrong when it was sent
        (stream(words([0]), None) + usage_frame(2) + b"".join(words([1])), [Kind.USAGE_WORDS]),
        (stream(words([0]), None) + usage_frame(1) + b"".join(words([1])) + STOP, [Kind.USAGE_WORDS]),
        # an empty success
        (stream([]), [Kind.SILENT_TRUNCATION]),
        (stream([chunk({"content": ""})], "tool_calls"), [Kind.SILENT_TRUNCATION]),
        (raw_chunk(finish="stop") + DONE, [Kind.SILENT_TRUNCATION]),
        (raw_chunk("<think>\n</think>\n\n") + raw_chunk(finish="stop"), [Kind.SILENT_TRUNCATION]),
        (whole_answer({"content": ""}, count=0), [Kind.SILENT_TRUNCATION]),
        (whole_answer({"content": None}, count=5), [Kind.SILENT_TRUNCATION]),
        (whole_text(""), [Kind.SILENT_TRUNCATION]),
        # stop after reasoning alone
        (stream([REASONED]), [Kind.SILENT_TRUNCATION]),
        (raw_chunk("<think>QU0000</think>") + raw_chunk(finish="stop"), [Kind.SILENT_TRUNCATION]),
        (whole_answer({"content": "", "reasoning_content": "QU0000"}), [Kind.SILENT_TRUNCATION]),
        # text after an error
        (stream([*words([0]), ERROR, *words([1])]), [Kind.TEXT_AFTER_ERROR]),
        (stream([*words([0]), ERROR, *words([1])], None), [Kind.TEXT_AFTER_ERROR]),
        (stream([*words([0]), ERROR, DONE, *words([1])], None), [Kind.TEXT_AFTER_ERROR]),
        (stream([REASONED, b"event: error\ndata: {}\n\n", *words([0])]), [Kind.TEXT_AFTER_ERROR]),
        (stream([ERROR, CALL], "tool_calls"), [Kind.TEXT_AFTER_ERROR]),
        (raw_chunk("qu0000") + ERROR + raw_chunk(" qu0001"), [Kind.TEXT_AFTER_ERROR]),
        # a role on its own behind one word, and text without one behind it
        (
            stream([chunk({"role": "assistant", "content": "qu0000"}), ROLE, *words([1])]),
            [Kind.SECOND_ROLE],
        ),
    ],
)
def test_what_a_client_must_not_take_for_the_answer_is_named(body: bytes, kinds: list[Kind]) -> None:
    verdict = verify(body)
    assert (verdict.outcome, [finding.kind for finding in verdict.findings]) == ("wrong", kinds), verdict


def test_words_of_another_choice_do_not_count() -> None:
    verdict = verify(stream([*words([0]), other({"content": " qu0001"}), other({"content": " qu0002"})]))
    assert verdict.words == {"text": 1}
    assert verdict.findings[0].count == 2


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_a_leg_behind_other_words_may_be_empty(finish: str) -> None:
    assert verify(stream([], finish), start=3).is_whole
    assert not verify(stream([], finish)).is_whole


def test_null_is_no_text() -> None:
    nothing = chunk({"content": None, "reasoning_content": None, "reasoning": None, "tool_calls": None})
    assert verify(stream([nothing, *words([0]), nothing])).is_whole
    assert verify(raw_chunk("qu0000") + raw_chunk(None, finish="stop")).is_whole  # type: ignore[arg-type]


def test_a_role_behind_the_end_is_a_note() -> None:
    assert verify([*words([0]), STOP, ROLE, ROLE]).notes[Note.ROLE_REPEATED] == 2
