"""The way of a request: through how much of the program somebody goes who follows one with a debugger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import inference_lab
from tests.support.lab import MemoryLab, files, write
from tests.support.rawclient import FIN, request

if TYPE_CHECKING:
    from types import CodeType, FrameType

_ROOT = str(Path(inference_lab.__file__).parent)
_BODY = json.dumps({"model": "lab", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
_HEADERS = {"connection": "close", "x-inference-lab-fault": "reset;after_chunks=4"}


def _codes_called(lab: MemoryLab, data: bytes) -> set[CodeType]:
    """The package's functions that a request calls, from its connection to the death of that."""
    codes: set[CodeType] = set()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            codes.add(frame.f_code)

    sys.setprofile(on_event)
    try:
        got = lab.send(data)
    finally:
        sys.setprofile(None)
    assert got.end == FIN
    assert got.raw.count(b'"content"') == 4
    return codes


@pytest.mark.parametrize(("is_recorded", "most_files", "most_functions"), [(False, 49, 206), (True, 58, 262)])
def test_a_death_is_followed_through_few_files_and_functions(
    tmp_path: Path, *, is_recorded: bool, most_files: int, most_functions: int
) -> None:
    lab = MemoryLab(write(tmp_path, files()))
    if not is_recorded:
        lab.site.recorder = None
    data = request("POST", "/v1/chat/completions", _BODY, headers=_HEADERS)
    for _ in range(3):  # what is read once is kept: the directive, the dialect's templates
        lab.send(data)
    codes = _codes_called(lab, data)
    paths = {code.co_filename for code in codes}
    assert len(paths) <= most_files, sorted(paths)
    assert len(codes) <= most_functions, sorted(code.co_qualname for code in codes)
