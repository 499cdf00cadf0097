"""The documents against the program: transcripts, modes and options say what is there."""

from __future__ import annotations

import importlib.util
import re
import shutil
from typing import Any

import pytest

from inference_lab.service.settings import DEFAULT_HOST, DEFAULT_PORT
from inference_lab.tap import Options
from tests.reference_model.contract import MODES as ELEVEN
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]

HINT = "record it again: .venv-dev/bin/python docs/transcripts.py"


def script(name: str) -> Any:
    """A script beside the documents, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, its head left out."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines[2:]]


def test_the_transcripts_are_what_a_server_and_curl_say_today() -> None:
    if shutil.which("curl") is None:
        pytest.fail("curl is missing: the transcripts are recorded with it", pytrace=False)
    recorder = script("transcripts")
    with recorder.server() as url:
        for file in recorder.FILES:
            text = file.read_text(encoding="utf-8")
            if recorder.recorded(url, text) != text:
                pytest.fail(f"{file.relative_to(ROOT)} is out of date; {HINT}", pytrace=False)


def test_the_tables_of_faults_are_what_the_program_says() -> None:
    tables = script("tables")
    names = re.findall(r"<!-- table (\w+) -->", FAULTS)
    assert names == ["modes", "axes", "errors", "constraints"]
    if tables.written(FAULTS) != FAULTS:
        pytest.fail("docs/faults.md is out of date; write it again: .venv-dev/bin/python docs/tables.py")


def test_each_document_gives_the_bodies_that_its_transcripts_were_recorded_with() -> None:
    transcripts = script("transcripts")
    for file in transcripts.FILES:
        text = file.read_text(encoding="utf-8")
        for kind in set(re.findall(r"^<!-- transcript (\w+) ", text, re.MULTILINE)):
            _, variable, body = transcripts.BODIES[kind]
            assert f"{variable}='{body}'" in text, f"{file.name}: {kind}"


def test_every_mode_has_a_heading_with_a_transcript_in_the_order_of_the_table() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", FAULTS, re.MULTILINE | re.DOTALL))
    assert [heading for heading in sections if heading in ELEVEN] == list(ELEVEN)
    for mode in ELEVEN:
        assert f"<!-- transcript chat {mode};" in sections[mode], mode
    assert "<!-- transcript chat cut_mid_frame;utf8=true;" in sections["cut_mid_frame"]


def test_the_readme_lists_the_modes_that_there_are() -> None:
    assert [cells[0] for cells in rows(README, "Basic modes")] == [f"`{mode}`" for mode in ELEVEN]


def test_the_readme_lists_the_options_that_there_are_with_their_defaults() -> None:
    listed = {cells[0].split("`")[1].split(" ")[0]: cells[1].strip("`") for cells in rows(README, "Options")}
    own = {"host": DEFAULT_HOST, "port": str(DEFAULT_PORT)}  # settled after parsing, so Options holds None
    parameters = {f"--{name}": own.get(name, default) for name, _, default, _ in Options.optParameters}
    flags = {f"--{name}": None for name, _, _ in Options.optFlags}
    own_ways = {f"--{name.removeprefix('opt_')}" for name in dir(Options) if name.startswith("opt_")}
    assert {"--version", "--help"} <= own_ways
    assert listed.keys() == {*parameters, *flags, *own_ways}
    for option, default in parameters.items():
        if default is not None:
            assert listed[option] == default, option


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_and_heading_that_a_document_links_to_exists() -> None:
    for file in DOCUMENTS:
        for path, anchor in re.findall(
            r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", file.read_text(encoding="utf-8")
        ):
            target = file.parent / path if path else file
            assert target.exists(), f"{file.name}: {path}"
            assert not anchor or anchor in anchors_of(target.read_text(encoding="utf-8")), (
                f"{file.name}: {path}#{anchor}"
            )


def test_each_term_of_the_glossary_is_in_its_order_and_in_another_document() -> None:
    glossary = ROOT / "docs" / "glossary.md"
    assert "](docs/glossary.md)" in README
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    assert terms == sorted(terms)
    others = "\n".join(file.read_text(encoding="utf-8") for file in DOCUMENTS if file != glossary)
    for term in terms:
        assert re.search(rf"\b{term}(s|es)?\b", others, re.IGNORECASE), term


def test_a_document_that_speaks_of_legs_explains_the_word_at_its_first_use() -> None:
    unexplained = {"CHANGELOG.md", "CONTRIBUTING.md", "glossary.md", "architecture.md"}
    seen = set()
    for file in DOCUMENTS:
        text = re.sub(
            r"^```.*?^```$|<!--.*?-->", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        prose = re.sub(r"^(#|\|).*$|`[^`]*`|\[[^\]]*\]\([^)]*\)", "", text, flags=re.MULTILINE)
        first = next(
            (part for part in re.split(r"\n(?:\n|- )", prose) if re.search(r"\blegs?\b", part)), None
        )
        if first is not None and file.name not in unexplained:
            seen.add(file.name)
            assert re.search(r"\*(resume )?leg\*", first), f"{file.name}: {first}"
    assert {"README.md", "legs.md", "resume.md", "verify.md", "wire.md"} <= seen


def test_the_cut_inside_a_character_is_recorded_with_its_last_byte_escaped() -> None:
    start = FAULTS.index("<!-- transcript chat cut_mid_frame;utf8=true")
    block = FAULTS[start : FAULTS.index("<!-- /transcript -->", start)]
    assert "\\xc3\nexit 18, no line feed in front of it\n" in block
