"""What a client sends is read in time linear in its bytes, and lists have a bound."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from inference_lab.commands.record.capture import Capture, End
from inference_lab.commands.record.masking import Mask
from inference_lab.core.answer.answer import word
from inference_lab.core.answer.legs import directive_in
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.faults import grammar
from inference_lab.core.faults.directive import DirectiveError, parse_directive
from inference_lab.core.faults.grammar import MOST_ELEMENTS
from inference_lab.core.faults.plan import FaultPlan, plan_from_header, plan_from_prompt, plan_from_table
from inference_lab.core.oracle import verify
from tests.support.growth import assert_linear, calls_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

LISTS = {
    "shares": "ok;times=1,",
    "legs": "stall,",
    "skips": "ok;times=1;skip=2,",
    "tests": 'stall;test="t",',
    "quotes": 'reset;error=openai;message="a,b;c",',
}


@pytest.mark.parametrize("element", LISTS.values(), ids=LISTS)
def test_a_fault_list_is_read_in_linear_time(element: str) -> None:
    def work(count: int) -> Callable[[], object]:
        return lambda: plan_from_prompt("reset," + element * count + "ok")

    assert_linear(work, MOST_ELEMENTS // 5)


def test_a_plan_of_elements_is_built_and_asked_in_linear_time() -> None:
    shared, last = parse_directive("ok;times=1"), parse_directive("reset;after_chunks=2")

    def work(count: int) -> Callable[[], object]:
        return lambda: FaultPlan((*[shared] * count, last)).fault_for(1)

    assert_linear(work, 500)


@pytest.mark.parametrize("read", [plan_from_header, plan_from_prompt])
@pytest.mark.parametrize("element", LISTS.values(), ids=LISTS)
def test_a_longer_list_is_refused_before_its_rest_is_read(
    read: Callable[[str], FaultPlan], element: str
) -> None:
    assert len(read("reset," + element * (MOST_ELEMENTS - 2) + "ok").elements) == MOST_ELEMENTS

    def refuse(count: int) -> None:
        with pytest.raises(DirectiveError, match=f"a list of more than {MOST_ELEMENTS} elements"):
            read("reset," + element * count + "ok")

    at_the_bound, far_beyond = (calls_of(partial(refuse, count)) for count in (MOST_ELEMENTS, 100_000))
    assert far_beyond < at_the_bound + 100


def test_legs_of_a_table_have_the_same_bound() -> None:
    legs = [{"mode": "stall"}] * MOST_ELEMENTS
    assert len(plan_from_table({"legs": legs}).elements) == MOST_ELEMENTS
    with pytest.raises(DirectiveError, match="legs has 1001 tables, expected at most 1000"):
        plan_from_table({"legs": [*legs, {"mode": "stall"}]})


def test_behind_a_quote_that_does_not_close_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, taken = grammar._PIECE, []  # noqa: SLF001 - each further quote would be searched for its end in there

    class Noted:
        """The pieces, noted as they are taken."""

        def finditer(self, text: str) -> Iterator[re.Match[str]]:
            for found in pieces.finditer(text):
                taken.append(found[0])
                yield found

    monkeypatch.setattr(grammar, "_PIECE", Noted())
    with pytest.raises(grammar.GrammarError, match="does not close"):
        grammar.parse('ok;message="' + '\\"' * 1000 + "\\x")
    assert taken == ["ok", ";", "message=", '"']


STYLE = FORMATS["lab"]
ASKED = "<|user|>hello<|end|><|assistant|>"
TAG = locate(STYLE, ASKED).tag
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def prompt_of_words(count: int) -> object:
    return locate(STYLE, ASKED + "".join(word(TAG, index) for index in range(count)))


def prompt_of_markers(count: int) -> object:
    return locate(STYLE, "<|user|>" + "<|end|><|assistant|><think></think>" * count)


def prompt_of_tool_calls(count: int) -> object:
    return locate(STYLE, ASKED + '<tool_call>{"name": "f", "arguments": {"a": "' * count)


def prompt_of_tools(count: int) -> object:
    tools = ", ".join('{"type": "function", "function": {"name": "f"}}' for _ in range(count))
    return locate(STYLE, f"<|tools|>[{tools}]<|end|>{ASKED}").first_tool


def directive_behind_quotes(count: int) -> object:
    return directive_in("<<fault:" + '"a" ' * count + ">>")


def fault_directives(count: int) -> object:
    return directive_in("<<fault:ok>>" * count)


def stream_of_frames(count: int) -> object:
    frames = b"".join(
        b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % word("qu", at).encode() for at in range(count)
    )
    return verify([frames])


def stream_of_bytes(count: int) -> object:
    return verify([b"a"] * count)


def stream_of_one_event(count: int) -> object:
    return verify([b"data: x\n"] * count)


def recorded_chunks(count: int) -> object:
    capture = Capture(2**30)
    capture.feed(CHUNKED + b"1\r\na\r\n" * count, 0)
    return capture.ended(End.FIN, 0)


def recorded_bytes_of_a_chunk(count: int) -> object:
    capture = Capture(2**30)
    capture.feed(CHUNKED + b"ffffff\r\n", 0)
    for at in range(count):
        capture.feed(b"a", at)
    return capture.ended(End.FIN, count)


def hidden_secrets(count: int) -> object:
    return Mask({b"sk-12345678"}).text("sk-12345678 \\\\" * count)


PARSERS = (
    prompt_of_words,
    prompt_of_markers,
    prompt_of_tool_calls,
    prompt_of_tools,
    directive_behind_quotes,
    fault_directives,
    stream_of_frames,
    stream_of_bytes,
    stream_of_one_event,
    recorded_chunks,
    recorded_bytes_of_a_chunk,
    hidden_secrets,
)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
def test_what_comes_from_outside_is_read_in_linear_time(parse: Callable[[int], object]) -> None:
    assert_linear(lambda count: partial(parse, count), 200)
