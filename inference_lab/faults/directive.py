"""The directive: which fault, with which settings, read from a header value or a TOML table.

    <mode>[;after_chunks=<u32>][;delay_ms=<u64>][;utf8=<bool>]

Anything that cannot be honoured as written is refused with a reason; nothing is ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.faults.modes import MODES, Mode, Tear

if TYPE_CHECKING:
    from collections.abc import Mapping

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
_BLANKS: Final = " \t"
# Leading zeros are allowed without bound; the digits that count are bounded: int() refuses 4,300 of them.
_DIGITS: Final = re.compile(r"0*([0-9]{1,20})")
_BOOLS: Final = {"true": True, "false": False}


class DirectiveError(ValueError):
    """A refused directive; the message says what is wrong, what would be right, and the valid modes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; valid modes: {', '.join(MODES)}")


class Fault(msgspec.Struct, frozen=True):
    """A validated fault: a mode's name and its settings.

    `after_chunks` content frames before the fault (u32), `delay_ms` milliseconds between frames (u64), `utf8`
    cuts inside a two-byte character. Raises DirectiveError when built out of range.
    """

    mode: str
    after_chunks: int = 3
    delay_ms: int = 10
    utf8: bool | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise DirectiveError(f"unknown mode {_shown(self.mode)}")
        for key, value, largest in (
            ("after_chunks", self.after_chunks, U32_MAX),
            ("delay_ms", self.delay_ms, U64_MAX),
        ):
            if not 0 <= value <= largest:
                raise DirectiveError(f"{key} is {value}, expected an integer from 0 to {largest}")
        if self.utf8 is not None and MODES[self.mode].tear is Tear.NONE:
            raise DirectiveError(f"utf8 goes with cut_mid_frame only: {self.mode} tears no frame")

    @property
    def row(self) -> Mode:
        """The axes this fault plays: its mode's row, with the tear that `utf8` chooses."""
        row = MODES[self.mode]
        return msgspec.structs.replace(row, tear=Tear.UTF8) if self.utf8 else row

    def canonical(self) -> str:
        """One spelling for all equal faults: what the response id is a digest of."""
        utf8 = "true" if self.utf8 else "false"
        return f"{self.mode};after_chunks={self.after_chunks};delay_ms={self.delay_ms};utf8={utf8}"


def parse_directive(text: str) -> Fault:
    """Read one element of a header value.

    Parts are split on `;`; blanks and tabs around parts, keys and values do not count; names are case-sensitive.

    Raises:
        DirectiveError: unknown mode or key, a repeated key, an empty part, a malformed value.
    """
    mode, *parts = (part.strip(_BLANKS) for part in text.split(";"))
    if not mode:
        raise DirectiveError("the fault has no mode")
    settings: dict[str, object] = {}
    for part in parts:
        key, equals, value = (piece.strip(_BLANKS) for piece in part.partition("="))
        if not part:
            raise DirectiveError("an empty part (two semicolons, or one at the end)")
        reader = _READERS.get(key)
        if reader is None:
            raise DirectiveError(f"unknown key {_shown(key)}, expected {', '.join(_READERS)}")
        if not equals:
            raise DirectiveError(f"{key} has no value, expected {key}=…")
        if key in settings:
            raise DirectiveError(f"{key} is given twice")
        settings[key] = reader(key, value)
    return _build({"mode": mode, **settings})


def fault_from_table(table: Mapping[str, object]) -> Fault:
    """Read a `[fault]` table of a model's TOML, whose values have TOML's own types.

    Raises:
        DirectiveError: `mode` missing, an unknown key, a value of another type or out of range.
    """
    if "mode" not in table:
        raise DirectiveError("mode is missing")
    for key in table:
        if key != "mode" and key not in _READERS:
            raise DirectiveError(f"unknown key {_shown(key)}, expected mode, {', '.join(_READERS)}")
    return _build(table)


def _build(settings: Mapping[str, object]) -> Fault:
    try:
        return msgspec.convert(settings, Fault)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, DirectiveError):  # __post_init__'s own, which msgspec wraps
            raise error.__cause__ from None
        raise DirectiveError(str(error)) from None


def _read_integer(key: str, value: str) -> int:
    digits = _DIGITS.fullmatch(value)
    if digits is None:
        raise DirectiveError(f"{key} is {_shown(value)}, expected an integer of at most 20 ASCII digits")
    return int(digits[1])


def _read_bool(key: str, value: str) -> bool:
    if value not in _BOOLS:
        raise DirectiveError(f"{key} is {_shown(value)}, expected true or false")
    return _BOOLS[value]


def _shown(text: str) -> str:
    """A client's own text, quoted and cut so that a message stays one short line."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


_READERS: Final = {"after_chunks": _read_integer, "delay_ms": _read_integer, "utf8": _read_bool}
