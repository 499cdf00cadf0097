"""The structure that docs/architecture.md promises: no circle of imports, and tests that lean on nothing of each other.

The rings themselves are import contracts in pyproject.toml, which name every module and are checked by scripts/check.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SHARED = ("tests.support", "tests.reference_model")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def graph_of(folder: str) -> dict[str, set[str]]:
    """Each module's imports, those for types alone included, as far as they are in the folder."""
    names = {name_of(path): path for path in (ROOT / folder).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name}: a relative import"
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                imported.update(one if one in names else str(node.module) for one in inside)
        graph[name] = imported
    return graph


def test_no_module_imports_itself_by_a_detour_not_even_for_types() -> None:
    graph = graph_of("inference_lab")
    sorter = TopologicalSorter({name: imports & graph.keys() - {name} for name, imports in graph.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_tests_import_what_they_share_from_its_own_place() -> None:
    found = [
        f"{name}: {one}"
        for name, imports in graph_of("tests").items()
        for one in imports
        if one.startswith("tests.") and not one.startswith(SHARED)
    ]
    assert not found


def test_the_reference_model_imports_nothing_of_the_program() -> None:
    for name, imports in graph_of("tests/reference_model").items():
        inside = {one for one in imports if one.startswith("tests.")}
        assert all(one.startswith("tests.reference_model") for one in inside), name
        assert not any(one.startswith("inference_lab") for one in imports), name
