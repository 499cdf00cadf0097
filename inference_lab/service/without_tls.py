"""A process that offers no TLS runs without it, as Twisted does where pyOpenSSL is not installed."""

from __future__ import annotations

import sys
from typing import Final

_PLAIN: Final = ("tcp:", "tcp6:", "unix:", "systemd:")
"""Endpoints without TLS; what another one needs is for its author to know."""


def leave_tls_out(endpoint: str | None) -> None:
    """Keep pyOpenSSL and cryptography from being imported for an endpoint that needs neither.

    They are a tenth of the start and more. `endpoint` is a Twisted endpoint string, None for a plain TCP port. To be
    called before Twisted's reactor is imported, which takes what is there (twisted/internet/_newtls.py, endpoints.py).
    """
    if endpoint is None or endpoint.startswith(_PLAIN):
        sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type] # what makes an import of it fail
