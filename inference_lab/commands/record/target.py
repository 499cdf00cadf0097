"""What is asked, and what of it may be written down: the request's bytes, its shape, its secrets."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from inference_lab import __version__
from inference_lab.config.toml_reading import show_value
from inference_lab.console import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_OURS: Final = ("content-length", "transfer-encoding")
_SECRET: Final = re.compile(
    r"auth|cookie|key|token|secret|pass(?:word|wd|phrase)|pwd|credential|session|jwt|bearer|signature|^sig$",
    re.IGNORECASE,
)
_SHORTEST_SECRET: Final = 8
"""Shorter values are words that a response may hold by chance."""
SHORT_SECRETS: Final = f"Credentials of fewer than {_SHORTEST_SECRET} characters were not looked for."
_URL_SAFE: Final = str.maketrans("+/", "-_")
_DEEPEST: Final = 12
_LONGEST: Final = 4000
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. `path` is without the query that `resource` has."""

    tls: bool
    host: str
    port: int
    resource: str
    path: str
    authority: str


def target_of(url: str) -> Target:
    """Take a URL apart.

    Raises:
        UserError: no http or https URL, or one with a user's name in it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"the URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise UserError(f"the URL is {show_value(url)}, expected http://… or https://…")
    if parts.username is not None or parts.password is not None:
        raise UserError("the URL holds a user's name; send it with --header 'authorization: …' instead")
    path = parts.path or "/"
    resource = path + (f"?{parts.query}" if parts.query else "")
    if not (url.isascii() and resource.isprintable() and " " not in resource):
        raise UserError(f"the URL is {show_value(url)}, expected printable ASCII, the rest percent-encoded")
    tls = parts.scheme == "https"
    return Target(tls, host, port or (443 if tls else 80), resource, path, parts.netloc)


def headers_of(lines: Iterable[str]) -> list[tuple[str, str]]:
    """`--header` arguments as names and values.

    Raises:
        UserError: one that is no header, or that says how the body is framed.
    """
    headers = []
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            # Not quoted: it may be a secret.
            raise UserError("--header: expected 'name: value' on one line")
        if match[1].lower() in _OURS:
            raise UserError(f"--header {match[1]}: it is made from the body; leave it out")
        headers.append((match[1], match[2]))
    return headers


def request_bytes(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A POST of `body`; what `headers` name is not added."""
    named = {name.lower() for name, _ in headers}
    own = (
        ("host", target.authority),
        ("user-agent", f"inference-lab/{__version__}"),
        ("accept", "*/*"),
        ("content-type", "application/json"),
    )
    lines = [f"POST {target.resource} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in own if name not in named]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def secrets_of(target: Target, headers: Iterable[tuple[str, str]]) -> set[bytes]:
    """What must not be written even where the response repeats it: credentials, whole and without what frames them."""
    return {secret.encode() for secret in _credentials(target, headers) if len(secret) >= _SHORTEST_SECRET}


def has_short_secret(target: Target, headers: Iterable[tuple[str, str]]) -> bool:
    """Whether a credential, or a part of one, is too short to be looked for."""
    return any(
        secret.strip("=") and len(secret) < _SHORTEST_SECRET for secret in _credentials(target, headers)
    )


def _credentials(target: Target, headers: Iterable[tuple[str, str]]) -> set[str]:
    secrets: set[str] = set()
    for name, value in headers:
        if _SECRET.search(name):
            secrets |= {value, value.rpartition(" ")[2]}
            secrets |= {part.partition("=")[2].strip(' "') for part in re.split("[;,]", value)}
            secrets |= _basic(value)
    query = target.resource.partition("?")[2]
    for name, value in parse_qsl(query):
        if _SECRET.search(name):
            secrets.add(value)
            secrets.add(value.replace(" ", "+"))  # which only some decode
    return secrets | {unquote(secret) for secret in secrets}


def _basic(value: str) -> set[str]:
    """User and password, and the password alone, of basic credentials (RFC 7617)."""
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return set()
    try:
        digits = encoded.translate(_URL_SAFE).rstrip("=")
        pair = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4)).decode()
    except ValueError:
        return set()
    return {pair, pair.partition(":")[2]}


def shape_of(body: bytes) -> str:
    """The keys and types of a JSON body, without any of its values: `{model: string, stream: boolean}`."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return "no JSON"
    text = _shape(value, 0)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _shape(value: object, depth: int) -> str:
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return "{" + ", ".join(_members(value, depth)) + "}"
    if isinstance(value, list):
        kinds = dict.fromkeys(_shape(item, depth + 1) for item in value)
        return "[" + " | ".join(kinds) + "]"
    if value is None:
        return "null"
    return {bool: "boolean", str: "string", int: "integer", float: "number"}[type(value)]


def _members(table: dict[str, object], depth: int) -> Iterator[str]:
    for key, value in table.items():
        name = key if _BARE_KEY.fullmatch(key) else json.dumps(key[:60])
        yield f"{name}: {_shape(value, depth + 1)}"
