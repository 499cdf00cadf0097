"""Scripts printed and compared: what each mode does, with no server running."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference_lab.core.answer.answer import fault_pieces
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import LAB
from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.completions.api import COMPLETIONS
from inference_lab.core.apis.contract import Completion, Form, Prompt
from inference_lab.core.apis.dialects import LAB as DIALECT
from inference_lab.core.apis.request import Common, StreamOptions
from inference_lab.core.faults.death import Close
from inference_lab.core.faults.directive import Fault, parse_directive
from inference_lab.core.faults.modes import MODES
from inference_lab.core.faults.values import U32_MAX, U64_MAX
from inference_lab.core.stream.assemble import Asked, Model, script
from inference_lab.core.stream.events import Event, Frame, Pause, single
from inference_lab.core.stream.healthy import STREAM_HEAD
from tests.reference_model.contract import MODES as ELEVEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.apis.contract import Api

FRESH = locate(LAB, "p266")
"""The position of a prompt whose answer has the tag `qu`."""

CHAT_HEAD = 'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m","choices":['
COMPLETIONS_HEAD = 'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":['


def events_of(
    fault: Fault, api: Api[Any], *, include_usage: bool = True, model: str = "m"
) -> Iterator[Event]:
    """Of an answer of five words."""
    tool = {"function": {"name": "lookup", "parameters": {"properties": {"city": {"type": "string"}}}}}
    options = StreamOptions(include_usage=include_usage)
    body = Common(stream=True, stream_options=options, max_tokens=5, tools=[tool])
    prompt = Prompt([0] * 5, replace(FRESH, is_raw=api.is_raw), thinking=False)
    completion = Completion(f"{api.id_prefix}0", 1, model)
    return single(script(Asked(api, body, prompt, Model(name="m")), fault, completion))


def script_of(fault: Fault, api: Api[Any], *, include_usage: bool = True) -> list[Event]:
    head, *events = events_of(fault, api, include_usage=include_usage)
    assert head == STREAM_HEAD
    return events


def printed(events: list[Event]) -> list[str]:
    """One line per event; a frame without what every frame repeats."""
    lines = []
    for event in events:
        if isinstance(event, Frame):
            text = event.data.decode(errors="backslashreplace").replace("\n\n", "")
            lines.append(text.replace(CHAT_HEAD, "~").replace(COMPLETIONS_HEAD, "~"))
        elif isinstance(event, Pause):
            lines.append(f"pause {event.ms}")
        else:
            lines.append(str(event))
    return lines


def chat_delta(delta: str) -> str:
    return f'~{{"index":0,"delta":{delta},"finish_reason":null}}]}}'


ROLE = chat_delta('{"role":"assistant"}')
WORDS = [chat_delta(f'{{"content":"{word}"}}') for word in ("qu0000", " qu0001", " qu0002")]
REASONING = [chat_delta(f'{{"reasoning_content":"{word}"}}') for word in ("QU0000", " QU0001", " QU0002")]
CALL = [
    chat_delta(
        '{"tool_calls":[{"index":0,"id":"call_0","type":"function","function":{"name":"lookup","arguments":""}}]}'
    ),
    chat_delta('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\": \\"qu0000"}}]}'),
    chat_delta('{"tool_calls":[{"index":0,"function":{"arguments":" qu0001"}}]}'),
]
FINISH = '~{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '~],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
DONE = "data: [DONE]"
ENVELOPE = (
    'data: {"error":{"message":"Provider returned error","code":502,"metadata":'
    '{"provider_name":"inference-lab","raw":"simulated upstream failure"}}}'
)
FLAT_400 = (
    'data: {"object":"error","message":"This model\'s maximum context length was exceeded",'
    '"type":"BadRequestError","param":null,"code":400}'
)
CANCELLED = 'data: {"error":{"code":499,"message":"CancelledError: ","type":"request_cancelled"}}'

# Half of the fourth word's frame: 79 of 158 bytes, its blank line counted.
HALF = 'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"'

# Directive: frames, then what follows the last of them without a pause.
CHAT_SCRIPTS: dict[str, tuple[list[str], list[str]]] = {
    "cut_between_frames": ([ROLE, *WORDS], ["Close.FIN"]),
    "cut_mid_frame": ([ROLE, *WORDS, HALF], ["Close.FIN"]),
    "cut_mid_frame;utf8=true": (
        [ROLE, *WORDS, '~{"index":0,"delta":{"content":" qu0003\\xc3'],
        ["Close.FIN"],
    ),
    "reset": ([ROLE, *WORDS], ["Close.RST"]),
    "stall": ([ROLE, *WORDS], ["Close.HANG"]),
    "error_envelope_200": ([ROLE, *WORDS, ENVELOPE], [DONE, "Close.TERMINATOR"]),
    "error_400_in_sse": ([ROLE, *WORDS, FLAT_400], ["Close.TERMINATOR"]),
    "no_done": ([ROLE, *WORDS, FINISH, USAGE], ["Close.TERMINATOR"]),
    "no_usage": ([ROLE, *WORDS, FINISH], [DONE, "Close.TERMINATOR"]),
    "cancelled_499": ([ROLE, *WORDS, CANCELLED], ["Close.TERMINATOR"]),
    "mid_reasoning": ([ROLE, *REASONING], ["Close.FIN"]),
    "mid_tool_call": ([ROLE, *CALL], ["Close.FIN"]),
}


def with_pauses(frames: list[str], tail: list[str], delay_ms: int) -> list[str]:
    lines = [frames[0]]
    for frame in frames[1:]:
        lines += [f"pause {delay_ms}", frame]
    return lines + tail


@pytest.mark.parametrize("directive", CHAT_SCRIPTS)
def test_the_script_of_each_mode_on_chat(directive: str) -> None:
    frames, tail = CHAT_SCRIPTS[directive]
    assert printed(script_of(parse_directive(directive), CHAT)) == with_pauses(frames, tail, 10)


def test_the_table_above_has_each_of_the_eleven_modes() -> None:
    assert {directive.partition(";")[0] for directive in CHAT_SCRIPTS} == set(ELEVEN)


def text_frame(text: str) -> str:
    return f'~{{"index":0,"text":"{text}","logprobs":null,"finish_reason":null}}]}}'


COMPLETIONS_FRAMES = {
    "cut_between_frames": ["qu0000", " qu0001", " qu0002"],
    "mid_reasoning": ["<think>QU0000", " QU0001", " QU0002"],
    "mid_tool_call": ['{\\"name\\": \\"lookup\\", \\"arguments\\": {\\"city\\": \\"', "qu0000", " qu0001"],
}


@pytest.mark.parametrize("directive", COMPLETIONS_FRAMES)
def test_a_completions_stream_has_no_role_frame_and_carries_raw_text(directive: str) -> None:
    frames = [text_frame(text) for text in COMPLETIONS_FRAMES[directive]]
    assert printed(script_of(parse_directive(f"{directive};delay_ms=7"), COMPLETIONS)) == with_pauses(
        frames, ["Close.FIN"], 7
    )


def test_reasoning_goes_on_in_a_block_that_the_prompt_has_opened() -> None:
    position = locate(LAB, "<|user|>hello<|end|><|assistant|><think>")
    pieces = fault_pieces(LAB, replace(position, is_raw=True), "reasoning")
    letters = position.tag.upper()
    assert [piece.raw for piece in islice(pieces, 2)] == [f"{letters}0000", f" {letters}0001"]


def test_a_usage_frame_is_sent_only_when_it_was_asked_for() -> None:
    lines = printed(script_of(parse_directive("no_done;delay_ms=0"), CHAT, include_usage=False))
    assert lines == [ROLE, *WORDS, FINISH, "Close.TERMINATOR"]


def test_without_a_delay_there_are_no_pauses() -> None:
    assert not [
        event for event in script_of(parse_directive("reset;delay_ms=0"), CHAT) if isinstance(event, Pause)
    ]


@given(
    st.sampled_from(sorted(MODES)),
    st.sampled_from(
        ["", ";content=reasoning", ";content=tool_call", ";tokens_per_frame=2", ";usage=every_chunk"]
    ),
    st.integers(0, 300),
    st.sampled_from([CHAT, COMPLETIONS]),
)
def test_the_frames_are_the_same_with_and_without_a_delay(
    mode: str, more: str, after_chunks: int, api: Api[Any]
) -> None:
    try:
        slow, fast = (
            parse_directive(f"{mode}{more};after_chunks={after_chunks};delay_ms={delay_ms}")
            for delay_ms in (1, 0)
        )
        paced = (event for event in events_of(slow, api) if event != Pause(1))
    except ValueError:
        return  # refused, and elsewhere it is told why
    assert list(islice(events_of(fast, api), 400)) == list(islice(paced, 400))


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
def test_nothing_but_the_opening_precedes_a_death_after_no_chunks(api: Api[Any]) -> None:
    events = script_of(parse_directive("reset;after_chunks=0"), api)
    assert printed(events) == ([ROLE] if api is CHAT else []) + ["Close.RST"]


def test_the_largest_values_are_generated_lazily() -> None:
    fault = parse_directive(f"stall;after_chunks={U32_MAX};delay_ms={U64_MAX}")
    _, *events = islice(events_of(fault, COMPLETIONS), 4)
    assert printed(events) == [text_frame("qu0000"), f"pause {U64_MAX}", text_frame(" qu0001")]


@given(st.integers(0, 40), st.sampled_from(["cut_mid_frame", "cut_mid_frame;utf8=true"]))
def test_a_torn_frame_is_cut_at_the_promised_byte(after_chunks: int, directive: str) -> None:
    fault = parse_directive(f"{directive};after_chunks={after_chunks};delay_ms=0")
    *_, torn, close = script_of(fault, CHAT)
    whole = script_of(
        parse_directive(f"cut_between_frames;after_chunks={after_chunks + 1};delay_ms=0"), CHAT
    )[-2]
    assert isinstance(torn, Frame)
    assert isinstance(whole, Frame)
    assert close is Close.FIN
    if fault.death.tear.word == "utf8":
        assert torn.data[-1:] == b"\xc3"
        assert whole.data.startswith(torn.data[:-1])
        assert torn.data[:-1].endswith(b"%04d" % after_chunks)
    else:
        assert torn.data == whole.data[: len(whole.data) // 2]


def test_half_a_frame_moves_back_to_a_character_boundary() -> None:
    lengths = set()
    for model in ("é" * size for size in range(1, 40)):
        fault = parse_directive("cut_mid_frame;after_chunks=0;delay_ms=0")
        *_, torn, _ = events_of(fault, COMPLETIONS, model=model)
        assert isinstance(torn, Frame)
        torn.data.decode()
        first = next(iter(fault_pieces(LAB, replace(FRESH, is_raw=True), "text")))
        writer = COMPLETIONS.writer(Completion("cmpl-0", 1, model), DIALECT, Form())
        (frame,) = writer.content(first)
        whole = len(frame.data)
        lengths.add(whole // 2 - len(torn.data))
    assert lengths == {0, 1}
