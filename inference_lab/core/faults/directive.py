"""The directive: one fault, read from an element of a header or prompt, or from a TOML table.

Anything that cannot be honoured as written is refused with a reason; nothing is ignored.
"""

from __future__ import annotations

import json
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.constraints import broken
from inference_lab.core.faults.death import (
    AXES,
    HEALTHY,
    LABELS,
    NONE,
    OPENED_KEYS,
    STREAM_KEYS,
    STREAMED,
    WHOLE_CLOSES,
    Death,
    at_defaults,
)
from inference_lab.core.faults.grammar import Element, GrammarError, Word, parse, shown
from inference_lab.core.faults.incident import NO_INCIDENTS, Incident, Incidents
from inference_lab.core.faults.modes import BASIC_MODES, MODES, OK, Mode
from inference_lab.core.faults.values import (
    Choice,
    Code,
    Flag,
    NumberedChoice,
    NumberedWord,
    SignedInteger,
    Text,
    Value,
    ValueKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Short for tear, with the one mode that had it before there was a tear key.
_UTF8: Final = "utf8"
_UTF8_KIND: Final = Flag()
_UTF8_MODE: Final = "cut_mid_frame"
_SIMPLE: Final = frozenset({"after_chunks", "delay_ms"})
_BARE: Final = re.compile(r"[A-Za-z_][\w.:+-]*", re.ASCII)

_LISTED: Final = "inference-lab faults and GET /lab/faults list all modes, keys and values"

# Words that as a string mean something else than bare.
_WORDS: Final = frozenset({"none", "empty_each", "null", "absent"})

# What a row says only because its stream breaks off: nothing, where the response never gets that far.
_BROKEN_OFF: Final[Mapping[str, frozenset[object]]] = {
    "after_chunks": frozenset({3}),
    "finish": frozenset({NONE}),
    "done": frozenset({"false"}),
}

# What may be set beside an incident, whose file says everything that is sent.
_INCIDENT_KEYS: Final = ("delay_ms", *LABELS)
# What a dialect has its own way with, unless the directive says otherwise.
_OVER_DIALECT: Final = {"comments", "content_type", "reasoning_key", "text_in_finish"}


class DirectiveError(ValueError):
    """A refused directive; the message is one line that says what is wrong and what would be right.

    The `reason` is about the element at a `place` of a list, or names its subject itself; `more` is for a client only.
    `leg` is the place of the element that the reason was found in, where that is known.
    """

    leg: int | None = None

    def __init__(self, reason: str, *, place: int | None = None, more: str = "") -> None:
        super().__init__(f"{reason if place is None else f'element {place} of the list {reason}'}{more}")
        self.reason = reason
        self.place = place

    def in_table(self, where: str) -> str:
        """The reason alone, of a directive that stands as a table under the key path `where`."""
        if self.place is not None:
            return f"{where}.legs[{self.place}] {self.reason}"
        if self.reason.startswith("legs"):
            return f"{where}.{self.reason}"
        return f"{where}: {self.reason}" if self.leg is None else f"{where}.legs[{self.leg}]: {self.reason}"


class MalformedError(DirectiveError):
    """A directive that cannot be read: a client is told the basic modes too, and where all else is listed."""

    def __init__(self, reason: str, more: str = "") -> None:
        super().__init__(reason, more=f"{more}; basic modes: {', '.join(BASIC_MODES)}; {_LISTED}")


class UnknownModeError(DirectiveError):
    """A mode that there is not: a client is told all there are, of which `incidents` are some."""

    def __init__(self, mode: str, incidents: Iterable[str]) -> None:
        more = f"; valid modes: {', '.join([*MODES, *incidents])}"
        super().__init__(f"unknown mode {shown(mode)}", more=more)


def not_utf8(raw: bytes) -> DirectiveError:
    """The refusal of bytes that are no text."""
    return MalformedError(f"not UTF-8: {shown(raw.decode(errors='backslashreplace'))}")


class Fault(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """A validated fault: the mode's name, what was set besides, and the death they resolve to.

    Of an incident the death knows only what is set besides, and how it ends.
    """

    mode: str
    settings: tuple[tuple[str, Value], ...]
    death: Death
    incident: Incident | None = None

    @cached_property
    def is_engine(self) -> bool:
        """Whether it is no fault: `ok` alone, or with keys only that change nothing about the response."""
        return self.mode == OK and all(key in LABELS for key, _ in self.settings)

    @property
    def acts_without_stream(self) -> bool:
        """Whether it has an effect on a request that asked for no stream."""
        if self.incident is not None:
            return not self.incident.needs_stream
        death = self.death
        if death.status != HEALTHY.status or death.at == "request":
            return True
        if death.answer_as not in {HEALTHY.answer_as, "json"}:
            return True
        acts = death.ttft_ms > 0 or death.strict_params
        if death.answer_as == "json":  # which is the answer that such a request gets anyway
            return acts or not at_defaults(death, OPENED_KEYS)
        is_plain = at_defaults(death, STREAM_KEYS)
        return acts and is_plain and death.dialect in {None, LAB.name} and death.close in WHOLE_CLOSES

    @property
    def given_delay_ms(self) -> int | None:
        """The delay that was asked for, which replaces the pauses of an incident; None: it was not."""
        return self.death.delay_ms if any(key == "delay_ms" for key, _ in self.settings) else None

    @cached_property
    def in_stream(self) -> Fault:
        """The same for a request that asked for a stream, where `sse` is what was asked for: in one spelling."""
        row = HEALTHY if self.incident is not None else MODES[self.mode].death
        word = HEALTHY.answer_as if row.answer_as == HEALTHY.answer_as else "sse"
        if self.death.answer_as not in STREAMED or self.death.answer_as == word:
            return self
        return msgspec.structs.replace(self, death=msgspec.structs.replace(self.death, answer_as=word))

    def canonical(self) -> str:
        """One spelling for all equal faults: what the response id is a digest of, and what the log shows."""
        return canonical_of(self)


@lru_cache(maxsize=256)  # it is asked for several times a request, and mostly for the same few
def canonical_of(fault: Fault) -> str:
    """See `Fault.canonical`."""
    if fault.incident is not None:
        return fault.mode + "".join(sorted(f";{key}={spelled(key, value)}" for key, value in fault.settings))
    death, row = fault.death, MODES[fault.mode].death
    utf8 = fault.mode == _UTF8_MODE and death.tear == NumberedWord(_UTF8)
    text = (
        f"{fault.mode};after_chunks={death.after_chunks};delay_ms={death.delay_ms};utf8={str(utf8).lower()}"
    )
    fallen = _fallen(death.at, death.status, death.answer_as)
    for key in sorted(AXES.keys() - _SIMPLE - ({"tear"} if utf8 else set())):
        value = getattr(death, key)
        is_changed = value != getattr(row, key) and (key not in fallen or value != getattr(HEALTHY, key))
        if is_changed or (key in death.given and value is not None):
            text += f";{key}={spelled(key, value)}"
    return text


def parse_directive(text: str, incidents: Incidents = NO_INCIDENTS) -> Fault:
    """Read one element; `incidents` are modes too, by their names.

    Raises:
        DirectiveError: an unknown mode or key, a malformed value, settings that make no sense together.
    """
    try:
        elements = parse(text)
    except GrammarError as error:
        raise MalformedError(str(error)) from None
    if len(elements) > 1:
        raise MalformedError("a list, expected one fault")
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
        raise MalformedError("mode is missing")
    if not isinstance(mode, str):
        raise MalformedError(f"mode is {mode!r:.60}, expected a string")
    settings = {key: _take(key, value) for key, value in table.items() if key != "mode" and _known(key)}
    return _resolve(mode, settings, incidents)


def _known(key: str) -> bool:
    if key not in AXES and key != _UTF8:
        raise MalformedError(f"unknown key {shown(key)}", f", expected one of {', '.join(AXES)}")
    return True


def _kind_of(key: str) -> ValueKind:
    return _UTF8_KIND if key == _UTF8 else AXES[key].kind


def _read(key: str, word: Word) -> Value:
    kind = _kind_of(key)
    try:
        return kind.read(word)
    except ValueError as error:
        raise _not_of_kind(key, kind, error) from None


def _take(key: str, value: object) -> Value:
    kind = _kind_of(key)
    try:
        return kind.take(value)
    except ValueError as error:
        raise _not_of_kind(key, kind, error) from None


def _not_of_kind(key: str, kind: ValueKind, error: ValueError) -> MalformedError:
    reason, expected = f"{key} is {error}", f", expected {kind.expected}"
    if isinstance(kind, (Choice, NumberedChoice)):  # which is a list
        return MalformedError(reason, expected)
    return MalformedError(reason + expected)


def _resolve(mode: str, settings: dict[str, Value], incidents: Incidents) -> Fault:
    if mode in incidents:
        return _replay(incidents[mode], settings)
    row = MODES.get(mode)
    if row is None:
        raise UnknownModeError(mode, incidents)
    if _UTF8 in settings:
        if mode != _UTF8_MODE:
            raise MalformedError(f"utf8 goes with {_UTF8_MODE} only: elsewhere it is tear=utf8")
        if "tear" in settings:
            raise MalformedError("utf8 and tear are two names of one thing: give one")
        settings["tear"] = NumberedWord(_UTF8 if settings.pop(_UTF8) else "half")
    changes = _changes(row, settings)
    if "done" not in settings:
        if settings.get("error", "none") != "none":
            changes["done"] = "true" if VARIANTS[str(settings["error"])].done else "false"
        elif _ends_at_its_head(changes):
            changes["done"] = "false"
    if (
        changes.get("rest_delay_ms") == changes.get("delay_ms", HEALTHY.delay_ms)
        and not row.death.rest_delay_ms
    ):
        del changes["rest_delay_ms"]  # the pace that it has anyway
    given = frozenset(changes) & _OVER_DIALECT
    death = msgspec.structs.replace(HEALTHY, **changes, given=given)
    reason = broken(death, settings, row.death)
    if reason is not None:
        raise DirectiveError(f"{mode}: {reason}")
    return Fault(mode, tuple(settings.items()), death)


def _replay(incident: Incident, settings: dict[str, Value]) -> Fault:
    for key in settings:
        if key not in _INCIDENT_KEYS:
            raise MalformedError(
                f"{incident.name}: {key} does not go with an incident, whose file says all that is sent",
                f"; only {', '.join(_INCIDENT_KEYS[:-1])} and {_INCIDENT_KEYS[-1]} do",
            )
    death = msgspec.structs.replace(HEALTHY, close=incident.close, **settings)
    return Fault(incident.name, tuple(settings.items()), death, incident)


def _changes(row: Mode, settings: Mapping[str, Value]) -> dict[str, Value]:
    """What a row and a directive's settings change about the healthy stream."""
    changes = {**row.changes, **settings}
    fallen = _fallen(*(changes.get(key, getattr(HEALTHY, key)) for key in ("at", "status", "answer_as")))
    return {
        key: value
        for key, value in changes.items()
        if key not in fallen or value not in _BROKEN_OFF[key] or row.changes.get(key) != value
    }


def _ends_at_its_head(changes: Mapping[str, Value]) -> bool:
    """Whether a stream gets no further than its head or its role frame, and no error brings a terminal frame."""
    if changes.get("at") not in {"head", "role"} or changes.get("error", HEALTHY.error) != HEALTHY.error:
        return False
    return not _never_streams(changes.get("status", HEALTHY.status), changes.get("answer_as", "asked"))


def _never_streams(status: Value, answer_as: Value) -> bool:
    return status != HEALTHY.status or answer_as not in STREAMED


def _fallen(at: Value, status: Value, answer_as: Value) -> set[str]:
    """Keys on which a row has nothing to say to a response that does not get so far."""
    if _never_streams(status, answer_as) or at == "request":
        return set(_BROKEN_OFF)
    # The terminal frame may follow a head or a role frame, so the row's word on it counts.
    return set() if at == HEALTHY.at else _BROKEN_OFF.keys() - {"done"}


def spelled(key: str, value: Value) -> str:
    """A value as a directive writes it, in ASCII."""
    kind = AXES[key].kind
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and isinstance(kind, SignedInteger):
        return f"{value:+d}"
    is_text = isinstance(value, str) and isinstance(kind, (Text, Code))
    bare = _BARE.fullmatch(str(value)) and value not in _WORDS
    return json.dumps(value) if is_text and not bare else str(value)
