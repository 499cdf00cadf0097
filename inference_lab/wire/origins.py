"""Whose pages may read and delete what the server has recorded: a browser sends requests for whoever wrote the page.

A page of another origin says so in `Origin`. One whose name has been made to point at this server (DNS rebinding) is of
the same origin to the browser, which then sends no `Origin` with a GET; but its name stands in `Host`.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from twisted.internet.address import IPv4Address, IPv6Address

from inference_lab.core.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twisted.internet.interfaces import IAddress

ANY: Final = "*"
ORIGIN: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::[0-9]{1,5})?")
"""What a browser sends: scheme, host, and the port unless it is the scheme's own."""

_GUARDED: Final = (b"/lab/", b"/metrics")
_SHOWN: Final = 80


def is_guarded(path: bytes) -> bool:
    """Whether a path (without escapes) reads or deletes the record."""
    return path.startswith(_GUARDED) or path == b"/lab"


class Origins:
    """The rule: `allowed` are origins whose pages may, `names` the hosts that the server was told to listen on."""

    def __init__(self, allowed: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._names = {name.lower() for name in names} | set(map(_name_of, self._allowed)) | {"localhost"}

    def refusal(self, origins: Sequence[bytes], hosts: Sequence[bytes], local: IAddress) -> ApiError | None:
        """Why a request with these headers, on a connection to `local`, is refused; None if it is not."""
        if ANY in self._allowed:
            return None
        host = b",".join(hosts).decode().lower()
        if origins:
            origin = b",".join(origins).decode(errors="backslashreplace").lower()
            if origin in self._allowed:
                return None
            if origin.partition("://")[2] != host or not self._is_ours(_name_of(origin)):
                return _foreign(f"a page of {origin[:_SHOWN]}", "its origin")
        elif host and _is_loopback(local) and not self._is_ours(name := _name_of(f"http://{host}")):
            return _foreign(f"who asks this machine under the name {name[:_SHOWN]!r}", "http://NAME")
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True  # a page at an address was served there

    def headers(self, origins: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
        """What an answer says about who may read it; the request has not been refused."""
        if ANY in self._allowed:
            return (("access-control-allow-origin", ANY),)
        vary = (("vary", "origin"),)
        if len(origins) != 1:
            return vary
        return (("access-control-allow-origin", origins[0].decode(errors="backslashreplace")), *vary)


def _foreign(who: str, what: str) -> ApiError:
    return ApiError(
        403, "foreign_origin", f"{who} may not read or delete the record: --allow-origin {what} lets it"
    )


def _name_of(origin: str) -> str:
    """The host of an origin, without port and brackets."""
    rest = origin.partition("://")[2]
    if rest.startswith("["):
        return rest[1:].partition("]")[0]
    return rest.partition(":")[0].removesuffix(".")


def _is_loopback(address: IAddress) -> bool:
    return (
        isinstance(address, (IPv4Address, IPv6Address))
        and ip_address(address.host.partition("%")[0]).is_loopback
    )
