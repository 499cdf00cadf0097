"""A fault as a validated value, and how a `[fault]` table of a model's TOML is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MODES: Final = (
    "cut_between_frames",
    "cut_mid_frame",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
)
_TYPES: Final[dict[str, type]] = {"mode": str, "after_chunks": int, "delay_ms": int, "utf8": bool}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault's mode and settings.

    `after_chunks` frames before it (u32), `delay_ms` between frames (u64), `utf8`: cut inside an é.

    Raises:
        ValueError: an unknown mode, a setting out of range, `utf8` with a mode that tears no frame.
    """

    mode: str
    after_chunks: int = 3
    delay_ms: int = 10
    utf8: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}, expected one of {', '.join(MODES)}")
        for key, value, limit in (
            ("after_chunks", self.after_chunks, 2**32),
            ("delay_ms", self.delay_ms, 2**64),
        ):
            if not 0 <= value < limit:
                raise ValueError(f"{key} is {value}, expected an integer from 0 to {limit - 1}")


def fault_from_table(table: Mapping[str, Any]) -> Fault:
    """The fault a `[fault]` table describes.

    Raises:
        ValueError: `mode` missing, an unknown key, a value of another type or out of range.
    """
    if "mode" not in table:
        raise ValueError("mode is missing")
    for key, value in table.items():
        if key not in _TYPES:
            raise ValueError(f"unknown key {key!r}, expected one of {', '.join(_TYPES)}")
        if type(value) is not _TYPES[key]:
            raise ValueError(f"{key} is {value!r}, expected a value of type {_TYPES[key].__name__}")
    if "utf8" in table and table["mode"] != "cut_mid_frame":
        raise ValueError("utf8 goes with cut_mid_frame only")
    return Fault(**table)
