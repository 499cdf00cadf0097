"""Core: chat templates and raw markup, one module per format."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from inference_lab.formats.format import Format
from inference_lab.formats.lab import LAB

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({style.name: style for style in (LAB,)})
"""The formats a model's TOML may name."""

__all__ = ["FORMATS", "LAB", "Format"]
