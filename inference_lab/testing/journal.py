"""The journal asked for what a test is about: the query, and what comes back."""

from __future__ import annotations

import json
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

Row: TypeAlias = dict[str, Any]
"""One request as the server saw it; docs/journal.md lists the keys."""

PATIENCE_S = 10.0
"""How long an answer may take beyond what it was asked to wait."""


def query(test: str | None, *, count: int, wait_s: float, filters: dict[str, object]) -> str:
    """The path to ask for.

    Raises:
        ValueError: no test to ask about.
    """
    if test is None and not filters:
        raise ValueError("no test to ask about: call fault() or prompt() first, or give test=…")
    asked = {} if test is None else {"test": test}
    return "/lab/journal?" + urlencode({**asked, "count": count, "wait": f"{wait_s:g}", **filters})


def rows(status: int, body: bytes) -> list[Row]:
    """The rows of an answer, oldest first.

    Raises:
        ValueError: the server has refused the question, with its reason.
    """
    answer = json.loads(body)
    if status != 200:
        raise ValueError(f"the journal says {status}: {answer['error']['message']}")
    data: list[Row] = answer["data"]
    return data


def fetch(url: str, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """GET, straight from the server whatever proxy the environment names; status and body.

    Raises:
        ValueError: the server is on a Unix socket.
    """
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415 - 30 ms, for whoever asks nothing

    address = urlsplit(url)
    host, port = address.hostname or "", address.port
    if address.scheme == "https":
        import ssl  # noqa: PLC0415 - as above

        # The server is ours, whatever its certificate says.
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=timeout_s, context=trusting)
    elif address.scheme == "http":
        connection = HTTPConnection(host, port, timeout=timeout_s)
    else:
        raise ValueError(f"the journal of a lab is asked for over TCP, not at {url}")
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
