"""Catalog entries by name, read when first asked for: a server with one model reads two small files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

from inference_lab.config.toml_reading import convert, read_toml, show_value
from inference_lab.console import UserError
from inference_lab.core.engine.hardware_spec import HardwareSpec
from inference_lab.core.engine.model_spec import ModelSpec

Spec = TypeVar("Spec", ModelSpec, HardwareSpec)

_HOME: Final = Path(__file__).parent
# Never a path: a name must not lead out of the catalog.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
