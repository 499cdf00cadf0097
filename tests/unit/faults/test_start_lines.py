"""What a server's start refuses about directives is a short line: file, key, reason, and where the valid is listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from inference_lab.config.models import load
from inference_lab.console import UserError
from inference_lab.core.faults.death import AXES
from inference_lab.core.faults.values import Choice, Code, NumberedChoice, Text
from tests.support.nonsense import NONSENSE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAB = 'model = "llama-3.1-8b-instruct"\n[latency]\n'
LISTED = "; inference-lab faults lists what is valid"
IN_FRONT = "inference-lab: "
LONG = "x" * 5000
NAME = "n" * 64
INCIDENT = 'close = "fin"\n[[events]]\nraw = "data"\n'


def leg(*lines: str) -> str:
    return "\n".join(("[[fault.legs]]", *lines, ""))


CUT = leg('mode = "reset"')
# A block, what its line names as the key, and the reason.
BLOCKS = {
    "[fault]\nmode = 'rest'": "fault: unknown mode 'rest'",
    f"[fault]\nmode = '{LONG}'": "fault: unknown mode 'xxx",
    f'[fault]\nmode = "{chr(92)}u0001{chr(92)}U000E0001{LONG}"': "fault: unknown mode '",
    "[fault]\nmode = 3": "fault: mode is 3, expected a string",
    f"[fault]\nmode = ['{LONG}']": "fault: mode is ['xxx",
    "[fault]\nafter_chunks = 3": "fault: mode is missing",
    "[fault]\nmode = 'reset'\nspeed = 1": "fault: unknown key 'speed'",
    f"[fault]\nmode = 'reset'\n{LONG} = 1": "fault: unknown key 'xxx",
    "[fault]\nmode = 'reset'\nclose = 'slam'": "fault: close is 'slam'",
    "[fault]\nmode = 'ok'\nerror = 'mine'": "fault: error is 'mine'",
    "[fault]\nmode = 'reset'\nafter_chunks = '3'": "fault: after_chunks is '3', expected an integer from 0",
    f"[fault]\nmode = 'reset'\nafter_chunks = [{'1,' * 3000}]": "fault: after_chunks is [1, 1",
    f"[fault]\nmode = 'reset'\nafter_chunks = {{ {LONG} = 1 }}": "fault: after_chunks is {'xxx",
    f"[fault]\nmode = '{NAME}'\nclose = 'fin'": f"fault: {NAME}: close does not go with an incident",
    "fault = 3": "fault is 3, expected a table",
    f"fault = '{LONG}'": 'fault is "xxx',
    "[fault]\nlegs = []": "fault.legs is not a list",
    "[fault]\nlegs = ['reset']": "fault.legs[0] is not a table",
    "[fault]\nmode = 'reset'\nlegs = []": "fault.legs goes without other keys",
    CUT + leg("mode = 'rest'"): "fault.legs[1]: unknown mode 'rest'",
    CUT + leg("mode = 'reset'", "tear = 'byte:0'"): "fault.legs[1]: tear is 'byte:0'",
    CUT + leg("mode = 'reset'", "pause_ms = 5"): "fault.legs[1]: reset: pause_ms needs then=rest",
    leg("mode = 'ok'") + CUT: "fault.legs[0] never ends: only the last",
    CUT + leg("mode = 'reset'", "after_chunks = 0") + CUT: "fault.legs[1] adds no word",
    leg("mode = 'reset'", "sequence = 'dup:1'") + CUT: "fault.legs[0] has a sequence",
    leg("mode = 'ok'", "restart = true", "times = 1") + CUT: "fault.legs[0] has restart",
    leg("mode = 'ok'", "reject = 'prefill'", "times = 1")
    + CUT: "fault.legs[0] has reject, which the first leg",
    leg("mode = 'reset'", "reject = 'prefill'"): "fault: reject is for later legs",
    leg("mode = 'reset'", f"test = '{'a' * 64}'")
    + leg("mode = 'ok'", f"test = '{'b' * 64}'"): "fault: the list has",
}
INCIDENTS = {
    f"close = '{LONG}'": "close is 'xxx",
    "close = 'eof'": "close is 'eof', expected one of terminator",
    f"{LONG} = 1\n{INCIDENT}": "an unknown key",
    f"name = '{LONG}'\n{INCIDENT}": 'name is "xxx',
    f"idle_ms = '{LONG}'\n{INCIDENT}": 'idle_ms is "xxx',
    f"idle_ms = 5\n{INCIDENT}": "idle_ms is 5, which goes with close idle_close only",
    f"placeholders = '{LONG}'\n{INCIDENT}": 'placeholders is "xxx',
    f"placeholders = true\n{INCIDENT}": "placeholders is true, but no frame has one",
    f"placeholders = true\nclose = 'fin'\n[[events]]\nframe = '<<{LONG}>>'": "events[0].frame holds '<<xxx",
    f"close = 'fin'\n[[events]]\n{LONG} = 1": "an unknown key",
    f"close = 'fin'\n[[events]]\nraw = [{{ base64 = '{LONG}!' }}]": "events[0].raw[0].base64 is",
    f"close = 'fin'\n[[events]]\nraw = {{ file = '{LONG}' }}": "events[0].raw.file is",
    f"close = 'fin'\n[[events]]\nraw = {{ {LONG} = 1 }}": "events[0].raw is a table, expected",
    f"{INCIDENT}[head.headers]\n{LONG} = 1": "is 1, expected a string on one line",
    f"{INCIDENT}[head.headers]\n'{LONG}é' = 'x'": "is no name of a header",
    f"{INCIDENT}[head]\nframing = '{LONG}'": "head.framing is",
    f"{INCIDENT}[head]\nstatus = nan": "head.status is nan",
    f"a{'.a' * 400} = inf": "a is inf",
    f"'{LONG}' = {{}}\n'{LONG}' = {{}}": "not valid TOML",
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["short path", "long path"])
def refused(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """The line that a start with a model's and an incident's file ends with, and the end of the model's path."""

    def load_them(more: str, incident: str = INCIDENT) -> tuple[str, str]:
        folder, name = (
            (tmp_path / ("d" * 200) / ("é" * 120), "m" * 200) if request.param else (tmp_path, "lab")
        )
        (folder / "faults").mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.toml").write_text(
            f"{more}\n{LAB}" if more.startswith("fault") else f"{LAB}{more}\n"
        )
        (folder / "faults" / f"{NAME}.toml").write_text(incident)
        with pytest.raises(UserError) as stop:
            load(str(folder), None)
        line = f"{IN_FRONT}{stop.value}"
        assert line.isprintable()
        assert len(line) <= 300, line
        return line, f"{name[-20:]}.toml"

    return load_them


@pytest.mark.parametrize("block", BLOCKS, ids=BLOCKS.values())
def test_a_bad_block_is_a_short_line_with_file_key_and_reason(
    refused: Callable[..., tuple[str, str]], block: str
) -> None:
    line, file = refused(block)
    assert f"{file}: {BLOCKS[block]}" in line
    assert line.endswith((LISTED, ", expected a table"))
    assert "element" not in line
    assert "cut_between_frames" not in line


@pytest.mark.parametrize("text", NONSENSE)
def test_settings_that_make_no_sense_together_are_a_short_line(
    refused: Callable[..., tuple[str, str]], text: str
) -> None:
    mode, *settings = text.split(";")
    pairs = [setting.split("=") for setting in settings]
    values = [
        f"{key} = {value if re.fullmatch('[0-9]+|true|false', value) else repr(value)}"
        for key, value in pairs
    ]
    line, file = refused(CUT + leg(f"mode = '{mode}'", *values))
    assert f"{file}: fault.legs[1]: {mode}: {NONSENSE[text]}" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, "[1.5]") for key in AXES]
    + [(key, f"'{LONG}'") for key, axis in AXES.items() if not isinstance(axis.kind, (Text, Code))]
    + [("message", f'"{LONG}{chr(92)}n"'), ("test", f"'{LONG}'"), ("times", f'"{chr(92)}u0007{LONG}"')],
    ids=lambda text: text[:20],
)
def test_whatever_a_key_is_given_is_a_short_line_and_never_a_list(
    refused: Callable[..., tuple[str, str]], key: str, value: str
) -> None:
    line, file = refused(f"[fault]\nmode = 'ok'\n{key} = {value}")
    assert f"{file}: fault: {key} is " in line
    assert line.endswith(LISTED)
    kind = AXES[key].kind
    if isinstance(kind, (Choice, NumberedChoice)):
        assert "expected" not in line


@pytest.mark.parametrize("incident", INCIDENTS, ids=INCIDENTS.values())
def test_a_bad_incident_is_a_short_line(refused: Callable[..., tuple[str, str]], incident: str) -> None:
    line, _ = refused("", incident)
    assert f"{NAME[-20:]}.toml: " in line
    assert INCIDENTS[incident] in line


def test_two_incidents_of_one_name_are_a_short_line(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    (folder / "faults").mkdir(parents=True)
    (folder / "lab.toml").write_text(LAB)
    for name in ("first" * 40, "second" * 40):
        (folder / "faults" / f"{name}.toml").write_text(f"name = '{NAME}'\n{INCIDENT}")
    with pytest.raises(
        UserError, match=r"second\.toml: name is .* which .*first\.toml has; give one"
    ) as stop:
        load(str(folder), None)
    assert len(f"{IN_FRONT}{stop.value}") <= 300
