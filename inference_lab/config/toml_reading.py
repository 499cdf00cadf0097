"""TOML files as validated structs: what is wrong with one becomes a line: what, where, the remedy."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
import tomli
from msgspec import inspect

from inference_lab.console import UserError
from inference_lab.core.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")
Table = dict[str, Any]
Refused: TypeAlias = Annotated[Table | None, msgspec.Meta(extra={"refused": True})]
"""A table that is known only to be refused with its reason; no message offers its key."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
# The three shapes of msgspec's message (0.20): what is wrong, then where.
_WITH_PATH: Final = re.compile(r"(?P<what>.*) - at `\$(?P<path>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH_STEP: Final = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>[0-9]+)\]")
_QUOTED: Final = re.compile(r"`([^`]*)`")
_PLAIN_TYPES: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
}
_LONGEST_VALUE: Final = 60
_LONGEST_REASON: Final = 120
_LONGEST_LINE: Final = 285
"""With the program's name before it, 300."""


@contextmanager
def fitted(file: str) -> Iterator[None]:
    """Within, a refusal that begins with the file's path is a line of 300 characters at most: of a long path the end.

    It is for refusals that are short themselves.
    """
    try:
        yield
    except UserError as error:
        reason = str(error).removeprefix(one_line(file))
        if reason == str(error):
            raise
        raise UserError(fit(file, reason)) from None


def fit(file: str, reason: str) -> str:
    """A file's path and a short reason as one line; see `fitted`."""
    path = one_line(file)
    room = _LONGEST_LINE - len(reason)
    return (path if len(path) <= room else "…" + path[len(path) - room + 1 :]) + reason


def read_toml(path: Path, shown: str) -> Table:
    """The tables of the TOML file at `path`, which messages call `shown`.

    Raises:
        UserError: unreadable, not UTF-8, not TOML, or a number that is not finite.
    """
    with fitted(shown):
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{shown}: not UTF-8: {error.reason} at byte {error.start}") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise UserError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        try:
            tables = tomli.loads(text)
            refuse_non_finite(tables, shown)
        except RecursionError:
            raise UserError(f"{shown}: nested too deeply") from None
        except ValueError as error:  # TOMLDecodeError, and int() on thousands of digits
            raise UserError(f"{shown}: not valid TOML: {cut(str(error), _LONGEST_REASON)}") from None
    return tables


def refuse_non_finite(tables: Table, shown: str) -> None:
    """TOML has nan and inf; no key of ours means anything with them.

    Raises:
        UserError: the first that is found in `tables`, which messages call `shown`.
    """
    stack: list[tuple[str, Any]] = [("", tables)]
    while stack:
        where, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((join_key(where, key), member) for key, member in value.items())
        elif isinstance(value, list):
            stack.extend((f"{where}[{index}]", member) for index, member in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            where = cut(where, _LONGEST_REASON)
            raise UserError(f"{shown}: {where} is {value}, expected a finite number")


def join_key(where: str, key: str) -> str:
    """The dotted path of `key` inside `where`, quoted where TOML would quote it."""
    key = cut(key, _LONGEST_VALUE)
    name = key if _BARE_KEY.fullmatch(key) else '"' + key.replace('"', '\\"') + '"'
    return f"{where}.{name}" if where else name


def show_value(value: object) -> str:
    """A value as it may be quoted in a message: like TOML, on one line, cut when long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if value is None:
        return "null"
    text = one_line(f'"{value}"' if isinstance(value, str) else str(value))
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, cut in the middle: both ends say where it belongs."""
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most + most // 2 :]}"


def convert(value: object, kind: type[T], *, file: str, where: str) -> T:
    """`value`, found under the key path `where` of `file`, as the struct `kind`.

    Raises:
        UserError: a key that is missing or unknown, a value of another type or out of range.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {_reworded(error, value, kind, where)}") from None
    except RecursionError:
        raise UserError(f"{file}: {where or 'the top level'}: nested too deeply") from None


def _reworded(error: msgspec.ValidationError, value: object, kind: object, where: str) -> str:
    """Msgspec's message with the whole key path, the value, and all that would have been right."""
    located = _WITH_PATH.fullmatch(str(error))
    what, path = (located["what"], located["path"]) if located else (str(error), "")
    described = _narrowed(inspect.type_info(kind), value)
    for step in _PATH_STEP.finditer(path):
        if (key := step["key"]) is not None:
            where = join_key(where, key)
            described = _member_type(described, key)
            value = value.get(key) if isinstance(value, dict) else None
        else:
            index = int(step["index"])
            where = f"{where}[{index}]"
            described = described.item_type if isinstance(described, inspect.VarTupleType) else described
            value = value[index] if isinstance(value, list) else None
        described = _narrowed(described, value)
    if missing := _MISSING.fullmatch(what):
        return f"{join_key(where, missing[1])} is missing"
    if unknown := _UNKNOWN.fullmatch(what):
        known = _known_keys(described)
        return f"{join_key(where, unknown[1])} is an unknown key, expected one of {', '.join(known)}"
    if error.__cause__ is not None:  # a struct's own check; its sentence starts with the key at fault
        return f"{where}.{what}" if where else what
    if isinstance(described, inspect.LiteralType):
        expected = "one of " + ", ".join(str(choice) for choice in described.values)
    else:
        expected = _QUOTED.sub(_plain_words, what.removeprefix("Expected ").partition(", got ")[0])
    return f"{where or 'the top level'} is {show_value(value)}, expected {expected}"


def _narrowed(described: inspect.Type, value: object) -> inspect.Type:
    """The member of a union that `value` was checked against, or the union itself if that is not decided."""
    if not isinstance(described, inspect.UnionType):
        return described
    members = [member for member in described.types if not isinstance(member, inspect.NoneType)]
    if isinstance(value, dict):
        structs = [member for member in members if isinstance(member, inspect.StructType)]
        if len(structs) > 1:
            structs = [member for member in structs if member.tag == value.get(str(member.tag_field))]
        return structs[0] if len(structs) == 1 else described
    return members[0] if len(members) == 1 else described


def _member_type(described: inspect.Type, key: str) -> inspect.Type:
    if isinstance(described, inspect.StructType):
        return next((field.type for field in described.fields if field.encode_name == key), described)
    if isinstance(described, inspect.UnionType):  # only the tag can be at fault before the member is known
        tags = [member.tag for member in described.types if isinstance(member, inspect.StructType)]
        return inspect.LiteralType(tuple(tag for tag in tags if isinstance(tag, str)))
    return described


def _known_keys(described: inspect.Type) -> list[str]:
    if not isinstance(described, inspect.StructType):
        return []
    tag = [described.tag_field] if described.tag_field is not None else []
    fields = [field for field in described.fields if not isinstance(field.type, inspect.Metadata)]
    return [*tag, *(field.encode_name for field in fields)]


def _plain_words(quoted: re.Match[str]) -> str:
    names = [name for name in quoted[1].split(" | ") if name != "null"]
    return " or ".join(_PLAIN_TYPES.get(name, name) for name in names)
