"""The oracle: healthy streams are whole, dead ones honest prefixes, wrong splices named with their place."""

import json
from itertools import islice

import pytest
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces, healthy
from inference_lab.core.answer.pieces import Piece
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.oracle import Ended, Kind, Note, Verdict, verify
from inference_lab.core.prompts.messages import Message
from inference_lab.web.helpers import rendered
from tests.support.paths import ROOT
from tests.support.streams import (
    DONE,
    HEAD,
    ROLE,
    chat,
    chunk,
    completion,
    event,
    raw_chunk,
    spell_for,
    stream,
    usage,
    usage_frame,
    words,
)

STYLES = pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
ASKED = [Message("user", "hello")]
LAB = FORMATS["lab"]


def found(verdict: Verdict) -> list[tuple[Kind, int]]:
    return [(finding.kind, finding.word) for finding in verdict.findings]


def pieces_of(
    template: ChatTemplate, said: str = "", *, reasoning: int = 0, count: int = 30, on_chat: bool = True
) -> list[Piece]:
    prompt = template.render(ASKED, thinking=bool(reasoning))
    position = locate(template, prompt + said)
    plan = healthy(
        template, replace(position, is_raw=not on_chat), reasoning_words=reasoning, answer_words=count
    )
    return list(plan.pieces)


def called(template: ChatTemplate) -> list[Piece]:
    prompt = template.render(ASKED)
    begun = list(islice(fault_pieces(template, locate(template, prompt), "call"), 9))
    rest = locate(template, prompt + "".join(piece.raw for piece in begun))
    return [*begun, *healthy(template, rest).pieces]


def called_frames(count: int) -> list[bytes]:
    """An announced call of so many words, closed."""
    return argument_frames('{"k": "' + "".join(spell_for("qu", number) for number in range(count)) + '"}')


def argument_frames(arguments: str, size: int = 99) -> list[bytes]:
    """An announced call, its arguments in pieces of so many characters."""
    announced = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}
    pieces = [arguments[place : place + size] for place in range(0, len(arguments), size)]
    said = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    return [chunk({"tool_calls": [call]}) for call in (announced, *said)]


@STYLES
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("reasoning", [0, 10])
def test_a_healthy_stream_is_whole(template: ChatTemplate, size: int, reasoning: int) -> None:
    pieces = pieces_of(template, reasoning=reasoning)
    for make in (chat, completion):
        verdict = verify(make(pieces, size=size), tokens=30 + reasoning, ended="clean")
        assert (verdict.outcome, verdict.findings, verdict.exit_code) == ("whole", (), 0)
        assert verdict.words == {"text": 30} | ({"reasoning": 10} if reasoning else {})


@STYLES
@pytest.mark.parametrize("size", [1, 3])
def test_a_call_is_whole_in_deltas_and_in_raw_markup(template: ChatTemplate, size: int) -> None:
    for make, finish in ((chat, "tool_calls"), (completion, "stop")):
        verdict = verify(make(called(template), finish, size), tokens=16, ended="clean")
        assert (verdict.outcome, verdict.findings, verdict.words) == ("whole", (), {"call": 16})


@pytest.mark.parametrize("reasoning", [0, 10])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("make", [chat, completion])
def test_a_stream_cut_at_any_byte_is_never_wrong(make: object, size: int, reasoning: int) -> None:
    assert callable(make)
    data = b"".join(make(pieces_of(LAB, reasoning=reasoning, count=20 - reasoning), size=size))
    outcomes = [verify(data[:cut]).outcome for cut in range(len(data) + 1)]
    end = outcomes.index("whole")
    assert outcomes == ["honest prefix"] * end + ["whole"] * (len(data) + 1 - end)
    assert data[:end].rstrip().endswith(b'"finish_reason":"stop"}]}')


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("make", [chat, completion])
def test_a_call_cut_at_any_frame_or_inside_it_is_never_wrong(make: object, template: ChatTemplate) -> None:
    assert callable(make)
    frames = make(called(template))
    for place in range(len(frames) - 3):
        for torn in (b"", frames[place][: len(frames[place]) // 2]):
            assert verify([*frames[:place], torn]).outcome == "honest prefix"


def spliced(
    template: ChatTemplate, passed: list[Piece], prompt: str, *, thinking: bool, tokens: int
) -> list[bytes]:
    """What a client sees that got these pieces, then the leg that continues this prompt."""
    words_left = healthy(
        template, locate(template, prompt), reasoning_words=10 if thinking else 0, answer_words=30
    )
    leg = chat(words_left.pieces, words_left.finish)[1:-2]
    return [*chat(passed)[:-3], *leg, usage_frame(tokens + words_left.completion_tokens), DONE]


@STYLES
@pytest.mark.parametrize("thinking", [False, True])
def test_a_splice_at_any_frame_by_the_rules_is_whole(template: ChatTemplate, thinking: bool) -> None:
    prompt = template.render(ASKED, thinking=thinking)
    pieces = pieces_of(template, reasoning=10 if thinking else 0)
    for place in range(1, len(pieces)):
        said = "".join(piece.raw for piece in pieces[:place])
        tokens = rendered(prompt, said)["continuation_tokens"]
        assert isinstance(tokens, int)
        whole = spliced(template, pieces[:place], prompt + said, thinking=thinking, tokens=tokens)
        assert verify(whole, tokens=len(pieces)).outcome == "whole"


@STYLES
def test_a_call_spliced_from_its_deltas_is_whole(template: ChatTemplate) -> None:
    pieces = called(template)
    for place in range(1, len(pieces) + 1):
        arguments = "".join(piece.delta for piece in pieces[:place])
        call = {"function": {"name": "get_current_weather", "arguments": arguments}}
        prompt = template.render([*ASKED, Message("assistant", None, tool_calls=[call])])
        whole = spliced(template, pieces[:place], prompt, thinking=False, tokens=place)
        assert verify(whole, tokens=16).outcome == "whole"


@pytest.mark.parametrize(
    ("data", "finding", "tokens"),
    [
        (stream(words([0, 1, 2, 4, 5])), (Kind.GAP, 3), None),
        (stream(words([0, 1, 2, 6, 7, 8])), (Kind.GAP, 3), None),
        (stream(words([0, 1, 2, 2, 3])), (Kind.REPEAT, 2), None),
        (stream(words([0, 1, 2, 3, 2, 3, 4])), (Kind.REPEAT, 2), None),
        (stream(words([0, 1, 2, 0, 1, 2, 3])), (Kind.RESTART, 0), None),
        (stream(words([0, 1, 3, 2, 4])), (Kind.REORDER, 2), None),
        (stream(words([0, 1, 4, 3, 2, 5])), (Kind.REORDER, 2), None),
        (stream(words([0, 1, 2, 1, 3])), (Kind.REORDER, 1), None),
        (stream([*words([0, 1]), *words([2], "ab"), *words([3], "ab")]), (Kind.FOREIGN_WORD, 2), None),
        (stream([*words([0, 1]), chunk({"content": " qu00"}), *words([2])]), (Kind.TORN_WORD, 2), None),
        (stream([*words([0, 1]), chunk({"content": " q"}), *words([2])]), (Kind.TORN_WORD, 2), None),
        (stream([*words(range(7)), chunk({"content": " qu0007"}), *words([8])]), (Kind.TORN_WORD, 7), None),
        (stream([*words([0, 1]), chunk({"content": " qu00"})]), (Kind.TORN_WORD, 2), None),
        (stream([*words([0, 1]), chunk({"content": "qu0002"}), *words([3])]), (Kind.BLANK, 2), None),
        (stream([*words([0, 1]), chunk({"content": "  qu0002"}), *words([3])]), (Kind.BLANK, 2), None),
        (stream([*words([0, 1]), chunk({"content": " "})]), (Kind.BLANK, 2), None),
        (stream([*words([0, 1]), chunk({"content": "</think>"}), *words([2])]), (Kind.OTHER_TEXT, 2), None),
        (stream([*words([0]), chunk({"content": " QU0001"}), *words([1])]), (Kind.OTHER_TEXT, 1), None),
        (stream([*words([0, 1]), chunk({"content": "\ufffd"}), *words([2])]), (Kind.OTHER_TEXT, 2), None),
        (stream([chunk({"content": "\n"}), *words([0, 1])]), (Kind.OTHER_TEXT, 0), None),
        (stream([*words([0, 1]), chunk({"reasoning": "QU0000"}), *words([2])]), (Kind.OTHER_TEXT, 2), None),
        (stream([*called_frames(4), *words([0, 1])], "tool_calls"), (Kind.OTHER_TEXT, 4), None),
        (stream(words([0, 1, 2])), (Kind.TOO_MANY_WORDS, 2), 2),
        (stream(words([0, 1])), (Kind.SILENT_TRUNCATION, 2), 3),
        (stream(words([0, 1])) + usage_frame(3), (Kind.USAGE_WORDS, 2), None),
        (stream(words([0, 1])) + usage_frame(1), (Kind.USAGE_WORDS, 2), None),
        (
            stream([chunk({"reasoning_content": "QU0000"}), *words([0])]) + usage_frame(1),
            (Kind.USAGE_WORDS, 2),
            None,
        ),
        (stream(words([0, 1])) + usage_frame(2, total=9), (Kind.USAGE_SUM, 2), None),
        (stream(words([0, 1]), None) + chunk({"role": "assistant"}), (Kind.SECOND_ROLE, 2), None),
        (stream(words([0, 1])) + chunk(finish="length"), (Kind.TWO_FINISHES, 2), None),
        (
            stream(words([0, 1]), None) + chunk(finish="stop") + words([2])[0],
            (Kind.TEXT_AFTER_FINISH, 2),
            None,
        ),
        (stream(words([0, 1])) + words([2])[0], (Kind.TEXT_AFTER_DONE, 2), None),
        (stream([*words([0, 1]), event("{broken"), *words([2])]), (Kind.NOT_JSON, 2), None),
        (stream(words([0, 1])) + chunk(id="other"), (Kind.ID_CHANGED, 2), None),
        (stream(words([0, 1])) + chunk(model="other"), (Kind.MODEL_CHANGED, 2), None),
    ],
)
def test_each_error_is_named_with_its_word(
    data: bytes, finding: tuple[Kind, int], tokens: int | None
) -> None:
    verdict = verify(data, tokens=tokens)
    assert (verdict.outcome, found(verdict), verdict.exit_code) == ("wrong", [finding], 2)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("qu0000<think>QU0000</think> qu0001", 1),
        ("qu0000 qu0001<think>QU0000</think> qu0002", 2),
        ("<think>QU0000<think> QU0001</think>qu0000", 1),
        ("QU0000<think> QU0001</think>qu0000", 1),
        ("</think><think>QU0000</think>qu0000", 0),
        ("</think></think>qu0000", 0),
        ("qu0000</think> qu0001", 1),
        ("<think>QU0000</think>qu0000</think> qu0001", 2),
    ],
)
def test_reasoning_of_a_completion_opens_in_front_of_everything_and_closes_once(text: str, word: int) -> None:
    verdict = verify(raw_chunk(text) + raw_chunk(finish="stop") + DONE)
    assert (verdict.outcome, found(verdict)) == ("wrong", [(Kind.OTHER_TEXT, word)])


@pytest.mark.parametrize(
    "texts",
    [
        ["qu0000", "\n qu0001"],
        ["<think>\n", "\nQU0000</think>\n\nqu0000"],
        ["<think>\nQU0000</think>\n\n", "\nqu0000"],
    ],
)
def test_line_feeds_stand_behind_a_tag_and_only_so_many(texts: list[str]) -> None:
    assert verify([*map(raw_chunk, texts), raw_chunk(finish="stop"), DONE]).outcome == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "<think>QU00</think>",
        '{"name": "f", "arguments": {"a": "qu00"}}',
        '<|DSML|tool_calls>\n<|DSML|invoke name="f">\n<|DSML|parameter name="a" string="true">qu00</|DSML|parameter>',
    ],
)
def test_a_word_is_torn_where_its_block_closes_though_the_stream_dies_later(text: str) -> None:
    assert found(verify(raw_chunk(text.replace("|", "\uff5c")))) == [(Kind.TORN_WORD, 0)]


def test_foreign_words_in_a_row_are_one_finding() -> None:
    finding = verify(stream([*words([0, 1]), *words([2, 3, 4], "ab")])).findings[0]
    assert (finding.kind, finding.channel, finding.word, finding.count) == (Kind.FOREIGN_WORD, "text", 2, 3)
    apart = stream([*words([0, 1]), *words([2], "ab"), *words([2]), *words([3], "ab"), *words([3])])
    assert found(verify(apart)) == [(Kind.FOREIGN_WORD, 2), (Kind.FOREIGN_WORD, 3)]


def test_a_word_that_comes_again_is_out_of_order_only_where_the_next_one_goes_on() -> None:
    assert found(verify(stream(words([0, 1, 2, 3, 1, 4])))) == [(Kind.REORDER, 1)]
    assert found(verify(stream(words([0, 1, 2, 3, 1, 2, 4])))) == [(Kind.REPEAT, 1), (Kind.GAP, 3)]


def test_a_finding_names_the_byte_of_its_frame() -> None:
    frames = [ROLE, *words([0, 1, 3, 4])]
    verdict = verify(frames)
    # A word is judged when the text behind it shows that it has ended.
    assert [finding.offset for finding in verdict.findings] == [len(b"".join(frames[:4]))]


def test_a_tag_that_is_asked_for_makes_every_other_foreign() -> None:
    assert found(verify(stream(words([0, 1])), tag="ab")) == [(Kind.FOREIGN_WORD, 0)]
    assert verify(stream(words([0, 1])), tag="qu").outcome == "whole"


def test_markup_that_a_chat_does_not_show_can_be_told() -> None:
    data = stream(words([0, 1])) + usage_frame(4)
    assert verify(data, hidden_tokens=2).outcome == "whole"
    assert found(verify(data, hidden_tokens=1)) == [(Kind.USAGE_WORDS, 2)]
    assert found(verify(data, hidden_tokens=3)) == [(Kind.USAGE_WORDS, 2)]


def test_a_leg_on_its_own_may_start_later() -> None:
    assert verify(stream(words([5, 6, 7])), start=5).outcome == "whole"
    assert found(verify(stream(words([6, 7])), start=5)) == [(Kind.GAP, 5)]


@pytest.mark.parametrize(
    ("tail", "ended", "outcome"),
    [
        (b"", "unknown", "honest prefix"),
        (b"", "broken", "honest prefix"),
        (b"", "clean", "wrong"),
        (chunk(finish="abort"), "broken", "honest prefix"),
        (chunk(finish="abort") + DONE, "unknown", "honest prefix"),
        (chunk(finish="error") + DONE, "clean", "honest prefix"),
        (event({"error": {"message": "M", "code": 500}}), "clean", "honest prefix"),
        (event({"error": "M"}) + DONE, "clean", "honest prefix"),
        (event({"object": "error", "message": "M"}), "clean", "honest prefix"),
        (event({"type": "error", "message": "M"}), "clean", "honest prefix"),
        (b'event: error\ndata: {"type":"error","error":{}}\n\n', "clean", "honest prefix"),
        (b"event: error\n: M\n\n", "clean", "honest prefix"),
        (b'error: {"code":500}\n\n' + DONE, "clean", "honest prefix"),
        (
            event({**HEAD, "choices": [{"error": {}, "finish_reason": "error"}]}) + DONE,
            "clean",
            "honest prefix",
        ),
        (chunk(finish="stop"), "broken", "whole"),
        (chunk(finish="length") + DONE, "clean", "whole"),
        (chunk(finish="stop") + usage_frame(2), "unknown", "whole"),
        (chunk({"content": " qu00"}), "broken", "honest prefix"),
    ],
)
def test_the_end_decides_between_whole_and_died(tail: bytes, ended: str, outcome: str) -> None:
    verdict = verify(stream(words([0, 1]), None) + tail, ended=ended)  # type: ignore[arg-type]
    assert verdict.outcome == outcome


@pytest.mark.parametrize(
    ("tokens", "ended", "outcome"),
    [
        (None, "unknown", "honest prefix"),
        (None, "broken", "honest prefix"),
        (3, "unknown", "honest prefix"),
        (None, "clean", "wrong"),
        (3, "clean", "wrong"),
        (2, "unknown", "whole"),
        (2, "clean", "whole"),
    ],
)
def test_done_without_a_finish_is_an_end_where_all_words_are_known_to_be_there(
    tokens: int | None, ended: Ended, outcome: str
) -> None:
    verdict = verify(stream(words([0, 1]), None) + DONE, tokens=tokens, ended=ended)
    assert verdict.outcome == outcome
    assert verdict.notes[Note.DONE_WITHOUT_FINISH] == 1
    assert [finding.kind for finding in verdict.findings] == [Kind.SILENT_TRUNCATION] * (outcome == "wrong")


@pytest.mark.parametrize("tail", [b"", DONE, chunk(finish="stop") + DONE, usage_frame(2)])
@pytest.mark.parametrize("ended", ["unknown", "clean", "broken"])
def test_a_frame_that_nobody_can_read_is_an_error_that_ends_the_answer(tail: bytes, ended: Ended) -> None:
    verdict = verify([ROLE, *words([0, 1]), event("{broken"), event("more"), tail], ended=ended)
    assert (verdict.outcome, verdict.error, verdict.notes[Note.NOT_JSON]) == ("honest prefix", True, 2)


def test_text_behind_frames_that_nobody_can_read_makes_them_one_finding() -> None:
    frames = [*words([0, 1]), event("{broken"), event("more"), chunk()]
    verdict = verify(stream([*frames, *words([2])]))
    finding = verdict.findings[0]
    assert (finding.kind, finding.word, finding.count, finding.offset) == (
        Kind.NOT_JSON,
        2,
        2,
        len(b"".join([ROLE, *frames[:2]])),
    )
    assert not verdict.error
    assert Note.NOT_JSON not in verdict.notes
    assert found(verify(stream([*words([0]), event("x"), *words([1]), event("y"), *words([2])]))) == [
        (Kind.NOT_JSON, 1),
        (Kind.NOT_JSON, 2),
    ]


def test_a_finish_inside_a_call_is_a_silent_truncation() -> None:
    begun = list(islice(fault_pieces(LAB, locate(LAB, "x"), "call"), 5))
    for make, finish in ((chat, "tool_calls"), (completion, "stop")):
        assert found(verify(make(begun, finish))) == [(Kind.SILENT_TRUNCATION, 4)]
    assert verify(chat(begun, "length")).outcome == "whole"


@pytest.mark.parametrize(
    "rest", ["", "\n", "\ndata: [DONE]\n\n", "\rdata: [DONE]\r\r", "\r\ndata: {}\r\n\r\n"]
)
def test_an_error_on_the_first_line_is_one_whatever_comes_behind(rest: str) -> None:
    verdict = verify(f'{{"error":{{"message":"M"}}}}{rest}'.encode(), ended="clean")
    assert (verdict.outcome, verdict.error) == ("honest prefix", True)


def test_a_call_announced_twice_is_wrong() -> None:
    frames = chat(called(LAB), "tool_calls")
    again = frames[1].replace(b"call_1", b"call_2")
    assert found(verify([*frames[:6], again, *frames[6:]])) == [(Kind.SECOND_CALL, 4)]


@pytest.mark.parametrize("call_id", [{"id": "call_1"}, {}])
def test_a_call_named_twice_is_wrong(call_id: dict[str, str]) -> None:
    """Clients put a call's name together from the pieces that come."""
    frames = chat(called(LAB), "tool_calls")
    again = chunk({"tool_calls": [{"index": 0, **call_id, "function": {"name": "f", "arguments": ""}}]})
    assert found(verify([*frames[:6], again, *frames[6:]])) == [(Kind.SECOND_CALL, 4)]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"k" "qu0000"}',
        '{"k": "qu0000" "l": "qu0000"}',
        '{"k": "qu0000",}',
        '{"k": "qu0000", }',
        '{"k": }',
        '{"k"}',
        '{"k":: "qu0000"}',
        '{, "k": "qu0000"}',
        '{"k": ["qu0000" "x"]}',
        '{"k": "qu0000"]}',
        '{"k": 1 {}}',
        '{1: "qu0000"}',
        '["qu0000"]',
        '"qu0000"',
    ],
)
@pytest.mark.parametrize("size", [1, 3, 99])
def test_arguments_that_are_no_json_are_named(arguments: str, size: int) -> None:
    verdict = verify(stream(argument_frames(arguments, size), "length"))
    assert [finding.kind for finding in verdict.findings][:1] == [Kind.OTHER_TEXT]


@pytest.mark.parametrize("size", [1, 3, 99])
def test_arguments_of_every_kind_are_json(size: int) -> None:
    arguments = '{"a": [1, -2.5e3, true], "b": {}, "c": [], "d": {"e": null, "f": [[], {}]}, "k": "qu0000"}'
    assert verify(stream(argument_frames(arguments, size))).is_whole


def test_a_call_whose_announcement_was_lost_is_wrong() -> None:
    assert found(verify(stream(called_frames(4)[1:], "tool_calls"))) == [(Kind.OTHER_TEXT, 0)]


RAW_CALLS = {template.name: "".join(piece.raw for piece in called(template)) for template in FORMATS.values()}


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("lab", '{"name"', '{"namname"'),
        ("lab", '"arguments": ', '"arguments" '),
        ("hermes", '{"name"', '{"name": {"name"'),
        ("dsv4", "invoke name", "invoke namname"),
        ("dsv4", "\uff5cDSML\uff5cinvoke", "\uff5cDSML\uff5cinv\uff5cDSML\uff5cinvoke"),
        ("dsv4", 'name="get_current_weather">', 'name="get_current_weather"'),
        ("dsv4", ' string="true"', ' string="tr string="true"'),
        ("dsv4", "\n</\uff5cDSML\uff5cinvoke>", "\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cinvoke>"),
        ("dsv4", "\n</\uff5cDSML\uff5cinvoke>", ""),
    ],
)
def test_markup_of_a_call_that_was_put_together_wrongly_is_named(name: str, right: str, wrong: str) -> None:
    text = RAW_CALLS[name]
    assert right in text
    assert verify(raw_chunk(text) + raw_chunk(finish="stop")).is_whole
    verdict = verify(raw_chunk(text.replace(right, wrong)) + raw_chunk(finish="stop"))
    assert verdict.findings[0].kind is Kind.OTHER_TEXT


@STYLES
def test_a_raw_call_that_ends_inside_its_markup_is_a_silent_truncation(template: ChatTemplate) -> None:
    text = RAW_CALLS[template.name]
    begins = len(text) - len(text.lstrip("\n")) + 1 if template.name == "lab" else text.index(">") + 1
    for cut in range(begins, len(text)):
        kinds = [
            finding.kind for finding in verify(raw_chunk(text[:cut]) + raw_chunk(finish="stop")).findings
        ]
        assert kinds, text[:cut]


@STYLES
@pytest.mark.parametrize("behind", [" qu0000", "<think>QU0000"])
def test_nothing_is_said_behind_a_raw_call(template: ChatTemplate, behind: str) -> None:
    frames = [raw_chunk(RAW_CALLS[template.name]), raw_chunk(behind), raw_chunk(finish="stop")]
    assert verify(frames).findings[0].kind is Kind.OTHER_TEXT


def test_a_torn_first_word_of_another_answer_is_no_honest_prefix() -> None:
    assert verify(stream([chunk({"content": "zz0"})], None)).is_honest_prefix
    assert not verify(stream([chunk({"content": "zz0"})], None), tag="qu").is_honest_prefix
    reasoning = chunk({"reasoning_content": "QU0000"})
    assert not verify(stream([reasoning, chunk({"content": "zz0"})], None)).is_honest_prefix
    assert verify(stream([reasoning, chunk({"content": "qu0"})], None)).is_honest_prefix


def test_an_accent_written_as_an_escape_counts() -> None:
    frames = [frame.replace("é".encode(), rb"\\u00e9") for frame in chat(called(LAB), "tool_calls")]
    assert verify(frames, tokens=16).outcome == "whole"


def test_what_is_unusual_but_right_is_a_note() -> None:
    frames = [
        ROLE,
        b": ping\n\n",
        chunk({"role": "assistant", "content": "qu0000"}),
        chunk({"role": "assistant", "content": " qu0001"}, created=2),
        chunk(finish="stop"),
        chunk(finish="stop"),
        DONE,
        DONE,
        b"unknown\n\n",
    ]
    verdict = verify(frames)
    assert (verdict.outcome, verdict.notes) == (
        "whole",
        {
            Note.COMMENTS: 1,
            Note.ROLE_REPEATED: 1,
            Note.CREATED_CHANGED: 2,
            Note.FINISH_REPEATED: 1,
            Note.DONE_REPEATED: 1,
            Note.UNKNOWN_LINES: 1,
            Note.NO_USAGE: 1,
        },
    )


DIALECTS = {path.stem: path.read_bytes() for path in (ROOT / "tests" / "support" / "dialects").glob("*.sse")}


def test_there_is_a_stream_for_every_dialect() -> None:
    assert set(DIALECTS) == {"openai", "vllm", "dynamo", "openrouter", "lab"}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_is_whole_and_every_cut_of_it_honest(name: str) -> None:
    data = DIALECTS[name]
    assert verify(data, tokens=2, ended="clean").outcome == "whole"
    for variant in (data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + data):
        outcomes = [verify(variant[:cut]).outcome for cut in range(0, len(variant), 5)]
        assert outcomes == sorted(outcomes)
        assert verify(variant).outcome == "whole"


@pytest.mark.parametrize("value", [usage(0, prompt=0), None])
def test_usage_on_every_frame_counts_only_at_the_end(value: object) -> None:
    frames = [ROLE, *(chunk({"content": "qu0000"}, usage=value), chunk({"content": " qu0001"}, usage=value))]
    whole = [*frames, chunk(finish="stop", usage=value), usage_frame(2), DONE]
    assert verify(whole).outcome == "whole"
    assert {verify(whole[:place]).outcome for place in range(4)} == {"honest prefix"}


def test_running_totals_may_stop_anywhere() -> None:
    frames = [chunk({"content": "qu0000"}, usage=usage(1)), chunk({"content": " qu0001"}, usage=usage(2))]
    assert verify(frames).outcome == "honest prefix"
    assert verify([*frames, chunk(finish="stop", usage=usage(2)), DONE]).outcome == "whole"


@pytest.mark.parametrize(
    ("data", "tokens", "outcome"),
    [
        ("qu0000 qu0001", None, "whole"),
        ("qu0000 qu0001\n", 2, "whole"),
        ("qu0000 qu0001", 3, "honest prefix"),
        ("qu0000 qu00", None, "honest prefix"),
        ("qu0000 qu0002", None, "wrong"),
        ("qu0000 qu0001 qu0002", 2, "wrong"),
        ("<html>", None, "wrong"),
        ("", None, "honest prefix"),
        ("dat", None, "honest prefix"),
    ],
)
def test_plain_text_is_whole_where_its_words_are(data: str, tokens: int | None, outcome: str) -> None:
    assert verify(data.encode(), tokens=tokens).outcome == outcome


def test_plain_text_cut_inside_an_accent_is_a_prefix() -> None:
    data = "qu0000 qu0001 qu0002 qu0003 qu0004 qu0005 qu0006 qu0007é".encode()
    assert [verify(data[:cut]).outcome for cut in (-3, -2, -1, len(data))] == ["honest prefix"] * 3 + [
        "whole"
    ]


def test_a_json_answer_is_judged_like_a_stream() -> None:
    message = {"role": "assistant", "content": "qu0000 qu0001", "reasoning_content": "QU0000"}
    answer = {
        **HEAD,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage(7),
    }
    data = json.dumps(answer, indent=1).encode()
    assert verify(data, tokens=3).outcome == "whole"
    assert {verify(data[:cut]).outcome for cut in range(len(data))} == {"honest prefix"}
    assert verify(b'{"error":{"message":"M"}}', ended="clean").outcome == "honest prefix"
    assert found(verify(b"{]")) == [(Kind.NOT_JSON, 0)]
    assert found(verify(data.replace(b" qu0001", b" qu0002"))) == [(Kind.GAP, 1)]


def test_blocks_of_any_size_say_the_same() -> None:
    data = DIALECTS["openrouter"].replace(b"\n", b"\r\n")
    whole = verify(data)
    for size in (1, 2, 3, 7, 64):
        assert verify(data[place : place + size] for place in range(0, len(data), size)) == whole


def test_offsets_do_not_depend_on_the_blocks() -> None:
    data = stream([*words([0, 1]), event("x"), *words([2, 4, 5])]).replace(b"\n", b"\r\n")
    whole = verify(data)
    assert [finding.kind for finding in whole.findings] == [Kind.NOT_JSON, Kind.GAP]
    for size in (1, 2, 5):
        assert verify(data[place : place + size] for place in range(0, len(data), size)) == whole


def test_findings_are_kept_up_to_a_hundred_and_counted_beyond() -> None:
    verdict = verify(stream([*words([0]) * 151]))
    assert (len(verdict.findings), verdict.finding_count) == (100, 150)


def test_a_line_past_its_limit_is_one_finding_and_memory_stays_bounded() -> None:
    block = b"x" * 2**20
    blocks = [b"data: ", *[block] * 40, b"\n\n", *words([0]), chunk(finish="stop")]
    many = [b"data: ", *[block[:-7] + b"\ndata: "] * 40, b"\n\n", *words([0]), chunk(finish="stop")]
    for verdict in (verify(blocks), verify(b"".join(blocks)), verify(many)):
        assert found(verdict) == [(Kind.TOO_LONG, 0)]
        assert verdict.words == {"text": 1}
    assert found(verify([b"{", *[block] * 40]))[0] == (Kind.TOO_LONG, 0)
