"""Core: chat templates and raw markup, one module per format."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from inference_lab.core.answer.templates.dsv4 import DSV4
from inference_lab.core.answer.templates.format import ChatTemplate
from inference_lab.core.answer.templates.hermes import HERMES
from inference_lab.core.answer.templates.lab import LAB

FORMATS: Final[Mapping[str, ChatTemplate]] = MappingProxyType(
    {template.name: template for template in (LAB, HERMES, DSV4)}
)
"""The formats a model's TOML may name."""

__all__ = ["DSV4", "FORMATS", "HERMES", "LAB", "ChatTemplate"]
