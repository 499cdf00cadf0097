"""What is served: the models of one deployment file, or of a directory of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from inference_lab.config.deployment_file import (
    AnswerSettings,
    Catalog,
    DeploymentFile,
    Latency,
    parse_deployment_file,
)
from inference_lab.config.incident_file import load_incidents
from inference_lab.config.toml_reading import read_toml, show_value
from inference_lab.console import UserError
from inference_lab.core.engine.deployment_spec import Deployment
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.plan import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class ServedModel(Struct, frozen=True):
    """One served model.

    `name` is the id clients send, `source` the file it comes from, `context_limit_tokens` what prompt and
    answer must fit in together. `latency` replaces the physics; `deployment` is None only where `[latency]`
    stands without `[scheduler]` or a matching `[hardware]` entry.
    """

    name: str
    aliases: tuple[str, ...]
    source: str
    context_limit_tokens: int
    fault: FaultPlan | None
    answer: AnswerSettings
    latency: Latency | None
    format: str
    dialect: str
    deployment: Deployment | None


class Loaded(Struct, frozen=True):
    """What a path holds: the models to serve, in order of their files' names, sentences for the log, incidents."""

    models: tuple[ServedModel, ...]
    notes: tuple[str, ...]
    incidents: Incidents = NO_INCIDENTS


def load(path: str, hardware: str | None, names: Sequence[str] = ()) -> Loaded:
    """What to serve from a TOML file or a directory of them, with the incidents in `faults/` beside them.

    Each runs on its hardware entry `hardware`; None: on the first entry of its file. Where there are `names`, only the
    models are served that have one of these as name or alias.

    Raises:
        UserError: anything that is wrong with the path, a file, the hardware's name, the names served or asked for.
    """
    catalog = Catalog()
    single, paths = _find_files(path)
    incidents = load_incidents(Path(path))
    files = [parse_deployment_file(read_toml(found, str(found)), str(found), incidents) for found in paths]
    if names:
        files = _named(path, names, files, catalog)
    models: list[ServedModel] = []
    pairs: list[str] = []
    left_out: list[DeploymentFile] = []
    for file in files:
        entry: str | None = hardware
        if hardware is None:
            entry = next(iter(file.entries), None)
        elif hardware not in file.entries:
            if file.needs_hardware:
                left_out.append(file)
                continue
            entry = None
        served = _served(file, entry, catalog)
        models.append(served)
        if hardware is None and entry is not None:
            pairs.append(f"{served.name}={entry}")
    if left_out and (single or names or not any(hardware in file.entries for file in files)):
        known = ", ".join(dict.fromkeys(entry for file in files for entry in file.entries))
        raise UserError(f"{path}: no [hardware] entry named {show_value(hardware)}, expected one of {known}")
    _refuse_shared_names(models)
    notes = []
    if pairs:
        notes.append(f"no hardware named, so each model runs on its file's first entry: {', '.join(pairs)}")
    if left_out:
        names = ", ".join(Path(file.source).name for file in left_out)
        notes.append(f"left out for want of a [hardware] entry named {show_value(hardware)}: {names}")
    return Loaded(tuple(models), tuple(notes), incidents)


def _find_files(path: str) -> tuple[bool, list[Path]]:
    """Whether `path` is a single file, and the files to read."""
    place = Path(path)
    try:
        if place.is_dir():
            found = sorted(place.glob("*.toml"), key=lambda file: file.name)
        elif place.is_file():
            return True, [place]
        elif place.exists():
            raise UserError(f"{path}: neither a file nor a directory")
        else:
            raise UserError(f"{path}: no such file or directory")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise UserError(f"{path}: a directory without any *.toml file")
    return False, found


def _named(
    path: str, names: Sequence[str], files: Sequence[DeploymentFile], catalog: Catalog
) -> list[DeploymentFile]:
    """The files of the models that have these names or aliases, in the order of all."""
    answers = {
        file.source: (file.tables.name or file.model(catalog).name, *file.tables.aliases) for file in files
    }
    known = {name for those in answers.values() for name in those}
    for name in names:
        if name not in known:
            served = ", ".join(first for first, *_ in answers.values())
            raise UserError(f"--model {show_value(name)}: no model of {path}, expected one of {served}")
    return [file for file in files if not set(names).isdisjoint(answers[file.source])]


def _served(file: DeploymentFile, entry: str | None, catalog: Catalog) -> ServedModel:
    """What is served on the hardware entry `entry`; None: constant latency without hardware."""
    tables = file.tables
    deployment = None if entry is None else file.deployment(entry, catalog)
    model = file.model(catalog)
    if deployment is not None:
        context_limit_tokens = deployment.context_limit_tokens
    else:
        context_limit_tokens = (tables.scheduler or {}).get("max_model_len") or model.max_seq_len
    return ServedModel(
        name=tables.name or model.name,
        aliases=tables.aliases,
        source=file.source,
        context_limit_tokens=context_limit_tokens,
        fault=file.fault,
        answer=tables.answer,
        latency=tables.latency,
        format=tables.format,
        dialect=tables.dialect,
        deployment=deployment,
    )


def _refuse_shared_names(models: Iterable[ServedModel]) -> None:
    """Every name and alias belongs to exactly one file, once."""
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if name in owners:
                raise UserError(
                    f"{model.source}: the name {show_value(name)} is taken by {owners[name]};"
                    " give one of them another name or alias"
                )
            owners[name] = model.source
