"""What the offline commands share: their options, a deployment with settings changed, JSON input, tables of text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tomli
from msgspec import Struct

from inference_lab.config.deployment_file import Catalog, parse_deployment_file
from inference_lab.config.incident_file import load_incidents
from inference_lab.config.toml_reading import Table, read_toml, refuse_non_finite, show_value
from inference_lab.console import Parser, UserError
from inference_lab.core.engine.deployment_spec import Deployment
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` under `headings`; the first column to the left, the others to the right, each as wide as it must be."""
    lines = [list(headings), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class Offline(Struct, frozen=True):
    """A deployment to compute with, and what to call it: the file's stem, its model, its hardware entry."""

    deployment: Deployment
    config: str
    model: str
    hardware: str


def offline_parser(prog: str, description: str) -> Parser:
    """A parser with the options that say which deployment is meant."""
    parser = Parser(prog, description)
    parser.add_argument("--config", required=True, metavar="FILE", help="a deployment file, see configs/")
    parser.add_argument("--hardware", metavar="NAME", help="one of its hardware entries (default: the first)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change the hardware entry, as in tp=8, scheduler.max_num_seqs=4 or router.policy=least_loaded;"
        " may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def load_offline(config: str, hardware: str | None, settings: Sequence[str]) -> Offline:
    """The deployment in the file `config` on the entry `hardware` (None: the first), changed by `settings`.

    Raises:
        UserError: anything that is wrong with the file, the entry or a setting.
    """
    path = Path(config)
    document = read_toml(path, config)
    incidents = load_incidents(path)
    entries = parse_deployment_file(document, config, incidents).entries
    if not entries:
        raise UserError(f"{config}: hardware is missing, without which there is nothing to compute")
    entry = next(iter(entries)) if hardware is None else hardware
    if entry not in entries:
        known = ", ".join(entries)
        raise UserError(f"{config}: no [hardware] entry named {show_value(entry)}, expected one of {known}")
    source = config
    if settings:
        source = f"{config} with --set"
        _apply(settings, document["hardware"][entry], document)
        refuse_non_finite(document, source)
    deployment = parse_deployment_file(document, source, incidents).deployment(entry, Catalog())
    model = document["model"]
    return Offline(deployment, path.stem, model if isinstance(model, str) else deployment.model.name, entry)


def _apply(settings: Sequence[str], entry: Table, document: Table) -> None:
    changes = [_parse_setting(setting) for setting in settings]
    # The policy decides which other keys a router has, so it replaces the whole table and goes first.
    for path, value in changes:
        if path == ["router", "policy"]:
            entry["router"] = {"policy": value}
    for path, value in changes:
        if path[0] == "router" and "router" not in entry:
            entry["router"] = dict(document.get("router", {}))
        table: Any = entry
        for key in path[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise UserError(f"--set {'.'.join(path)}: {key} is {show_value(table)}, not a table")
        table[path[-1]] = value


def _parse_setting(setting: str) -> tuple[list[str], object]:
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"--set {setting}: expected KEY=VALUE, as in scheduler.max_num_seqs=4")
    try:
        value: object = tomli.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word, as in router.policy=least_loaded
    return path, value


def read_json(path: str) -> tuple[object, str]:
    """The JSON in the file `path`, `-` for standard input, and what to call it in messages.

    Raises:
        UserError: unreadable, or not JSON.
    """
    shown = "standard input" if path == "-" else path
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except AttributeError:  # what Python makes of a standard input that is closed
        raise UserError(f"{shown}: cannot be read: it is closed") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return msgspec.json.decode(content), shown
    except RecursionError:
        raise UserError(f"{shown}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{shown}: not valid JSON: {error}") from None
