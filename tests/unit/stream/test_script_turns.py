"""What takes long to make is made in parts: others have their turn between, and no byte is another for it."""

from __future__ import annotations

import pytest

from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.stream import edits, framing, script
from inference_lab.core.stream.events import TURN_BYTES, Frame, Turn
from tests.reference_model.contract import CHAT
from tests.support.axes_scripts import script_of

HELD = (
    "ok;after_chunks=2;sequence=swap:5",
    "ok;after_chunks=2;sequence=swap:5;tokens_per_frame=3;delay_ms=5",
    "ok;after_chunks=2;sequence=swap:5;eol=crlf;id=true;comments=2;multiline=3;final_blank=false",
    "ok;after_chunks=2;sequence=swap:5;chunk_error=no_crlf;close=fin",
    "ok;after_chunks=2;sequence=swap:5;encoding=gzip;segment=3;gap_ms=4",
    "ok;after_chunks=9;segment=whole;delay_ms=3",
    "ok;after_chunks=9;segment=4;gap_ms=20;delay_ms=3",
    "stall;after_chunks=2;sequence=swap:5;segment=4;gap_ms=9",
    "ok;after_chunks=9;length=-3;close=fin;sequence=dup:4",
    "ok;content=tool_call;after_chunks=9;segment=whole;finish=tool_calls",
)


@pytest.mark.parametrize("directive", HELD)
def test_turns_change_no_event(directive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    death = parse_directive(directive).death
    whole = script_of(death, CHAT)
    assert not any(isinstance(event, Turn) for event in whole)
    for module in (edits, framing, script):
        monkeypatch.setattr(module, "TURN_BYTES", 1)
    parts = script_of(death, CHAT)
    assert [event for event in parts if not isinstance(event, Turn)] == whole
    assert len(parts) > len(whole)


@pytest.mark.parametrize(
    "held",
    [
        "after_chunks=1;sequence=swap:1000",
        "segment=1000;after_chunks=1000",
        "segment=whole;after_chunks=1000",
    ],
)
def test_what_is_held_is_made_in_parts(held: str) -> None:
    death = parse_directive(f"ok;tokens_per_frame=1000;{held}").death
    events = script_of(death, CHAT, most=5_000)
    total = sum(len(event.data) for event in events if isinstance(event, Frame))
    turns = sum(isinstance(event, Turn) for event in events)
    assert total > 5_000_000
    assert turns > total // (2 * TURN_BYTES)
