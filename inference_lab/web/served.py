"""The models that are served, by every name they answer to."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from inference_lab.config.models import ServedModel
from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.errors import ApiError
from inference_lab.core.identity import FIXED_CREATED
from inference_lab.core.stream.assemble import Model
from inference_lab.wire.counters import ModelCounters
from inference_lab.wire.engine_driver import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence


class Served(msgspec.Struct, frozen=True, dict=True):
    """A model that is served: its configuration and its engine."""

    config: ServedModel
    engine: Engine
    counters: ModelCounters

    @cached_property
    def model(self) -> Model:
        """What answers are made of."""
        config = self.config
        return Model(
            name=config.name,
            template=FORMATS[config.format],
            dialect=DIALECTS[config.dialect],
            reasoning_words=config.answer.reasoning,
            answer_words=config.answer.tokens,
            calls=config.answer.calls,
            context_limit_tokens=config.context_limit_tokens,
        )

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
