"""A capture as the text of an incident file."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.faults.incident import LITERAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from inference_lab.commands.record.capture import Recorded, Step

_JSON_STRING: Final = r'"((?:[^"\\]|\\.)*)"'
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class About(msgspec.Struct, frozen=True):
    """What stands in the file beside the capture; `comments` are lines at its top."""

    name: str
    path: str
    shape: str
    comments: tuple[str, ...]


def template_of(steps: Sequence[Step]) -> Callable[[str], str] | None:
    """What makes a template of a text: the response's id and model become placeholders. None if there is neither."""
    texts = [_split(step.data)[0] for step in steps]
    found: dict[str, str] = {}
    for key in ("id", "model"):
        matches = (re.search(rf'"{key}"\s*:\s*{_JSON_STRING}', text) for text in texts)
        value = next((match[1] for match in matches if match is not None), "")
        if value:
            found[key] = value
    if not found:
        return None

    def template(text: str) -> str:
        text = text.replace("<<", LITERAL)
        for key, value in found.items():
            written = re.escape(value.replace("<<", LITERAL))
            text = re.sub(rf'("{key}"\s*:\s*"){written}"', rf'\1<<{key}>>"', text)
        return text

    return template


def incident_text(recorded: Recorded, about: About, template: Callable[[str], str] | None) -> str:
    """The TOML of a capture; with `template` its texts hold placeholders."""
    return "\n".join(_lines(recorded, about, template)) + "\n"


def _lines(recorded: Recorded, about: About, template: Callable[[str], str] | None) -> Iterator[str]:
    yield from (f"# {line}" for line in about.comments)
    yield f"name = {basic_string(about.name)}"
    yield f"close = {basic_string(recorded.close)}"
    if recorded.idle_ms:
        yield f"idle_ms = {recorded.idle_ms}"
    if template is not None:
        yield "placeholders = true"
    yield from ("", "[request]", f"path = {basic_string(about.path)}", f"body = {basic_string(about.shape)}")
    yield from ("", "[head]", f"status = {recorded.status}", f"framing = {basic_string(recorded.framing)}")
    if recorded.length_off_by:
        yield f"length_off_by = {recorded.length_off_by}"
    if recorded.head_ms:
        yield f"pause_ms = {recorded.head_ms}"
    yield from ("", "[head.headers]")
    yield from (f"{name} = {basic_string(value)}" for name, value in recorded.headers)
    last_ms = recorded.head_ms
    for step in recorded.steps:
        yield from ("", "[[events]]")
        if step.at_ms > last_ms:
            yield f"pause_ms = {step.at_ms - last_ms}"
        last_ms = max(last_ms, step.at_ms)
        yield f"{'frame' if step.framed else 'raw'} = {_data(step.data, template)}"
    if recorded.tail_ms:
        yield from ("", "[[events]]", f"pause_ms = {recorded.tail_ms}")


def _data(data: bytes, template: Callable[[str], str] | None) -> str:
    """Text as such, what is no UTF-8 in base64, a text that ends inside a character as both."""
    text, rest = _split(data)
    written = [_string(template(text) if template is not None else text)] if text else []
    if rest:
        written.append(f'{{ base64 = "{base64.b64encode(rest).decode()}" }}')
    return written[0] if len(written) == 1 else "[" + ", ".join(written) + "]"


def _split(data: bytes) -> tuple[str, bytes]:
    """The text that `data` begins with, and the bytes from the first on that is no UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        return data[: error.start].decode(), data[error.start :]


def _string(text: str) -> str:
    """Lines as they are where TOML can have them so; else with escapes."""
    plain = all(char.isprintable() or char in "\n\t" for char in text)
    if "\n" in text and plain and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    return basic_string(text)


def basic_string(text: str) -> str:
    """A TOML string on one line."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
