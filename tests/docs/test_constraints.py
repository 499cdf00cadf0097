"""constraints.txt says a version of everything that the package needs, and one that its bounds allow."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from itertools import chain
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HINT = "write it anew: scripts/constraints"
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = canonicalize_name(PROJECT["name"])
DECLARED = [
    found
    for line in (*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values()))
    if canonicalize_name((found := Requirement(line)).name) != OURS
]


def pinned(name: str, python: str | None = None) -> list[str]:
    """The versions that hold for a Python, by default this one."""
    markers = {} if python is None else {"python_version": python, "python_full_version": f"{python}.0"}
    return [
        next(iter(pin.specifier)).version
        for pin in PINS
        if canonicalize_name(pin.name) == canonicalize_name(name)
        and (pin.marker is None or pin.marker.evaluate(dict(markers)))
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("declared", DECLARED, ids=str)
def test_each_declared_dependency_has_one_version_that_its_bound_allows(
    declared: Requirement, python: str
) -> None:
    versions = pinned(declared.name, python)
    assert len(versions) == 1, HINT
    assert declared.specifier.contains(versions[0]), HINT


def needed() -> set[str]:
    """Everything that is installed because something declared needs it, here and now."""
    found: set[str] = set()
    open_ends = [(declared.name, frozenset(declared.extras)) for declared in DECLARED]
    seen = set()
    while open_ends:
        name, extras = open_ends.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        found.add(canonicalize_name(name))
        for line in lines:
            further = Requirement(line)
            marker = further.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                open_ends.append((further.name, frozenset(further.extras)))
    return found


def test_what_those_need_is_pinned_too() -> None:
    names = needed()
    assert len(names) > len(PROJECT["dependencies"])
    assert sorted(name for name in names if not pinned(name)) == [], HINT


def test_a_line_is_a_name_a_version_and_a_marker() -> None:
    for pin in PINS:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
        assert pin.url is None
        assert not pin.extras
