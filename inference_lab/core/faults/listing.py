"""The tables of modes, axes, error variants and constraints as plain values, for whoever prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.constraints import CONSTRAINTS
from inference_lab.core.faults.death import (
    AXES,
    HEALTHY,
    STREAM_KEYS,
    STREAM_KEYS_BUT_AT,
    STREAM_ONLY_KEYS,
    UNLIMITED,
    UNSEEN_KEYS,
)
from inference_lab.core.faults.directive import spelled
from inference_lab.core.faults.modes import MODES, OK

if TYPE_CHECKING:
    from collections.abc import Iterable

Row: TypeAlias = dict[str, str]

# What stands in a variant's text for what a directive may set.
_PLACES = {
    "%M": '"M"',
    "%m": "M",
    "%N": "N",
    "%I": '"ID"',
    "%O": '"OBJECT"',
    "%C": "CREATED",
    "%S": '"MODEL"',
}

# What keys are called where a rule is about all of a sort.
_GROUPS = {
    UNSEEN_KEYS: "every key of content, finish, usage and legs",
    STREAM_KEYS: "every key of a stream",
    STREAM_ONLY_KEYS: "every key of a stream but content_type and heartbeats",
    (*STREAM_KEYS_BUT_AT, "answer_as", "idle_ms"): "every other key of a stream",
}


def modes() -> list[Row]:
    """Each mode, what it comes to as axes over the healthy stream, and where it is seen."""
    return [
        {
            "name": name,
            "directive": ";".join(
                [OK, *(f"{key}={spelled(key, value)}" for key, value in mode.changes.items())]
            ),
            "seen_in": mode.seen_in,
        }
        for name, mode in MODES.items()
    ]


def axes() -> list[Row]:
    """Each key with the values it takes, what it is without, and what it does."""
    return [
        {"key": key, "values": axis.kind.expected, "default": _default(key), "help": axis.help}
        for key, axis in AXES.items()
    ]


def errors() -> list[Row]:
    """Each error variant: its bytes, with `M` and `N` for message and code, and whether the terminal frame follows."""
    rows = []
    for name, variant in VARIANTS.items():
        text = variant.text
        for place, shown in _PLACES.items():
            text = text.replace(place, shown)
        rows.append(
            {"name": name, "text": text, "done": str(variant.done).lower(), "seen_in": variant.seen_in}
        )
    return rows


def constraints() -> list[Row]:
    """What does not go together: the keys, and what each needs."""
    return [
        {"keys": _GROUPS.get(constraint.keys, ", ".join(constraint.keys)), "reason": constraint.reason}
        for constraint in CONSTRAINTS
    ]


def listing(incidents: Iterable[str] = ()) -> dict[str, object]:
    """All of it."""
    return {
        "modes": modes(),
        "incidents": list(incidents),
        "axes": axes(),
        "errors": errors(),
        "constraints": constraints(),
    }


def _default(key: str) -> str:
    value = getattr(HEALTHY, key)
    if key == "finish":
        return "what the engine would say"
    if key == "rest_delay_ms":
        return "that of delay_ms"
    if key == "dialect":
        return "the model's"
    if key == "beats":
        return UNLIMITED
    return "" if value is None else spelled(key, value)
