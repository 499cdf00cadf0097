"""The directive: one fault, read from an element of a header or prompt, or from a TOML table.

Anything that cannot be honoured as written is refused with a reason; nothing is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.faults.axes import AXES
from inference_lab.faults.constraints import broken
from inference_lab.faults.death import Death
from inference_lab.faults.errors import VARIANTS
from inference_lab.faults.grammar import Element, GrammarError, Word, parse, shown
from inference_lab.faults.incident import NO_INCIDENTS, Incident, Incidents
from inference_lab.faults.modes import MODES
from inference_lab.faults.values import Sub, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Short for tear, with the one mode that had it before there was a tear key.
_UTF8: Final = "utf8"
_UTF8_MODE: Final = "cut_mid_frame"
_SIMPLE: Final = ("after_chunks", "delay_ms")
# What may be set beside an incident, whose file says everything that is sent.
_INCIDENT_KEYS: Final = ("delay_ms", "name")
# What a dialect has its own way with, unless the directive says otherwise.
_OVER_DIALECT: Final = {"comments", "content_type", "reasoning_key", "text_in_finish"}


class DirectiveError(ValueError):
    """A refused directive; the message says what is wrong, what would be right, and the valid modes.

    `incidents` are the names that are modes too.
    """

    def __init__(self, reason: str, incidents: Iterable[str] = ()) -> None:
        super().__init__(f"{reason}; valid modes: {', '.join([*MODES, *incidents])}")
        self.reason = reason


class Fault(msgspec.Struct, frozen=True):
    """A validated fault: the mode's name, what was set besides, and the death they resolve to.

    Of an incident the death knows only what is set besides, and how it ends.
    """

    mode: str
    settings: tuple[tuple[str, Value], ...]
    death: Death
    incident: Incident | None = None

    def canonical(self) -> str:
        """One spelling for all equal faults: what the response id is a digest of, and what the log shows."""
        if self.incident is not None:
            return self.mode + "".join(sorted(f";{key}={value}" for key, value in self.settings))
        death = self.death
        utf8 = "true" if death.tear.word == _UTF8 and self.mode == _UTF8_MODE else "false"
        first = f"{self.mode};after_chunks={death.after_chunks};delay_ms={death.delay_ms};utf8={utf8}"
        others = sorted(f";{key}={value}" for key, value in self.settings if key not in (*_SIMPLE, "tear"))
        tear = f";tear={death.tear}" if death.tear.word == "byte" else ""
        return first + tear + "".join(others)


def parse_directive(text: str, incidents: Incidents = NO_INCIDENTS) -> Fault:
    """Read one element; `incidents` are modes too, by their names.

    Raises:
        DirectiveError: an unknown mode or key, a malformed value, settings that make no sense together.
    """
    try:
        elements = parse(text)
    except GrammarError as error:
        raise DirectiveError(str(error)) from None
    if len(elements) > 1:
        raise DirectiveError("a list, expected one fault")
    return fault_from_element(elements[0], incidents)


def fault_from_element(element: Element, incidents: Incidents = NO_INCIDENTS) -> Fault:
    """A fault from a parsed element.

    Raises:
        DirectiveError: see `parse_directive`.
    """
    settings = {key: _read(key, word) for key, word in element.settings if _known(key)}
    return _resolve(element.mode, settings, incidents)


def fault_from_table(table: Mapping[str, object], incidents: Incidents = NO_INCIDENTS) -> Fault:
    """Read a table of a model's TOML, whose values have TOML's own types.

    Raises:
        DirectiveError: `mode` missing or no string; else see `parse_directive`.
    """
    mode = table.get("mode")
    if mode is None:
        raise DirectiveError("mode is missing")
    if not isinstance(mode, str):
        raise DirectiveError(f"mode is {mode!r}, expected a string")
    settings = {key: _take(key, value) for key, value in table.items() if key != "mode" and _known(key)}
    return _resolve(mode, settings, incidents)


def _known(key: str) -> bool:
    if key not in AXES and key != _UTF8:
        raise DirectiveError(f"unknown key {shown(key)}, expected one of {', '.join(AXES)}")
    return True


def _read(key: str, word: Word) -> Value:
    kind = AXES["bom" if key == _UTF8 else key].kind  # utf8 is a flag as any other
    try:
        return kind.read(word)
    except ValueError as error:
        raise DirectiveError(f"{key} is {error}, expected {kind.expected}") from None


def _take(key: str, value: object) -> Value:
    kind = AXES["bom" if key == _UTF8 else key].kind
    try:
        return kind.take(value)
    except ValueError as error:
        raise DirectiveError(f"{key} is {error}, expected {kind.expected}") from None


def _resolve(mode: str, settings: dict[str, Value], incidents: Incidents) -> Fault:
    if mode in incidents:
        return _replay(incidents[mode], settings)
    row = MODES.get(mode)
    if row is None:
        raise DirectiveError(f"unknown mode {shown(mode)}")
    if _UTF8 in settings:
        if mode != _UTF8_MODE:
            raise DirectiveError(f"utf8 goes with {_UTF8_MODE} only: elsewhere it is tear=utf8")
        if "tear" in settings:
            raise DirectiveError("utf8 and tear are two names of one thing: give one")
        settings["tear"] = Sub(_UTF8 if settings.pop(_UTF8) else "half")
    changes = {**row.changes, **settings}
    if settings.get("error", "none") != "none" and "done" not in settings:
        changes["done"] = "true" if VARIANTS[str(settings["error"])].done else "false"
    given = frozenset(changes) & _OVER_DIALECT
    death = msgspec.structs.replace(Death(), **changes, given=given)
    reason = broken(death)
    if reason is not None:
        raise DirectiveError(f"{mode}: {reason}")
    return Fault(mode, tuple(settings.items()), death)


def _replay(incident: Incident, settings: dict[str, Value]) -> Fault:
    for key in settings:
        if key not in _INCIDENT_KEYS:
            raise DirectiveError(
                f"{incident.name}: {key} does not go with an incident, whose file says all that is sent;"
                f" only {' and '.join(_INCIDENT_KEYS)} do"
            )
    death = msgspec.structs.replace(Death(), close=incident.close, **settings)
    return Fault(incident.name, tuple(settings.items()), death, incident)
