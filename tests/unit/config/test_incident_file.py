"""Incident files: what a file may say, and the one line that refuses it."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest
import tomli
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.commands.offline import load_offline
from inference_lab.config.incident_file import _File, _Head, load_incidents, parse_incident, read_incident
from inference_lab.config.models import load
from inference_lab.console import UserError
from inference_lab.core.faults.incident import BROKEN, COMPLETE, Blank, Incident, Piece
from inference_lab.core.faults.modes import MODES
from inference_lab.core.stream.events import Pause
from inference_lab.core.stream.healthy import STREAM_HEAD
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATENCY = 'model = "llama-3.1-8b-instruct"\nname = "lab"\nlatency = {}\n'
SHORT = 'close = "fin"\n'


def written(folder: Path, text: str, name: str = "x") -> Path:
    faults = folder / "faults"
    faults.mkdir(exist_ok=True)
    file = faults / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str, name: str = "x") -> str:
    file = written(folder, text, name)
    with pytest.raises(UserError) as caught:
        load_incidents(folder)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(f"{file}: ")
    return message.removeprefix(f"{file}: ")


def test_the_shortest_file_is_an_empty_stream(tmp_path: Path) -> None:
    file = written(tmp_path, SHORT)
    assert load_incidents(tmp_path) == {
        "x": Incident(name="x", status=200, headers=STREAM_HEAD.headers, framing="chunked", close="fin")
    }
    assert load_incidents(tmp_path / "lab.toml") == {"x": read_incident(file)}


def test_everything_a_file_can_say_is_read(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "capture.bin").write_bytes(b"\x00\x01\x02\x03")
    text = """
    name = "mine"
    close = "idle_close"
    idle_ms = 30
    placeholders = true
    request = { path = "/v1/chat/completions", body = "{model: string}" }
    [head]
    status = 299
    framing = "both"
    length_off_by = -2
    pause_ms = 18446744073709551615
    [head.headers]
    Content-Type = "text/plain"
    x-a = "é"
    [[events]]
    pause_ms = 3
    frame = "a<<word>>"
    [[events]]
    pause_ms = 5
    [[events]]
    raw = ["b", { base64 = "/w==" }, { file = "capture.bin" }, { file = "capture.bin", from = 1, to = 3 }, "<<id>>"]
    """
    written(tmp_path, text)
    (incident,) = load_incidents(tmp_path).values()
    assert incident == Incident(
        name="mine",
        status=299,
        headers=((b"content-type", b"text/plain"), (b"x-a", "é".encode())),
        framing="both",
        length_off_by=-2,
        head_pause_ms=2**64 - 1,
        steps=(
            Pause(3),
            Piece((b"a", Blank.WORD)),
            Pause(5),
            Piece((b"b\xff\x00\x01\x02\x03\x01\x02", Blank.ID), framed=False),
        ),
        close="idle_close",
        idle_ms=30,
    )


def test_without_the_switch_no_text_is_a_placeholder(tmp_path: Path) -> None:
    written(tmp_path, f'{SHORT}[[events]]\nframe = "<<id>> <<"\n')
    assert load_incidents(tmp_path)["x"].steps == (Piece((b"<<id>> <<",)),)


def test_bytes_in_base64_or_a_file_hold_no_placeholder(tmp_path: Path) -> None:
    code = base64.b64encode(b"<<id>>").decode()
    written(
        tmp_path,
        f'{SHORT}placeholders = true\n[[events]]\nframe = ["<<id>>", {{ base64 = "{code}" }}]\n',
    )
    assert load_incidents(tmp_path)["x"].steps == (Piece((Blank.ID, b"<<id>>")),)


EVENT = f"{SHORT}[[events]]\n"
REFUSALS = {
    "": "close is missing",
    'close = "eof"': "close is 'eof', expected one of terminator, terminator_rst, idle_close, stale, fin, rst, hang",
    "close = 3": "close is 3, expected a string",
    f"{SHORT}colour = 1": "colour is an unknown key, expected one of close, name, idle_ms, placeholders, request, head",
    f'{SHORT}name = "a b"': 'name is "a b", expected a letter or digit, then at most 63 letters',
    f'{SHORT}name = ""': 'name is "", expected a letter',
    f'{SHORT}name = "a,b"': 'name is "a,b", expected',
    f"{SHORT}name = 3": "name is 3, expected a string",
    **{f'{SHORT}name = "{mode}"': f'name is "{mode}", which is a mode already' for mode in MODES},
    f"{SHORT}idle_ms = 4": "idle_ms is 4, which goes with close idle_close only",
    f'close = "idle_close"\nidle_ms = "4"': 'idle_ms is "4", expected an integer from 0 to 18446744073709551615',  # noqa: F541
    f"{SHORT}placeholders = 1": "placeholders is 1, expected true or false",
    f"{SHORT}placeholders = true": "placeholders is true, but no frame has one; leave the key out",
    f'{SHORT}placeholders = true\n[[events]]\nframe = "<<id>> <<x>>"': (
        "events[0].frame holds '<<x>>' is no placeholder, expected <<id>>, <<model>>, <<word>>, or <<>> for a literal"
    ),
    f"{SHORT}head = 3": "head is 3, expected a table",
    f"{SHORT}[head]\nstatus = 100": "head.status is 100, expected an integer >= 200",
    f"{SHORT}[head]\nstatus = 600": "head.status is 600, expected an integer <= 599",
    f'{SHORT}[head]\nframing = "gzip"': 'head.framing is "gzip", expected one of both, chunked, length, none',
    f"{SHORT}[head]\nlength_off_by = 1": "head.length_off_by is 1, which goes with framing length or both only",
    f"{SHORT}[head]\npause_ms = -1": "head.pause_ms is -1, expected an integer from 0 to 18446744073709551615",
    'close = "terminator"\n[head]\nframing = "none"': "close is 'terminator', which a body without an end",
    f"{SHORT}[head.headers]\nx = 3": "head.headers.x is 3, expected a string on one line",
    f'{SHORT}[head.headers]\nx = "a\\r\\nb: c"': "head.headers.x is ",
    f'{SHORT}[head.headers]\n"a b" = "c"': 'head.headers."a b" is no name of a header',
    f'{SHORT}[head.headers]\nx = "c"\nX = "c"': "head.headers.X is given twice",
    f'{SHORT}[head.headers]\nTransfer-Encoding = "chunked"': "head.headers.Transfer-Encoding is made from head.framing",
    f'{SHORT}[head.headers]\ncontent-length = "3"': "head.headers.content-length is made from head.framing and",
    f'{SHORT}[head.headers]\nDate = "now"': "head.headers.Date is this server's own",
    f"{SHORT}events = 3": "events is 3, expected an array",
    f"{EVENT}": "events[0] is empty, expected pause_ms, frame or raw",
    f'{EVENT}frame = "a"\nraw = "b"': "events[0] has both frame and raw, expected one of them",
    f'{EVENT}frames = "a"': "events[0].frames is an unknown key, expected one of pause_ms, frame, raw",
    f'{EVENT}frame = ""': "events[0].frame is empty, expected at least one byte",
    f"{EVENT}frame = []": "events[0].frame is empty, expected at least one byte",
    f"{EVENT}raw = 3": "events[0].raw is 3, expected a string, { base64 = … }, { file = …, from = …, to = … }, or an",
    f'{EVENT}raw = ["a", 3]': "events[0].raw[1] is 3, expected a string",
    f"{EVENT}raw = [[]]": "events[0].raw[0] is an array, expected a string",
    f'{EVENT}raw = {{ hex = "a" }}': "events[0].raw is a table, expected a string",
    f'{EVENT}raw = {{ base64 = "a" }}': 'events[0].raw.base64 is "a", expected base64',
    f'{EVENT}raw = {{ base64 = "é" }}': 'events[0].raw.base64 is "é", expected base64',
    f"{EVENT}raw = {{ base64 = 3 }}": "events[0].raw.base64 is 3, expected base64",
    f'{EVENT}raw = {{ file = "../secret" }}': 'events[0].raw.file is "../secret", expected the name of a file',
    f'{EVENT}raw = {{ file = "none" }}': 'events[0].raw.file is "none", which cannot be read: No such file',
    f'{EVENT}raw = {{ file = "x.toml", from = 9999 }}': "events[0].raw.from is 9999, expected an integer from 0 to ",
    f'{EVENT}raw = {{ file = "x.toml", from = 5, to = 4 }}': "events[0].raw.to is 4, expected an integer from 5 to ",
    f'{EVENT}raw = {{ file = "x.toml", to = true }}': "events[0].raw.to is true, expected an integer from 0 to ",
    f"{EVENT}pause_ms = 1.5": "events[0].pause_ms is 1.5, expected an integer from 0 to 18446744073709551615",
    f"{EVENT}pause_ms = 18446744073709551616": "events[0].pause_ms is 18446744073709551616, expected an integer",
    "a = ": "not valid TOML: ",
}


@pytest.mark.parametrize(
    ("text", "expected"), REFUSALS.items(), ids=[text[:60] for text in REFUSALS.values()]
)
def test_a_bad_file_is_refused_in_one_line_that_names_key_value_and_remedy(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert refusal(tmp_path, text).startswith(expected)


@pytest.mark.parametrize("name", ["ok", "reset", "a b", "-x", "a;b"])
def test_a_files_own_name_is_judged_too(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, SHORT, name).startswith(f'the file\'s name is "{name}", ')


def test_two_files_with_one_name_are_both_named(tmp_path: Path) -> None:
    first = written(tmp_path, f'{SHORT}name = "twin"', "a")
    assert refusal(tmp_path, f'{SHORT}name = "twin"', "b") == (
        f'name is "twin", which {first} has; give one of them another'
    )


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("")
    with pytest.raises(UserError, match="faults: cannot be read: Not a directory"):
        load_incidents(tmp_path)


# -- beside a config


@pytest.mark.parametrize("single", [True, False])
def test_a_model_may_die_as_an_incident_beside_its_config(tmp_path: Path, single: bool) -> None:
    written(tmp_path, SHORT, "cut")
    config = tmp_path / "lab.toml"
    config.write_text(f'{LATENCY}[fault]\nmode = "cut"\ndelay_ms = 4\n')
    loaded = load(str(config if single else tmp_path), None)
    (model,) = loaded.models
    assert model.fault is not None
    (fault,) = model.fault.elements
    assert fault is not None
    assert fault.incident == loaded.incidents["cut"]


def test_a_bad_incident_stops_the_start_and_a_bad_use_of_a_good_one_too(tmp_path: Path) -> None:
    config = tmp_path / "lab.toml"
    config.write_text(f'{LATENCY}[fault]\nmode = "cut"\nclose = "rst"\n')
    with pytest.raises(UserError, match=r"lab.toml: fault: unknown mode 'cut'"):
        load(str(tmp_path), None)
    written(tmp_path, SHORT, "cut")
    with pytest.raises(UserError, match=r"lab.toml: fault: cut: close does not go with an incident"):
        load(str(tmp_path), None)
    written(tmp_path, "", "cut")
    with pytest.raises(UserError, match=r"faults/cut.toml: close is missing"):
        load(str(tmp_path), None)


def test_the_offline_commands_know_the_incidents_too(tmp_path: Path) -> None:
    written(tmp_path, SHORT, "cut")
    shipped = (ROOT / "configs" / "llama-3-70b.toml").read_text()
    (tmp_path / "llama.toml").write_text(f'{shipped}\n[fault]\nmode = "cut"\n')
    assert load_offline(str(tmp_path / "llama.toml"), None, ["tp=8"]).config == "llama"


# -- the document

DOCUMENT = (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
def test_every_file_in_the_document_is_an_incident(tmp_path: Path, text: str) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "capture.bin").write_bytes(b"3\r\n")
    written(tmp_path, text, "gateway-cut")
    assert list(load_incidents(tmp_path)) == ["gateway-cut"]


def test_the_document_names_every_key_and_close() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \|", DOCUMENT, re.MULTILINE)
    keys = {name for name in _File.__struct_fields__ if name != "head"}
    assert set(rows) >= keys | {f"head.{name}" for name in _Head.__struct_fields__}
    for close in (*COMPLETE, *BROKEN):
        assert f"`{close}`" in DOCUMENT


# -- whatever a file holds


def complaint(read: Callable[[], object]) -> str | None:
    """The message that refuses, if one does; nothing else may be raised."""
    try:
        read()
    except UserError as error:
        return str(error)
    return None


def is_line_about(file: Path, message: str | None) -> bool:
    return message is None or (message.isprintable() and message.startswith(f"{file}: "))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "x.toml"


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"events = " + b"[" * 5000)
@example(b"close = 'fin'\n[[events]]\nframe = " + b"[" * 90 + b"]" * 90)
def test_no_bytes_make_reading_fail_otherwise(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    assert is_line_about(scratch, complaint(lambda: read_incident(scratch)))


SCALARS = st.none().flatmap(
    lambda _: (
        st.booleans()
        | st.integers(-3, 2**65)
        | st.floats()
        | st.sampled_from(["fin", "chunked", "<<id>>", "<<", "\n", "\ud7ff", "x.toml", "AA==", "/", ""])
        | st.text(max_size=4)
    )
)
KEYS = st.sampled_from(
    [
        *("name", "close", "idle_ms", "placeholders", "request", "head", "events", "path", "body"),
        *("status", "headers", "framing", "length_off_by", "pause_ms", "frame", "raw", "base64", "file"),
        *("from", "to", "x", "a b", "Date"),
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
NEAR = st.fixed_dictionaries(
    {"close": st.sampled_from(["fin", "terminator", "idle_close"]) | VALUES},
    optional={
        "placeholders": st.booleans(),
        "head": st.dictionaries(KEYS, VALUES, max_size=3) | VALUES,
        "events": st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=3) | VALUES,
        "name": VALUES,
        "idle_ms": VALUES,
    },
)


@given(NEAR)
@example(tomli.loads("close = 'fin'\nevents = [{ frame = { file = 'x.toml', from = -1 } }]"))
def test_no_nearly_valid_document_makes_reading_fail_otherwise(
    scratch: Path, document: dict[str, object]
) -> None:
    scratch.write_bytes(b"")
    assert is_line_about(scratch, complaint(lambda: parse_incident(document, scratch)))
