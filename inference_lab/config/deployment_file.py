"""A deployment file's schema: every table type-checked, the catalog entries it names, the deployment on an entry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import Meta, Struct

from inference_lab.config.toml_reading import Refused, Table, convert, fitted, join_key, read_toml, show_value
from inference_lab.console import UserError
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.engine.deployment_spec import (
    Deployment,
    RoundRobin,
    RouterSpec,
    SchedulerSpec,
    TimeCorrection,
)
from inference_lab.core.engine.specs import U32, Count, HardwareSpec, ModelSpec
from inference_lab.core.faults.directive import DirectiveError
from inference_lab.core.faults.incident import NO_INCIDENTS, Incidents
from inference_lab.core.faults.plan import FaultPlan, plan_from_table

Spec = TypeVar("Spec", ModelSpec, HardwareSpec)

_HOME: Final = Path(__file__).parents[1] / "catalog"
# Never a path: a name must not lead out of the catalog.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# Tables that the deployment files of the Rust simulator may have, and ours may not: docs/engine.md.
_OUT_OF_SCOPE: Final = {
    "speculative": "speculative decoding is not simulated",
    "decode_router": "separate prefill and decode pools are not simulated",
    "memory": "storage below GPU memory is not simulated",
}
# Stands in for what each hardware entry may bring itself when the shared [scheduler] is checked alone.
_ANY_SCHEDULER: Final[Table] = {
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "block_size": 1,
    "policy": "fcfs",
    "enable_chunked_prefill": True,
}


_Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


class Catalog:
    """The TOML files in `models/` and `hardware/` below `home`, by default the ones that are shipped."""

    def __init__(self, home: Path = _HOME) -> None:
        self._home = home
        self._models: dict[str, ModelSpec] = {}
        self._hardware: dict[str, HardwareSpec] = {}

    def model(self, name: str, *, file: str, where: str) -> ModelSpec:
        """The model `name`, which `file` names under the key path `where`.

        Raises:
            UserError: there is no such entry, or it is not valid.
        """
        if name not in self._models:
            self._models[name] = self._read("models", ModelSpec, name, f"{file}: {where}")
        return self._models[name]

    def hardware(self, name: str, *, file: str, where: str) -> HardwareSpec:
        """The hardware `name`, which `file` names under the key path `where`.

        Raises:
            UserError: there is no such entry, or it is not valid.
        """
        if name not in self._hardware:
            self._hardware[name] = self._read("hardware", HardwareSpec, name, f"{file}: {where}")
        return self._hardware[name]

    def _read(self, folder: str, kind: type[Spec], name: str, asked_by: str) -> Spec:
        path = self._home / folder / f"{name}.toml"
        if not _NAME.fullmatch(name) or not path.is_file():
            known = ", ".join(sorted(entry.stem for entry in (self._home / folder).glob("*.toml")))
            raise UserError(
                f"{asked_by} is {show_value(name)}, which the catalog does not hold;"
                f" expected a table of facts or one of {known}"
            )
        return convert(read_toml(path, str(path)), kind, file=str(path), where="")


class AnswerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[answer]`: content words of a whole answer (None: the request decides), reasoning words before it, its calls.

    `calls` is how many parallel calls an answer makes that calls a tool.
    """

    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    reasoning: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    calls: Annotated[int, Meta(ge=1, le=16)] = 1


class Latency(Struct, frozen=True, forbid_unknown_fields=True):
    """`[latency]`: constant times instead of physics: milliseconds to the first token and between tokens."""

    ttft_ms: _Milliseconds = 20.0
    itl_ms: _Milliseconds = 5.0


class TopLevel(Struct, frozen=True, forbid_unknown_fields=True):
    """The top level of a deployment file. Tables that need more than types to be judged stay as they are."""

    model: str | ModelSpec
    name: Annotated[str, Meta(min_length=1)] | None = None
    aliases: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    scheduler: dict[str, Any] | None = None
    hardware: dict[str, dict[str, Any]] = {}
    router: RouterSpec = RoundRobin()
    fault: Any = None
    answer: AnswerSettings = AnswerSettings()
    latency: Latency | None = None
    format: str = "lab"
    dialect: str = "lab"
    speculative: Refused = None
    decode_router: Refused = None
    memory: Refused = None

    def __post_init__(self) -> None:
        # Names stand in log lines, error answers and URLs.
        for key, names in (("name", (self.name or "-",)), ("aliases", self.aliases)):
            for name in names:
                if not name.isprintable():
                    raise ValueError(f"{key} is {name!r}, expected printable characters")


class InlineHardware(HardwareSpec, frozen=True, forbid_unknown_fields=True):
    """An inline `spec`, which may hold one table that we leave out."""

    memory: Refused = None


class HardwareEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[hardware.<name>]`."""

    tp: Count = 1
    spec: str | InlineHardware | None = None
    ep: Count = 1
    dp_attention: bool = False
    replicas: U32 = 1
    scheduler: dict[str, Any] = {}
    router: RouterSpec | None = None
    time_correction: TimeCorrection | None = None
    speculative: Refused = None
    decode_router: Refused = None
    memory: Refused = None


class DeploymentFile(Struct, frozen=True):
    """A file whose every table has been type-checked, before a hardware entry is chosen.

    `source` is how messages call it; `entries` are the hardware entries in the file's order, each with its
    scheduler.
    """

    source: str
    tables: TopLevel
    fault: FaultPlan | None
    entries: dict[str, tuple[HardwareEntry, SchedulerSpec]]

    @property
    def needs_hardware(self) -> bool:
        """Whether it can be served only on one of its hardware entries: constant latency needs none."""
        return self.tables.latency is None

    def deployment(self, entry: str, catalog: Catalog) -> Deployment:
        """The whole deployment on the hardware entry `entry`, which must be one of `entries`.

        Raises:
            UserError: a table that is out of scope, a name the catalog does not hold, an impossible
            combination.
        """
        chosen, scheduler = self.entries[entry]
        where = join_key("hardware", entry)
        _refuse_out_of_scope(self.source, where, chosen)
        hardware = self._hardware(chosen.spec, entry, where, catalog)
        model = self.model(catalog)
        try:
            return Deployment(
                model=model,
                hardware=hardware,
                scheduler=scheduler,
                tp=chosen.tp,
                ep=chosen.ep,
                dp_attention=chosen.dp_attention,
                replicas=chosen.replicas,
                router=chosen.router or self.tables.router,
                time_correction=chosen.time_correction,
            )
        except ValueError as error:
            raise UserError(f"{self.source}: {where}.{error}") from None

    def _hardware(
        self, spec: str | InlineHardware | None, entry: str, where: str, catalog: Catalog
    ) -> HardwareSpec:
        if spec is None:
            return catalog.hardware(entry, file=self.source, where=f"{where} without a spec")
        if isinstance(spec, str):
            return catalog.hardware(spec, file=self.source, where=f"{where}.spec")
        if spec.memory is not None:
            raise UserError(
                f"{self.source}: {where}.spec.memory: {_OUT_OF_SCOPE['memory']}; remove the table"
            )
        return spec

    def model(self, catalog: Catalog) -> ModelSpec:
        """The facts of its model.

        Raises:
            UserError: a name that the catalog does not hold.
        """
        model = self.tables.model
        return catalog.model(model, file=self.source, where="model") if isinstance(model, str) else model


def parse_deployment_file(
    document: Table, source: str, incidents: Incidents = NO_INCIDENTS
) -> DeploymentFile:
    """Type-check every table of a deployment file, of all its hardware entries; `[fault]` may name `incidents`.

    Raises:
        UserError: the first thing that is wrong.
    """
    tables = convert(document, TopLevel, file=source, where="")
    _refuse_out_of_scope(source, "", tables)
    for key, value, known in (("format", tables.format, FORMATS), ("dialect", tables.dialect, DIALECTS)):
        if value not in known:
            raise UserError(f"{source}: {key} is {show_value(value)}, expected one of {', '.join(known)}")
    fault = None if tables.fault is None else _fault_plan(tables.fault, source, incidents)
    if tables.latency is None:
        for key, given in (("scheduler", tables.scheduler), ("hardware", tables.hardware)):
            if not given:
                raise UserError(f"{source}: {key} is missing; only a file with [latency] does without it")
    shared = tables.scheduler or {}
    convert({**_ANY_SCHEDULER, **shared}, SchedulerSpec, file=source, where="scheduler")
    entries = {}
    for name, table in tables.hardware.items():
        where = join_key("hardware", name)
        entry = convert(table, HardwareEntry, file=source, where=where)
        convert({**_ANY_SCHEDULER, **entry.scheduler}, SchedulerSpec, file=source, where=f"{where}.scheduler")
        if tables.latency is not None and not (shared or entry.scheduler):
            continue  # constant latency needs no scheduler, so none is missing
        # Both tables are right in themselves by now: only a key that neither has can still be at fault.
        merged = convert({**shared, **entry.scheduler}, SchedulerSpec, file=source, where="scheduler")
        entries[name] = entry, merged
    return DeploymentFile(source, tables, fault, entries)


def _fault_plan(table: object, source: str, incidents: Incidents) -> FaultPlan:
    with fitted(source):
        if not isinstance(table, dict):
            raise UserError(f"{source}: fault is {show_value(table)}, expected a table")
        try:
            return plan_from_table(table, incidents)
        except DirectiveError as error:
            reason = error.in_table("fault")
            raise UserError(f"{source}: {reason}; inference-lab faults lists what is valid") from None


def _refuse_out_of_scope(source: str, where: str, tables: TopLevel | HardwareEntry) -> None:
    for key, reason in _OUT_OF_SCOPE.items():
        if getattr(tables, key) is not None:
            raise UserError(f"{source}: {join_key(where, key)}: {reason}; remove the table")
