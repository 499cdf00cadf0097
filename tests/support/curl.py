"""The real curl, bounded in time."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

JSON = ("-H", "content-type: application/json")


@dataclass(frozen=True, slots=True)
class Ran:
    """curl's exit code, what it wrote, and what it complained about."""

    code: int
    out: bytes
    complaint: str


def curl(*arguments: str, data: bytes | None = None, timeout: float = 30.0) -> Ran:
    """`curl -sSN` with more arguments; `data` goes through stdin."""
    command = ["curl", "-q", "-sSN", *arguments]
    if data is not None:
        command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=data or b"", capture_output=True, timeout=timeout, check=False)
    return Ran(done.returncode, done.stdout, done.stderr.decode())
