"""A process that offers no TLS runs without it, as Twisted does where pyOpenSSL is not installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = ("tcp:", "tcp6:", "unix:", "systemd:")
"""Endpoints without TLS; what another one needs is for its author to know."""


def leave_tls_out(endpoints: Sequence[str]) -> None:
    """Keep pyOpenSSL and cryptography from being imported for endpoints that need neither.

    They are a tenth of the start and more. `endpoints` are Twisted endpoint strings, none for plain TCP ports. To be
    called before Twisted's reactor is imported, which takes what is there (twisted/internet/_newtls.py, endpoints.py).
    """
    if all(endpoint.startswith(_PLAIN) for endpoint in endpoints):
        sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type] # what makes an import of it fail
