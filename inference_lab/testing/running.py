"""A lab for as long as a block runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference_lab.testing.child import Child
from inference_lab.testing.current import CurrentTest
from inference_lab.testing.lab import InferenceLab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inference_lab.core.faults.incident import Incidents

CONFIG: Final = Path(__file__).with_name("model.toml")
"""What is served unless the options say otherwise."""


def serve_options(options: Sequence[str]) -> list[str]:
    """The options of `inference-lab serve` behind those that a test needs; a free port unless they name one."""
    port = () if any(_says_where(option) for option in options) else ("--port", "0")
    return ["--config", str(CONFIG), *port, "--enable-directives", *options]


def _says_where(option: str) -> bool:
    """Whether it is `--port` or `--endpoint`, cut short or not."""
    name = option.partition("=")[0]
    return len(name) > 2 and any(whole.startswith(name) for whole in ("--port", "--endpoint"))


@contextlib.contextmanager
def running_lab(*options: str, current: CurrentTest | None = None) -> Iterator[InferenceLab]:
    """A server in a child process on a free port; `options` are those of `inference-lab serve`.

    It serves one model, `lab`, unless `--config` says otherwise. It ends with the block, and with this process.

    Raises:
        ServerError: it does not start; the message is its reason.
    """
    given = serve_options(options)
    # A module of the tests' folder that is called as one of Python's is theirs (heeded since Python 3.11).
    child = Child([sys.executable, "-m", "inference_lab.testing.serve", *given], PYTHONSAFEPATH="1")
    try:
        url, *others = child.ready_urls()
        yield InferenceLab(url, current or CurrentTest(), lambda: _incidents(given), others)
    finally:
        child.stop()


def _incidents(options: list[str]) -> Incidents:
    """The incidents beside the config, which are modes too."""
    from inference_lab.config.incident_file import load_incidents  # noqa: PLC0415 - nothing is loaded before its use
    from inference_lab.tap import Options  # noqa: PLC0415

    parsed = Options()
    parsed.parseOptions(options)
    return load_incidents(Path(str(parsed["config"])))
