"""Record the transcripts in README.md, docs/{faults,journal,messages,responses}.md: a real server, the real curl.

    .venv-dev/bin/python docs/transcripts.py

A transcript stands between two markers, the first of which says what to run:

    <!-- transcript chat cut_between_frames;after_chunks=2 -->
    <!-- /transcript -->

The first word is `chat`, `leg`, `message` or `response`, the rest the fault header. Between the markers of a session,

    <!-- session -->
    <!-- /session -->

stand commands behind `$ `, which one shell runs in their order, with what they write behind each. The server runs a
config of its own, with no latency, so that nothing here changes when configs/ does.
tests/docs/test_documentation.py compares the files with a new recording.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference_lab.testing import running_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
FILES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("faults", "journal", "messages", "responses")),
)

_CHAT_BODY = (
    '{"model":"DeepSeek-V4-Flash","stream":true,"stream_options":{"include_usage":true},'
    '"messages":[{"role":"user","content":"hello"}],"max_tokens":16}'
)
_LEG_BODY = (
    '{"model":"DeepSeek-V4-Flash","prompt":[1,2,3,4],"stream":true,"priority":0,'
    '"stream_options":{"include_usage":true},"max_tokens":64}'
)
_MESSAGE_BODY = (
    '{"model":"DeepSeek-V4-Flash","max_tokens":16,"stream":true,'
    '"messages":[{"role":"user","content":"hello"}]}'
)
_RESPONSE_BODY = '{"model":"DeepSeek-V4-Flash","max_output_tokens":16,"stream":true,"input":"hello"}'
BODIES = {
    "chat": ("/v1/chat/completions", "BODY", _CHAT_BODY),
    "leg": ("/v1/completions", "LEG", _LEG_BODY),
    "message": ("/v1/messages", "MESSAGE", _MESSAGE_BODY),
    "response": ("/v1/responses", "RESPONSE", _RESPONSE_BODY),
}
"""What to post where, and the shell variable that holds it in the text."""

_CONFIG = 'model = "llama-3.1-8b-instruct"\nname = "DeepSeek-V4-Flash"\n[latency]\nttft_ms = 0\nitl_ms = 0\n'
_STALL_S = "2"
_BLOCK = re.compile(
    r"(?P<open><!-- transcript (?P<kind>[a-z]+) (?P<fault>\S+) -->\n).*?(?P<close><!-- /transcript -->)",
    re.DOTALL,
)
_SESSION: Final = re.compile(
    r"(?P<open><!-- session -->\n)```console\n(?P<text>.*?)```\n(?P<close><!-- /session -->)", re.DOTALL
)
_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
_MARK: Final = "\x1e"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a server that runs while the block does."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "model.toml"
        config.write_text(_CONFIG, encoding="utf-8")
        with running_lab("--config", str(config)) as lab:
            yield lab.url


def record(url: str, kind: str, fault: str) -> str:
    """One transcript: the command as a reader types it, what curl writes, how it exits."""
    path, variable, body = BODIES[kind]
    limit = ["--max-time", _STALL_S] if fault.startswith("stall") else []
    header = f"x-inference-lab-fault: {fault}"
    # Neither the reader's .curlrc nor a proxy may take part.
    command = ["curl", "-q", "--noproxy", "*", "-sN", *limit, url + path, "-H", header, "-d", body]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    typed = " ".join(["curl -sN", *limit, f'"$URL{path}"', f"-H '{header}'", f'-d "${variable}"'])
    output = done.stdout.decode("utf-8", "backslashreplace")
    if output.endswith("\n"):
        end = f"exit {done.returncode}"
    else:
        end = f"\nexit {done.returncode}, no line feed in front of it"
    return f"```console\n$ {typed}\n{output}{end}\n```\n"


def play(url: str, text: str) -> str:
    """A file's text with its sessions recorded anew, all in one shell that has `$URL`, `$GATEWAY` and our command."""
    commands = [command for block in _SESSION.finditer(text) for command in _COMMAND.findall(block["text"])]
    if not commands:
        return text
    ends = f"printf '\\n{_MARK}%s{_MARK}' $?"
    script = "\n".join(f"{command}\n{ends}" for command in commands)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {
        "PATH": path,
        "URL": url,
        "GATEWAY": url,
        "LC_ALL": "C.UTF-8",
        "no_proxy": "*",
        "HOME": os.devnull,
    }
    shell = ["bash", "--norc", "-o", "pipefail"]
    done = subprocess.run(
        shell, input=script.encode(), stdout=subprocess.PIPE, env=environment, timeout=60, check=True
    )
    said = done.stdout.decode("utf-8", "backslashreplace").split(_MARK)
    turns = zip(commands, said[::2], said[1::2], strict=False)

    def block(found: re.Match[str]) -> str:
        lines = []
        for command, output, status in islice(turns, len(_COMMAND.findall(found["text"]))):
            shown = output.removesuffix("\n").rstrip("\n")
            lines += [
                f"$ {command}",
                *([shown] if shown else []),
                *([f"exit {status}"] if status != "0" else []),
            ]
        return found["open"] + "```console\n" + "\n".join(lines) + "\n```\n" + found["close"]

    return _SESSION.sub(block, text)


def recorded(url: str, text: str) -> str:
    """A file's text with every transcript and session recorded anew."""

    def block(found: re.Match[str]) -> str:
        return found["open"] + record(url, found["kind"], found["fault"]) + found["close"]

    return play(url, _BLOCK.sub(block, text))


def main() -> None:
    """Rewrite the files."""
    with server() as url:
        for file in FILES:
            file.write_text(recorded(url, file.read_text(encoding="utf-8")), encoding="utf-8")
            sys.stdout.write(f"{os.path.relpath(file)}\n")


if __name__ == "__main__":
    main()
