"""`inference-lab serve` for a test run: it ends with its standard input, so that it never outlives whoever started it.

Run by `child.py` alone, as `python -m inference_lab.testing.serve OPTIONS`.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Serve until the standard input ends."""
    # Ctrl-C goes to the whole foreground group; the tests that it ends may still ask something on their way out.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    from inference_lab.cli import main as command  # noqa: PLC0415
    from inference_lab.service.process import ParentWatch  # noqa: PLC0415

    def hold() -> None:
        ParentWatch(reactor).ended.addCallback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    reactor.callWhenRunning(hold)
    sys.argv.insert(1, "serve")
    command()


if __name__ == "__main__":
    main()
