"""The bytes of the eleven modes are what they were: whole responses, recorded before there were axes.

To record them anew, after a change that is meant to change them: delete tests/golden/eleven/ and run this file once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.app import CHAT, COMPLETIONS, App

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent / "golden" / "eleven"
FAULTS = {
    "cut_between_frames": "cut_between_frames;after_chunks=9",
    "cut_mid_frame": "cut_mid_frame;after_chunks=7",
    "cut_mid_frame-utf8": "cut_mid_frame;utf8=true",
    "reset": "reset",
    "stall": "stall;after_chunks=1;delay_ms=0",
    "error_envelope_200": "error_envelope_200",
    "error_400_in_sse": "error_400_in_sse",
    "no_done": "no_done",
    "no_usage": "no_usage",
    "cancelled_499": "cancelled_499;after_chunks=0",
    "mid_reasoning": "mid_reasoning",
    "mid_tool_call": "mid_tool_call",
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    return App(tmp_path_factory.mktemp("golden")).ask


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", FAULTS)
def test_a_mode_answers_with_the_bytes_that_it_always_answered_with(
    ask: Callable[..., bytes], name: str, path: str
) -> None:
    got = ask(path, FAULTS[name], stream_options={"include_usage": True})
    file = GOLDEN / f"{'chat' if path == CHAT else 'completions'}-{name}.http"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(got)
        pytest.fail(f"recorded {file.name}")
    assert got == file.read_bytes()
