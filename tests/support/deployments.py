"""A deployment that tests change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inference_lab.config.models import load
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from inference_lab.core.engine.deployment_spec import Deployment


CONFIGS = ROOT / "configs"


def llama(**scheduler: object) -> Deployment:
    (model,) = load(str(CONFIGS / "llama-3.1-8b-instruct.toml"), "gh200").models
    assert model.deployment is not None
    options = msgspec.structs.replace(model.deployment.scheduler, **scheduler)
    return msgspec.structs.replace(model.deployment, scheduler=options)
