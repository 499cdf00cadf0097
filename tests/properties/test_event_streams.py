"""Streams of named events, whatever is in them: nothing makes the oracle raise, and closing events cannot lie."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.apis.messages.structure import DELTAS, KNOWN_EVENTS
from inference_lab.core.oracle import verify
from tests.support.response_streams import DIGITS, HEALTHY, message

KINDS = (
    *sorted(KNOWN_EVENTS),
    *(
        f"response.{word}"
        for word in ("created", "in_progress", "completed", "incomplete", "failed", "abort")
    ),
    *(f"response.{part}.{end}" for part in ("output_item", "content_part") for end in ("added", "done")),
    *(
        f"response.{part}.{end}"
        for part in ("output_text", "reasoning_text", "function_call_arguments")
        for end in ("delta", "done")
    ),
)
INNER = (
    "text",
    "thinking",
    "tool_use",
    "message",
    "function_call",
    "reasoning",
    *sorted(set().union(*DELTAS.values())),
)
MEMBERS = (
    *(
        "type",
        "index",
        "delta",
        "content_block",
        "message",
        "response",
        "item",
        "part",
        "output_index",
        "text",
    ),
    *("content_index", "sequence_number", "item_id", "usage", "error", "id", "status", "output", "content"),
    *(
        "stop_reason",
        "signature",
        "partial_json",
        "thinking",
        "arguments",
        "summary",
        "incomplete_details",
        "name",
    ),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from((*KINDS, *INNER, "dx0000", " dx0001", "")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=6,
)
FRAMES = st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=5)


@given(
    st.lists(st.tuples(st.sampled_from((*KINDS, None)), st.booleans(), FRAMES), max_size=6),
    st.sampled_from((0, 3)),
)
def test_no_event_makes_it_raise(events: list[tuple[str | None, bool, dict[str, Any]]], start: int) -> None:
    body = ""
    for kind, is_named, frame in events:
        whole = frame if kind is None else {"type": kind} | frame
        body += (f"event: {kind}\n" if is_named else "") + f"data: {json.dumps(whole)}\n\n"
    verdict = verify(body.encode(), start=start)
    assert verdict.outcome in {"whole", "honest prefix", "wrong"}
    verify(json.dumps(dict(events[-1][2]) if events else {}).encode())


ITEM = message(DIGITS, "completed", "dx0000 dx0001")
LIES = {
    "the text": ("done_text", ',"text":"dx0000 dx0001"}\n\n', ',"text":"dx0000"}\n\n'),
    "its part": (
        "done_text",
        '"part":{"type":"output_text","annotations":[],"logprobs":[],"text":"dx0000 dx0001"}',
        '"part":{"type":"output_text","annotations":[],"logprobs":[],"text":"dx0000"}',
    ),
    "its item": (
        "done_text",
        f'"item":{ITEM}',
        f'"item":{ITEM.replace("dx0000 dx0001", "dx0000")}',
    ),
    "the output": ("output_items", f'"output":[{ITEM}]', f'"output":[{ITEM.replace("dx0001", "dx0002")}]'),
    "another output": ("output_items", f'"output":[{ITEM}]', f'"output":[{ITEM.replace("msg_", "msg_1")}]'),
    "an id in a delta": ("item_id", f'" dx0001","item_id":"msg_{DIGITS}"', '" dx0001","item_id":"msg_0"'),
    "an id that is lost": ("item_id", f'" dx0001","item_id":"msg_{DIGITS}",', '" dx0001",'),
    "an id at the end": ("item_id", f'"item":{ITEM}', f'"item":{ITEM.replace("msg_", "msg_1")}'),
    "another part": (
        "item_index",
        '"content_index":0,"delta":" dx0001"',
        '"content_index":1,"delta":" dx0001"',
    ),
    "only the first number": ("sequence_number", ',"sequence_number":0', ""),
    "a status": ("event_order", '"status":"completed","error"', '"status":"in_progress","error"'),
}


@pytest.mark.parametrize("name", LIES)
def test_closing_events_that_say_something_else_are_found(name: str) -> None:
    finding, honest, lie = LIES[name]
    assert HEALTHY.count(honest) == 1
    verdict = verify(HEALTHY.replace(honest, lie).encode())
    assert verdict.outcome == "wrong"
    assert finding in {found.kind.value for found in verdict.findings}


def test_a_stream_that_is_read_again_from_a_number_may_begin_there() -> None:
    events = HEALTHY.split("\n\n")
    verdict = verify("\n\n".join(events[5:]).encode(), start=1, ended="broken")
    assert {found.kind.value for found in verdict.findings} <= {"usage_words"}


def test_a_second_end_is_two_finishes() -> None:
    end = HEALTHY.split("\n\n")[-2] + "\n\n"
    assert "two_finishes" in {found.kind.value for found in verify((HEALTHY + end).encode()).findings}
