"""The server's settings: option strings judged once, all in one place, into a frozen value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
_BACKLOG: Final = 1024


class StartError(Exception):
    """Why the server cannot start: one line that names what is wrong, where, and what would be right."""


class Settings(msgspec.Struct, frozen=True):
    """Everything `serve` can be told. `endpoint` is a Twisted endpoint string."""

    config: str
    hardware: str | None
    endpoint: str
    directives: bool
    flush_grace_ms: int
    linger_s: float
    reader_timeout_s: float
    max_body_bytes: int
    speed: float


def settings_from(options: Mapping[str, object]) -> Settings:
    """Judge the option strings.

    Raises:
        StartError: an option whose value cannot be honoured.
    """
    return Settings(
        config=str(options["config"]),
        hardware=_optional(options, "hardware"),
        endpoint=_endpoint(options),
        directives=bool(options["enable-directives"]),
        flush_grace_ms=_integer(options, "flush-grace-ms", 0, 60_000),
        linger_s=_number(options, "linger-s"),
        reader_timeout_s=_number(options, "reader-timeout-s"),
        max_body_bytes=_integer(options, "max-body-bytes", 1, 2**31 - 1),
        speed=_number(options, "speed"),
    )


def _optional(options: Mapping[str, object], name: str) -> str | None:
    value = options[name]
    return None if value is None else str(value)


def _endpoint(options: Mapping[str, object]) -> str:
    endpoint = _optional(options, "endpoint")
    host = _optional(options, "host")
    if endpoint is not None:
        for name in ("host", "port"):
            if options[name] is not None:
                raise StartError(f"--endpoint and --{name} were both given: leave one out")
        return endpoint
    port = DEFAULT_PORT if options["port"] is None else _integer(options, "port", 0, 65_535)
    host = DEFAULT_HOST if host is None else host
    # In an endpoint string a colon ends an argument; in an IPv6 address it is escaped.
    kind, interface = ("tcp6", host.replace(":", "\\:")) if ":" in host else ("tcp", host)
    return f"{kind}:{port}:interface={interface}:backlog={_BACKLOG}"


def _integer(options: Mapping[str, object], name: str, least: int, most: int) -> int:
    text = str(options[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise StartError(f"--{name} {text}: expected an integer from {least} to {most}")
    return int(text)


def _number(options: Mapping[str, object], name: str) -> float:
    text = str(options[name])
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e9:  # false for NaN too
        raise StartError(f"--{name} {text}: expected a number above 0, at most 1e9")
    return value
