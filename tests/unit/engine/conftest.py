"""Deployments as the reference's records name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inference_lab.config.deployment_file import Catalog, parse_deployment_file
from inference_lab.config.toml_reading import read_toml
from inference_lab.core.engine.deployment_spec import Deployment, RouterSpec
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIGS = ROOT / "configs"


@pytest.fixture(scope="session")
def deployment_of() -> Callable[[dict[str, Any]], Deployment]:
    """The deployment of a record: a shipped file's model and options on the record's hardware and layout."""
    catalog = Catalog()

    def build(record: dict[str, Any]) -> Deployment:
        name = record["config"]
        file = parse_deployment_file(read_toml(CONFIGS / f"{name}.toml", name), name)
        _, scheduler = file.entries.get(record["hardware"]) or next(iter(file.entries.values()))
        options = msgspec.structs.asdict(scheduler) | record.get("scheduler", {})
        return Deployment(
            model=file.model(catalog),
            hardware=catalog.hardware(record["hardware"], file=name, where=""),
            scheduler=msgspec.convert(options, type(scheduler)),
            tp=record["tp"],
            ep=record["ep"],
            dp_attention=record["dp_attention"],
            replicas=record.get("replicas", 1),
            router=msgspec.convert(record.get("router", {"policy": "round_robin"}), RouterSpec),
        )

    return build
