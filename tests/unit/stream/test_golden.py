"""The bytes of the eleven modes are what they were: whole responses, recorded before there were axes.

To record one anew, after a change that is meant to change it: delete its file and run this one.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "support" / "golden" / "eleven"
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
ASKED = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    return MemoryLab(write(tmp_path_factory.mktemp("golden"), {"m": MODEL.format(name="m")}))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", FAULTS)
def test_a_mode_answers_with_the_bytes_that_it_always_answered_with(
    lab: MemoryLab, name: str, path: str
) -> None:
    body = {"model": "m", "stream": True, **ASKED[path], "stream_options": {"include_usage": True}}
    got = lab.exchange(path, json.dumps(body).encode(), {"x-inference-lab-fault": FAULTS[name]})
    raw = re.sub(rb"Date: [^\r]*\r\n", b"", got.raw)
    file = GOLDEN / f"{'chat' if path == CHAT else 'completions'}-{name}.http"
    if not file.exists():
        file.write_bytes(raw)
        pytest.fail(f"recorded {file.name}")
    assert raw == file.read_bytes()
