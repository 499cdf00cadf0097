"""`inference-lab faults` as a user runs it, and the same from a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.commands.faults import main
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.death import AXES
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.faults.listing import modes
from inference_lab.core.faults.modes import MODES
from inference_lab.core.stream.preview import MOST_EVENTS, MOST_LEGS, preview
from tests.support.growth import calls_of
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import request

if TYPE_CHECKING:
    from pathlib import Path

CHUNKED = (
    "content-type: text/event-stream; charset=utf-8; cache-control: no-cache; x-accel-buffering: no; "
    "transfer-encoding: chunked"
)
HEAD = (
    'data: {"id":"chatcmpl-000000000000000000000000","object":"chat.completion.chunk","created":1700000000,'
    '"model":"MODEL","choices":['
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, stdout and stderr."""
    status = main(list(arguments))
    return status, *capsys.readouterr()


def test_the_list_has_a_line_for_each_mode_axis_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 0
    lines = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert lines == [*MODES, *AXES, *VARIANTS]


def test_the_list_as_json_has_the_constraints_too(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "--json")[1])
    assert [row["name"] for row in listed["modes"]] == list(MODES)
    assert [row["key"] for row in listed["axes"]] == list(AXES)
    assert {"keys": "idle_ms", "reason": "goes with close=idle_close"} in listed["constraints"]


@pytest.mark.parametrize("row", modes(), ids=lambda row: row["name"])
def test_a_modes_line_of_axes_is_the_mode(row: dict[str, str]) -> None:
    assert parse_directive(row["directive"]).death == parse_directive(row["name"]).death


def test_a_directive_is_shown_event_by_event(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "cut_mid_frame;utf8=true;after_chunks=1;ttft_ms=30")
    assert status == 0
    assert out.splitlines() == [
        "cut_mid_frame;after_chunks=1;delay_ms=10;utf8=true;ttft_ms=30",
        f"       0 ms  head   200  {CHUNKED}",
        f'      30 ms  chunk  {HEAD}{{"index":0,"delta":{{"role":"assistant"}},"finish_reason":null}}]}}\\n\\n',
        f'      40 ms  chunk  {HEAD}{{"index":0,"delta":{{"content":"dx0000"}},"finish_reason":null}}]}}\\n\\n',
        f'      50 ms  chunk  {HEAD}{{"index":0,"delta":{{"content":" dx0001\\xc3',
        "      50 ms  end    fin",
    ]


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("endpoint", [(), ("--completions",)])
def test_every_mode_can_be_shown(
    capsys: pytest.CaptureFixture[str], name: str, endpoint: tuple[str, ...]
) -> None:
    status, out, error = run(capsys, name, "--json", *endpoint)
    assert (status, error) == (0, "")
    (leg,) = json.loads(out)
    assert leg["end"] is not None or name == "heartbeat_stall"


def test_each_leg_of_a_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    legs: list[dict[str, Any]] = json.loads(
        run(capsys, "--json", "reset;after_chunks=2, stall;overlap=1, ok")[1]
    )
    assert [(leg["progress"], leg["end"]) for leg in legs] == [
        (0, "rst"),
        (2, "hang"),
        (4, "as the engine answers"),
    ]
    assert 'dx0001"' in legs[1]["events"][3]["chunk"], "the word before the second leg's first is said again"


def test_of_a_long_list_some_elements_are_shown_and_how_many_more_there_are(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    long = "stall;after_chunks=1," * 100 + "ok"
    *legs, last = json.loads(run(capsys, "--json", long)[1])
    assert [leg["leg"] for leg in legs] == list(range(MOST_LEGS))
    assert last == {"more": 101 - MOST_LEGS}
    assert run(capsys, long)[1].endswith(f"ms  end    hang\nand {101 - MOST_LEGS} more\n")
    assert MemoryLab(config).send(request("GET", f"/lab/faults/{long}")).json == [*legs, last]


def test_what_is_shown_is_bounded_in_bytes_too(capsys: pytest.CaptureFixture[str]) -> None:
    fat = "ok;tokens_per_frame=1000;after_chunks=1000000"
    first, second = json.loads(run(capsys, "--json", f"{fat}, stall")[1])
    assert len(first["events"]) < MOST_EVENTS
    assert (first["end"], second) == (None, {"more": 1})


def test_a_leg_is_shown_at_once_however_many_words_stand_before_it() -> None:
    few, many = (f"reset;after_chunks={words}, stall;after_chunks=3" for words in (300, 300_000))
    assert calls_of(lambda: preview(many)) < 2 * calls_of(lambda: preview(few))
    leg: dict[str, Any] = preview(many)[1]
    assert leg["progress"] == 300_000
    assert '" dx300000"' in leg["events"][3]["chunk"]


def test_a_leg_that_begins_again_is_shown_from_word_0(capsys: pytest.CaptureFixture[str]) -> None:
    for directive in ("echo_restart", "reset;after_chunks=2, ok;restart=true"):
        leg = json.loads(run(capsys, "--json", directive)[1])[-1]
        assert leg["progress"]
        assert '"content":"dx0000"' in leg["events"][3]["chunk"]


@pytest.mark.parametrize(
    ("directive", "reason"),
    [
        ("explode", "unknown mode 'explode'"),
        ("ok;pause_ms=1", "ok: pause_ms needs then=rest"),
        ("ok;frame_bytes=1", "ok: frame_bytes=1 is less than the frame's"),
    ],
)
def test_what_the_server_would_refuse_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], directive: str, reason: str
) -> None:
    status, out, error = run(capsys, directive)
    assert (status, out) == (1, "")
    assert error.startswith(f"inference-lab faults: {reason}")
    assert error.count("\n") == 1


INCIDENT = """close = "rst"
[[events]]
frame = "data: captured\\n\\n"
[[events]]
pause_ms = 40
raw = "zz"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A folder with a model and an incident beside it."""
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "gateway-cut.toml").write_text(INCIDENT)
    return write(tmp_path, {"m": MODEL.format(name="m")})


def test_an_incident_is_listed_and_shown_by_its_name(
    capsys: pytest.CaptureFixture[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (config, config / "m.toml"):
        status, out, _ = run(capsys, "--config", str(place))
        assert (status, out.count("\n  gateway-cut\n")) == (0, 1)
        status, out, _ = run(capsys, "--config", str(place), "gateway-cut")
        assert (status, out.splitlines()) == (
            0,
            [
                "gateway-cut",
                f"       0 ms  head   200  {CHUNKED}",
                "       0 ms  chunk  data: captured\\n\\n",
                "      40 ms  raw    zz",
                "      40 ms  end    rst",
            ],
        )
    config.rename(config.parent / "configs")
    monkeypatch.chdir(config.parent)
    assert "\n  gateway-cut\n" in run(capsys)[1], "the folder that serve would take"


@pytest.mark.parametrize("arguments", [(), ("gateway-cut",), ("reset",)])
def test_a_config_that_serve_would_refuse_is_one_line(
    capsys: pytest.CaptureFixture[str], config: Path, arguments: tuple[str, ...]
) -> None:
    broken = config / "faults" / "broken.toml"
    broken.write_text("close = 1")
    far = config / ("x" * 300)
    for place, reason in (
        (config, f"{broken}: close"),
        (config / "no", f"{config / 'no'}: no such file"),
        (far, f"{far}: cannot be read: File name too long"),
    ):
        status, out, error = run(capsys, "--config", str(place), *arguments)
        assert (status, out, error.count("\n")) == (1, "", 1)
        assert error.startswith(f"inference-lab faults: {reason}")


def test_without_a_config_there_are_no_incidents(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "gateway-cut.toml").write_text(INCIDENT)
    monkeypatch.chdir(tmp_path)
    assert json.loads(run(capsys, "--json")[1])["incidents"] == []
    assert run(capsys, "gateway-cut")[2].startswith("inference-lab faults: unknown mode 'gateway-cut'")


def test_the_server_says_the_same(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    lab = MemoryLab(config)
    listed = json.loads(run(capsys, "--json", "--config", str(config))[1])
    assert lab.send(request("GET", "/lab/faults")).json == listed
    assert listed["incidents"] == ["gateway-cut"]
    shown = lab.send(request("GET", "/lab/faults/gateway-cut"))
    assert shown.json == json.loads(run(capsys, "--json", "--config", str(config), "gateway-cut")[1])
    shown = lab.send(request("GET", "/lab/faults/reset%3Bafter_chunks=1?endpoint=completions"))
    assert shown.json == json.loads(run(capsys, "--json", "--completions", "reset;after_chunks=1")[1])
    assert lab.send(request("GET", "/lab/faults/explode")).error["code"] == "invalid_fault_directive"
    assert lab.send(request("GET", "/lab/faults/reset?endpoint=x")).error["param"] == "endpoint"
    assert lab.send(request("GET", "/lab/faults/reset?chat=false")).error["param"] == "chat"
    assert lab.send(request("GET", "/lab/faults", headers={"x-inference-lab-fault": "reset"})).status == 400


def test_a_server_without_directives_does_not_list_them(tmp_path: Path) -> None:
    lab = MemoryLab(write(tmp_path, {"m": MODEL.format(name="m")}), directives=False)
    for target in ("/lab/faults", "/lab/faults/reset"):
        assert lab.send(request("GET", target)).error["code"] == "not_found"
