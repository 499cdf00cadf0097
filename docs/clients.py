"""Record the tables in docs/clients.md: a real server, and the clients of tests/clients/.

    .venv-dev/bin/python docs/clients.py
    .venv-dev/bin/python docs/clients.py --nginx
    scripts/litellm

The last makes LiteLLM's environment if needed, and runs this with `--litellm`. tests/clients/test_clients.py and
test_nginx.py compare their tables with a new recording, test_litellm.py two rows of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.clients import litellm_router, meetings, nginx_proxy
from tests.support.server import CONSOLE, start


def main() -> None:
    """Rewrite the file."""
    tables = {"--litellm": litellm_router, "--nginx": nginx_proxy}
    table = tables[sys.argv[1]] if sys.argv[1:] else meetings
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "lab.toml"
        config.write_text(table.CONFIG, encoding="utf-8")
        server = start(config, "--enable-directives", how=CONSOLE)
        try:
            text = table.recorded(server.url, meetings.FILE.read_text(encoding="utf-8"))
        finally:
            server.stop()
    meetings.FILE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{os.path.relpath(meetings.FILE)}\n")


if __name__ == "__main__":
    main()
