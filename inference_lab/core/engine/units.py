"""Number types of the deployment schema, and the number formats a model is stored and computed in."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

U32: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**32 - 1)]
"""A u32 of at least one."""
# A TOML integer is signed 64-bit (toml.io v1.0.0, "Integer"), so a u64 key cannot hold more than this.
U64: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveU64: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]

Dtype: TypeAlias = Literal["fp4", "fp8", "bf16", "fp16", "fp32"]

BYTES_PER_VALUE: Final[Mapping[Dtype, float]] = MappingProxyType(
    {"fp4": 0.5, "fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
)
