"""The parameters of a request that a row keeps, and when two of them are the same."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

DRAWN_WITH: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Parameters that all legs of an answer must share, or it would not be one answer."""

PARAMETERS: Final = frozenset(
    {
        *DRAWN_WITH,
        "max_tokens",
        "max_completion_tokens",
        "n",
        "response_format",
        "reasoning_effort",
        "tool_choice",
        "parallel_tool_calls",
        "priority",
        "stream_options",
        "return_token_ids",
    }
)
"""Fields of a body whose values are kept: what decides how an answer is drawn and where it stops."""

_VALUE_BYTES: Final = 256


def digest(data: bytes) -> str:
    """16 hex digits that are the same for the same bytes."""
    return blake2b(data, digest_size=8).hexdigest()


def parameters_of(values: Mapping[str, object]) -> dict[str, object]:
    """The parameters that a body sets; of a long value a digest, which tells whether it changed between legs."""
    return {
        name: _short(name, value)
        for name, value in values.items()
        if name in PARAMETERS and value is not None
    }


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """The parameters that an answer is drawn with and that differ between two of its legs, however they are spelled."""
    return [name for name in DRAWN_WITH if _meant(name, before.get(name)) != _meant(name, now.get(name))]


def _short(name: str, value: object) -> object:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    json = msgspec.json.encode(_meant(name, value), order="deterministic")
    return value if len(json) <= _VALUE_BYTES else {"digest": digest(json)}


def _meant(name: str, value: object) -> object:
    """The value in the one spelling that all that mean the same have in common; None for what is as if it were absent.

    A stop is one of several, whose order says nothing, and numbers are compared as numbers.
    """
    if name == "stop":
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = sorted(set(value))
        return [value] if isinstance(value, str) else value or None
    if isinstance(value, dict) and name == "logit_bias":
        return {key: _number(one) for key, one in value.items()} or None
    return _number(value)


def _number(value: object) -> object:
    """The value, one that is a whole number as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
