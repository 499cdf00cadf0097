"""A directive shown without a server: on each API, as that API would answer it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from inference_lab.commands.faults import main
from inference_lab.core.apis.table import APIS
from inference_lab.core.faults.modes import MODES
from tests.support.lab import MemoryLab, files, write
from tests.support.rawclient import request

if TYPE_CHECKING:
    from pathlib import Path

FIRST = {
    "chat": '"object":"chat.completion.chunk"',
    "completions": '"object":"text_completion"',
    "messages": "event: message_start",
    "responses": "event: response.created",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    folder: Path = tmp_path_factory.mktemp("models")
    return MemoryLab(write(folder, files()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_mode_is_shown_or_refused_with_a_reason(lab: MemoryLab, api: str, mode: str) -> None:
    got = lab.send(request("GET", f"/lab/faults/{mode}?endpoint={api}"))
    assert got.status == 200, got.after_head


@pytest.mark.parametrize("api", APIS)
def test_what_is_shown_is_of_the_api(capsys: pytest.CaptureFixture[str], api: str) -> None:
    assert main(["reset", "--api", api]) == 0
    shown = capsys.readouterr().out
    assert FIRST[api] in shown.replace('\\"', '"')
    if api == "completions":
        assert main(["reset", "--completions"]) == 0
        assert capsys.readouterr().out == shown


def test_what_an_api_has_no_place_for_is_refused_there(lab: MemoryLab) -> None:
    got = lab.send(request("GET", "/lab/faults/ok;sequence=double_finish?endpoint=responses"))
    assert got.status == 400
    assert "sequence=double_finish is for" in json.loads(got.after_head)["error"]["message"]
