"""The models that are served, by every name they answer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inference_lab.config.models import ServedModel
from inference_lab.core.answer.templates import FORMATS, Format
from inference_lab.core.apis.dialects import DIALECTS, Dialect
from inference_lab.core.errors import ApiError
from inference_lab.core.identity import FIXED_CREATED
from inference_lab.wire.engine_driver import Engine
from inference_lab.wire.tally import ModelTally

if TYPE_CHECKING:
    from collections.abc import Sequence


class Served(msgspec.Struct, frozen=True):
    """A model that is served: its configuration and its engine."""

    config: ServedModel
    engine: Engine
    tally: ModelTally

    @property
    def style(self) -> Format:
        """Its chat template and raw markup."""
        return FORMATS[self.config.format]

    @property
    def dialect(self) -> Dialect:
        """How it writes its streams, unless a fault has another dialect."""
        return DIALECTS[self.config.dialect]

    def card(self) -> dict[str, Any]:
        """Its entry in the list of models; `max_model_len` as vLLM has it."""
        return {
            "id": self.config.name,
            "object": "model",
            "created": FIXED_CREATED,
            "owned_by": "inference-lab",
            "max_model_len": self.config.context_limit_tokens,
        }


class ServedModels:
    """All of them, in the order of their files."""

    def __init__(self, models: Sequence[Served]) -> None:
        self._models = models
        self._by_name = {
            name: served for served in models for name in (served.config.name, *served.config.aliases)
        }

    def cards(self) -> list[dict[str, Any]]:
        """The list of models; aliases are answered to, but not listed."""
        return [served.card() for served in self._models]

    def find(self, name: str) -> Served:
        """The model that answers to `name`.

        Raises:
            ApiError: 404 `model_not_found`, which lists the models there are.
        """
        served = self._by_name.get(name)
        if served is None:
            shown = name if len(name) <= 100 else name[:100] + "…"
            known = ", ".join(served.config.name for served in self._models)
            raise ApiError(404, "model_not_found", f"no model {shown!r}; there are: {known}", param="model")
        return served
