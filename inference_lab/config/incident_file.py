"""Incident files: the TOML of a captured response, read into an `Incident`; the folder `faults/` of a config."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from inference_lab.config.toml_reading import Table, convert, cut, fitted, join_key, read_toml, show_value
from inference_lab.console import UserError
from inference_lab.core.faults.death import AXES
from inference_lab.core.faults.incident import NAME, Framing, Incident, Part, Piece, parts_of
from inference_lab.core.faults.modes import MODES
from inference_lab.core.stream.events import Pause
from inference_lab.core.stream.healthy import STREAM_HEAD

if TYPE_CHECKING:
    from pathlib import Path

FOLDER: Final = "faults"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110 section 5.6.2
# Headers that no file may set, each with where it comes from instead.
_NOT_IN_FILES: Final = {
    "transfer-encoding": "is made from head.framing; leave it out",
    "content-length": "is made from head.framing and head.length_off_by; leave it out",
    "date": "is this server's own; leave it out",
    "server": "is this server's own; leave it out",
    "access-control-allow-origin": "is this server's own; leave it out",
}
_Offset = Annotated[int, Meta(ge=-(2**31), le=2**31)]


class _Head(Struct, frozen=True, forbid_unknown_fields=True):
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, Any] | None = None
    framing: Framing = "chunked"
    length_off_by: _Offset = 0
    pause_ms: Any = 0


class _Event(Struct, frozen=True, forbid_unknown_fields=True):
    pause_ms: Any = None
    frame: Any = None
    raw: Any = None


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked, for the reader of the file: nothing is made of it."""

    path: str | None = None
    body: str | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    close: str
    name: str | None = None
    idle_ms: Any = 0
    placeholders: bool = False
    request: _Request = _Request()
    head: _Head = _Head()
    events: tuple[_Event, ...] = ()


def load_incidents(config: Path) -> dict[str, Incident]:
    """The incidents in the folder `faults` in the directory `config`, or beside the file `config`, by name.

    Raises:
        UserError: a folder or file that cannot be read, a file that is no incident, a name that is taken.
    """
    folder = (config if config.is_dir() else config.parent) / FOLDER
    try:
        if not folder.exists():
            return {}
        files = sorted(file for file in folder.iterdir() if file.suffix == ".toml")
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None
    incidents: dict[str, Incident] = {}
    sources: dict[str, Path] = {}
    for file in files:
        incident = read_incident(file)
        name = incident.name
        if name in incidents:
            other = cut(str(sources[name]), 120)
            with fitted(str(file)):
                raise UserError(
                    f"{file}: name is {show_value(name)}, which {other} has; give one of them another"
                )
        incidents[name], sources[name] = incident, file
    return incidents


def read_incident(file: Path) -> Incident:
    """The incident in a file; its name is the file's unless the file says another.

    Raises:
        UserError: anything that is wrong with it.
    """
    return parse_incident(read_toml(file, str(file)), file)


def parse_incident(document: Table, file: Path) -> Incident:
    """The incident in the tables of `file`, beside which raw captures are looked for.

    Raises:
        UserError: see `read_incident`.
    """
    with fitted(str(file)):
        return _incident_in(document, file)


def _incident_in(document: Table, file: Path) -> Incident:
    source = str(file)
    table = convert(document, _File, file=source, where="")
    name = file.stem if table.name is None else table.name
    refusal = name_refusal(name)
    if refusal is not None:
        what = "the file's name" if table.name is None else "name"
        raise UserError(f"{source}: {what} is {show_value(name)}, {refusal}")
    head = table.head
    reader = _Reader(source, file.parent, placeholders=table.placeholders)
    steps: list[Piece | Pause] = []
    for place, event in enumerate(table.events):
        steps += reader.steps(event, f"events[{place}]")
    if table.placeholders and not any(
        not isinstance(part, bytes) for step in steps if isinstance(step, Piece) for part in step.parts
    ):
        raise UserError(f"{source}: placeholders is true, but no frame has one; leave the key out")
    headers = STREAM_HEAD.headers if head.headers is None else reader.headers(head.headers)
    head_pause_ms = reader.milliseconds(head.pause_ms, "head.pause_ms")
    idle_ms = reader.milliseconds(table.idle_ms, "idle_ms")
    try:
        return Incident(
            name=name,
            status=head.status,
            headers=headers,
            framing=head.framing,
            length_off_by=head.length_off_by,
            head_pause_ms=head_pause_ms,
            steps=tuple(steps),
            close=table.close,
            idle_ms=idle_ms,
        )
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None


def name_refusal(name: str) -> str | None:
    """What is wrong with a name for an incident, as the rest of a sentence; None if nothing is."""
    if name in MODES:
        return "which is a mode already; give the incident another"
    if not NAME.fullmatch(name):
        return "expected a letter or digit, then at most 63 letters, digits, dots, dashes and underscores"
    return None


class _Reader:
    """Reads the values whose types the schema leaves open."""

    def __init__(self, source: str, folder: Path, *, placeholders: bool) -> None:
        self._source = source
        self._folder = folder
        self._placeholders = placeholders

    def _wrong(self, where: str, sentence: str) -> UserError:
        return UserError(f"{self._source}: {where} {sentence}")

    def milliseconds(self, value: object, where: str) -> int:
        kind = AXES["pause_ms"].kind
        try:
            return int(str(kind.take(value)))
        except ValueError:
            raise self._wrong(where, f"is {show_value(value)}, expected {kind.expected}") from None

    def headers(self, table: Table) -> tuple[tuple[bytes, bytes], ...]:
        headers: dict[bytes, bytes] = {}
        for name, value in table.items():
            where = join_key("head.headers", name)
            lower = name.lower()
            if lower in _NOT_IN_FILES:
                raise self._wrong(where, _NOT_IN_FILES[lower])
            if not _HEADER_NAME.fullmatch(name):
                raise self._wrong(where, "is no name of a header")
            if lower.encode() in headers:
                raise self._wrong(where, "is given twice")
            if not isinstance(value, str) or not all(char.isprintable() or char == "\t" for char in value):
                raise self._wrong(where, f"is {show_value(value)}, expected a string on one line")
            headers[lower.encode()] = value.encode()
        return tuple(headers.items())

    def steps(self, event: _Event, where: str) -> list[Piece | Pause]:
        """The pause of an event, and what it sends."""
        if event.frame is not None and event.raw is not None:
            raise self._wrong(where, "has both frame and raw, expected one of them")
        if event.frame is None and event.raw is None and event.pause_ms is None:
            raise self._wrong(where, "is empty, expected pause_ms, frame or raw")
        steps: list[Piece | Pause] = []
        pause_ms = 0 if event.pause_ms is None else self.milliseconds(event.pause_ms, f"{where}.pause_ms")
        if pause_ms:
            steps.append(Pause(pause_ms))
        for key, value in (("frame", event.frame), ("raw", event.raw)):
            if value is not None:
                parts = self._parts(value, f"{where}.{key}")
                if not parts:
                    raise self._wrong(f"{where}.{key}", "is empty, expected at least one byte")
                steps.append(Piece(parts, framed=key == "frame"))
        return steps

    def _parts(self, value: object, where: str) -> tuple[Part, ...]:
        """Text, bytes, or a list of both, as one run of parts without neighbours that could be one."""
        pieces = value if isinstance(value, list) else [value]
        joined: list[Part] = []
        for place, piece in enumerate(pieces):
            at = f"{where}[{place}]" if isinstance(value, list) else where
            for part in self._text(piece, at) if isinstance(piece, str) else self._bytes(piece, at):
                if joined and isinstance(part, bytes) and isinstance(joined[-1], bytes):
                    joined[-1] += part
                else:
                    joined.append(part)
        return tuple(joined)

    def _text(self, text: str, where: str) -> tuple[Part, ...]:
        if not self._placeholders:
            return (text.encode(),) if text else ()
        try:
            return parts_of(text)
        except ValueError as error:
            raise self._wrong(where, f"holds {error}") from None

    def _bytes(self, value: object, where: str) -> tuple[Part, ...]:
        """`{ base64 = "…" }`, or `{ file = "…" }` with `from` and `to`, the first byte and the one after the last."""
        if isinstance(value, dict) and value.keys() == {"base64"}:
            data = self._decoded(value["base64"], f"{where}.base64")
        elif isinstance(value, dict) and {"file"} <= value.keys() <= {"file", "from", "to"}:
            data = self._slice(value, where)
        else:
            raise self._wrong(
                where,
                f"is {show_value(value)}, expected a string, {{ base64 = … }}, {{ file = …, from = …, to = … }},"
                " or an array of these",
            )
        return (data,) if data else ()

    def _decoded(self, text: object, where: str) -> bytes:
        try:
            return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        except ValueError:
            raise self._wrong(where, f"is {show_value(text)}, expected base64") from None

    def _slice(self, table: Table, where: str) -> bytes:
        name = table["file"]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self._wrong(
                f"{where}.file", f"is {show_value(name)}, expected the name of a file beside this one"
            )
        try:
            data = (self._folder / name).read_bytes()
        except OSError as error:
            raise self._wrong(
                f"{where}.file", f"is {show_value(name)}, which cannot be read: {error.strerror}"
            ) from None
        begin, end = table.get("from", 0), table.get("to", len(data))
        for key, value, least in (("from", begin, 0), ("to", end, begin)):
            if type(value) is not int or not least <= value <= len(data):
                raise self._wrong(
                    f"{where}.{key}",
                    f"is {show_value(value)}, expected an integer from {least} to {len(data)}",
                )
        return data[begin:end]
