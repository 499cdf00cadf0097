"""The rings: every module stands in one, so that the import contracts speak of all of them."""

from __future__ import annotations

from pathlib import Path

import tomli

ROOT = Path(__file__).parent.parent
SHELL = {
    "catalog",
    "cli",
    "commands",
    "config",
    "metrics",
    "record",
    "service",
    "storage",
    "tap",
    "testing",
    "web",
}


def test_every_module_is_in_the_core_the_wire_or_the_shell() -> None:
    contracts = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    core = {module.removeprefix("inference_lab.") for module in contracts[0]["source_modules"]}
    there = {
        path.stem
        for path in (ROOT / "inference_lab").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__", "__pycache__"}
    assert there == core | {"wire"} | SHELL, "name new modules in a ring"
    for contract in contracts:
        forbidden = {module.removeprefix("inference_lab.") for module in contract["forbidden_modules"]}
        assert forbidden >= SHELL
