"""Ids: of tests, and of responses, on the fault path a digest of the request: the same request gives the same bytes."""

from __future__ import annotations

import hashlib
import re
from typing import Final

FIXED_CREATED: Final = 1_700_000_000
"""`created` of every response that holds no clock (Unix seconds)."""

TEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The id of the test a request belongs to, in a header or a directive."""
TEST_ID_EXPECTED: Final = "1 to 64 letters, digits, dots, dashes and underscores"


def call_id(chat_id: str, index: int) -> str:
    """The id of tool call `index` of a chat response: the response's own digits, further calls numbered."""
    digits = chat_id.rpartition("-")[2]
    return f"call_{digits}_{index}" if index else f"call_{digits}"


def response_digits(endpoint: str, body: bytes, fault: str, request_id: bytes) -> str:
    """24 hex digits: BLAKE2b over endpoint, raw body, the fault's canonical text and x-request-id."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (endpoint.encode(), body, fault.encode(), request_id):
        digest.update(len(part).to_bytes(8, "big"))  # a length before it keeps neighbours apart
        digest.update(part)
    return digest.hexdigest()


def key_text(key: int) -> str:
    """A conversation's key as clients see it: 16 hex digits."""
    return f"{key:016x}"
