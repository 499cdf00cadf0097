"""The server's settings: option strings judged once, all in one place, into a frozen value."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.console import UserError
from inference_lab.wire.origins import ANY, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
BACKLOG: Final = 1024

_ENDS: Final = re.compile(r"(?<!\\):")
"""What ends an argument of an endpoint string: a colon that is not escaped."""


class Settings(msgspec.Struct, frozen=True):
    """Everything `serve` can be told. `endpoints` are Twisted endpoint strings, one at least."""

    config: str
    hardware: str | None
    models: tuple[str, ...]
    """Names and aliases of those to serve; none: all."""
    endpoints: tuple[str, ...]
    directives: bool
    allow_origins: tuple[str, ...]
    """Whose pages may read and delete the record, beside the server's own; `*`: all."""
    flush_grace_ms: int
    linger_s: float
    reader_timeout_s: float
    max_body_bytes: int
    max_bodies_bytes: int | None
    """Of all requests of a process that are not answered yet; None: some, and no fewer than one may have."""
    request_timeout_s: float
    speed: float
    max_streams: int | None
    drain_s: float
    workers: int
    journal: str | None
    journal_rows: int
    journal_age_s: float
    log_format: str
    addresses: tuple[tuple[str, int], ...]
    """Host and port of each, where no endpoint string was given: what several processes can share."""

    @property
    def host_names(self) -> tuple[str, ...]:
        """What the server was told to listen on, as far as names and addresses go."""
        interfaces = (
            argument.partition("=")[2].replace("\\:", ":")
            for endpoint in self.endpoints
            for argument in _ENDS.split(endpoint)
            if argument.startswith("interface=")
        )
        return tuple(filter(None, interfaces))

    @property
    def records(self) -> bool:
        """Whether there is a journal."""
        return self.directives or self.journal is not None


def settings_from(options: Mapping[str, object]) -> Settings:
    """Judge the option strings.

    Raises:
        UserError: an option whose value cannot be honoured.
    """
    addresses = _addresses(options)
    workers = _integer(options, "workers", 1, 256)
    if workers > 1 and not addresses:
        raise UserError(
            f"--workers {workers}: workers share --host and --port, they cannot share an --endpoint"
        )
    return Settings(
        config=str(options["config"]),
        hardware=_optional(options, "hardware"),
        models=_each(options, "model"),
        endpoints=tuple(_endpoint(*address) for address in addresses)
        or tuple(map(_own, _each(options, "endpoint"))),
        directives=bool(options["enable-directives"]),
        allow_origins=tuple(map(_origin, _each(options, "allow-origin"))),
        flush_grace_ms=_integer(options, "flush-grace-ms", 0, 60_000),
        linger_s=_number(options, "linger-s"),
        reader_timeout_s=_number(options, "reader-timeout-s"),
        max_body_bytes=_integer(options, "max-body-bytes", 1, 2**31 - 1),
        max_bodies_bytes=_bodies(options),
        request_timeout_s=_number(options, "request-timeout-s"),
        speed=_number(options, "speed"),
        max_streams=None
        if options["max-streams"] is None
        else _integer(options, "max-streams", 1, 2**31 - 1),
        drain_s=_number(options, "drain-s", zero=True),
        workers=workers,
        journal=_optional(options, "journal"),
        journal_rows=_integer(options, "journal-rows", 1, 10_000_000),
        journal_age_s=_number(options, "journal-age-s"),
        log_format=_word(options, "log-format", ("text", "json")),
        addresses=addresses,
    )


def _bodies(options: Mapping[str, object]) -> int | None:
    if options["max-bodies-bytes"] is None:
        return None
    limit = _integer(options, "max-bodies-bytes", 1, 2**40)
    if limit < _integer(options, "max-body-bytes", 1, 2**31 - 1):
        raise UserError(
            f"--max-bodies-bytes {limit}: expected --max-body-bytes at least, or one such body would be too many"
        )
    return limit


def _optional(options: Mapping[str, object], name: str) -> str | None:
    value = options[name]
    return None if value is None else str(value)


def _each(options: Mapping[str, object], name: str) -> tuple[str, ...]:
    """What a repeatable option was given, in order."""
    value = options[name]
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _addresses(options: Mapping[str, object]) -> tuple[tuple[str, int], ...]:
    if _each(options, "endpoint"):
        for name in ("host", "port"):
            if options[name] is not None:
                raise UserError(f"--endpoint and --{name} were both given: leave one out")
        return ()
    texts = _each(options, "port") or (str(DEFAULT_PORT),)
    ports = [_integer({"port": text}, "port", 0, 65_535) for text in texts]
    for port in ports:
        if port and ports.count(port) > 1:
            raise UserError(f"--port {port} was given twice: leave one out")
    host = _optional(options, "host")
    return tuple((DEFAULT_HOST if host is None else host, port) for port in ports)


def _origin(text: str) -> str:
    if text != ANY and not ORIGIN.fullmatch(text):
        raise UserError(f"--allow-origin {text}: expected * or an origin such as http://localhost:3000")
    return text


def _own(endpoint: str) -> str:
    """A Unix socket for its user alone, unless the string has a `mode`; Twisted's own default is everybody."""
    kind, *others = _ENDS.split(endpoint)
    has_mode = any(other.startswith("mode=") for other in others) or (
        len(others) > 1 and "=" not in others[1]
    )
    return endpoint if kind != "unix" or not others or has_mode else f"{endpoint}:mode=600"


def _endpoint(host: str, port: int) -> str:
    # In an endpoint string a colon ends an argument; in an IPv6 address it is escaped.
    kind, interface = ("tcp6", host.replace(":", "\\:")) if ":" in host else ("tcp", host)
    return f"{kind}:{port}:interface={interface}:backlog={BACKLOG}"


def _word(options: Mapping[str, object], name: str, words: tuple[str, ...]) -> str:
    text = str(options[name])
    if text not in words:
        raise UserError(f"--{name} {text}: expected {' or '.join(words)}")
    return text


def _integer(options: Mapping[str, object], name: str, least: int, most: int) -> int:
    text = str(options[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise UserError(f"--{name} {text}: expected an integer from {least} to {most}")
    return int(text)


def _number(options: Mapping[str, object], name: str, *, zero: bool = False) -> float:
    text = str(options[name])
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (1e-9 <= value <= 1e9 or (zero and value == 0)):  # false for NaN too
        raise UserError(f"--{name} {text}: expected {'0 or ' if zero else ''}a number from 1e-9 to 1e9")
    return value
