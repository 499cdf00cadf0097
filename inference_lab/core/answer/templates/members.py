"""A call's JSON arguments as members, for formats that write each as a tag; whole or broken off."""

import json

import msgspec

from inference_lab.core.json_text import Ends, scan, spaced, without_surrogates


class Member(msgspec.Struct, frozen=True):
    """One argument: its key, and its text, which is JSON where the value is no string."""

    key: str
    text: str
    is_string: bool


def members_of(arguments: str) -> list[Member]:
    """The members of whole arguments as they stand, a repeated key twice; none for an empty text.

    Raises:
        ValueError: anything but a JSON object.
    """
    if not arguments.strip():
        return []
    if scan(arguments).ends is not Ends.WHOLE:
        raise ValueError("a call's arguments must be a whole JSON object")
    pairs: list[tuple[str, object]] = []

    def keep(inner: list[tuple[str, object]]) -> dict[str, object]:
        pairs[:] = inner  # of all objects the outermost is complete last
        return dict(inner)

    try:
        value = json.loads(arguments, object_pairs_hook=keep)
    except RecursionError:
        raise ValueError("a call's arguments are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"a call's arguments are no JSON: {error}") from None
    except ValueError:  # of JSON only int() refuses anything
        raise ValueError("a call's arguments hold an integer of too many digits") from None
    if not isinstance(value, dict):
        raise ValueError("a call's arguments must be a JSON object")
    return [Member(without_surrogates(key), *_value(value)) for key, value in pairs]


def open_members_of(arguments: str) -> tuple[list[Member], Member | None]:
    """The whole members of arguments that break off, and the string member they break off in.

    A number, a word, a key or an escape may be half written, so nothing but a string can be left open. Tags
    do not show a brace or comma that no member follows, so its client would get it twice or never.

    Raises:
        ValueError: arguments that break off elsewhere.
    """
    found = scan(arguments)
    try:
        if found.ends is Ends.IN_VALUE:
            members = members_of(f"{arguments[: found.string - 1]}null}}")
            text = json.loads(f'"{arguments[found.string :]}"')
            return members[:-1], Member(members[-1].key, without_surrogates(text), is_string=True)
        stem = arguments.rstrip(" \t\n\r")
        if found.ends is Ends.OPEN and stem[-1:] in {"", '"', "}", "]"}:
            return members_of(stem and stem + "}"), None
    except ValueError:
        pass
    raise ValueError("a call's arguments can be continued only behind a whole member or inside a string")


def _value(value: object) -> tuple[str, bool]:
    if isinstance(value, str):
        return without_surrogates(value), True
    return without_surrogates(spaced(value)), False
