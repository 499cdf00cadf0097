"""LiteLLM's Router against legs that die: `verify` judges what its caller received, the journal what it asked for.

It lives in an environment of its own, which `scripts/litellm` makes; the cases go there in one child process. The table
in docs/clients.md is recorded from here by `docs/clients.py --litellm`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from inference_lab.core.faults.modes import MODES
from inference_lab.core.oracle import Ended, Verdict, verify
from tests.support.clients import meetings
from tests.support.clients.meetings import is_whole, row
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ROOT: Final = ROOT
_HERE: Final = ROOT / "tests" / "clients" / "litellm"
_ENVIRONMENT: Final = _ROOT / ".venv-litellm"
IS_SET_UP: Final = (_ENVIRONMENT / "stamp").exists()
"""Whether LiteLLM's environment is there, and whole."""
WORDS: Final = 20
"""Words of a whole answer."""
CONFIG: Final = f"{meetings.CONFIG}[answer]\ntokens = {WORDS}\n"

_LISTS: Final = {
    **{
        mode: f"{mode}, ok"
        for mode in (
            *(
                "cut_between_frames",
                "cut_mid_frame",
                "reset",
                "stall",
                "error_envelope_200",
                "error_400_in_sse",
            ),
            *("no_done", "no_usage", "cancelled_499", "mid_reasoning", "mid_tool_call"),
            *("clean_eof", "done_without_finish", "fake_stop", "abort_finish"),
        )
    },
    "echo_overlap": "cut_between_frames;after_chunks=5, echo_overlap",
    "echo_restart": "cut_between_frames;after_chunks=5, echo_restart",
    "two deaths": "cut_between_frames;after_chunks=5, reset;after_chunks=4, ok",
}
"""What each row of the table kills the legs with."""

_WAYS: Final[Mapping[str, tuple[bool, int | None]]] = {
    "by default": (False, None),
    "continuing": (True, None),
    f"continuing, `max_tokens` {WORDS}": (True, WORDS),
}
"""How the Router is asked: whether it continues in mid-stream, and for how many tokens."""

_BLOCK: Final = re.compile(r"(?P<open><!-- litellm -->\n).*?(?P<close><!-- /litellm -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller received and how it ended; `words` is how many there are in the whole answer.

    `asked` is the server's verdict over the legs, one value of `GET /lab/verdict`.
    """

    chunks: tuple[Mapping[str, Any], ...]
    end: str
    words: int
    asked: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """The chunks as a gateway would send them on, judged; a loop that is over is a clean end."""
        stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in self.chunks)
        ended: Ended = "clean" if self.end == "ends" else "broken"
        return verify(stream, tokens=self.words, ended=ended)

    def cell(self) -> str:
        """The end, what came and the verdict, then the legs as the journal has them."""
        verdict = self.verdict
        kinds = _listed(finding.kind.value for finding in verdict.findings)
        told = f"**wrong**: {kinds}" if kinds else verdict.outcome
        return f"{self.end}: {sum(verdict.words.values())} words, {told}; {self._legs()}"

    def _legs(self) -> str:
        """From which word each leg goes on and under which limit, and what is to be said of them."""
        legs = self.asked["legs"]
        told = f"leg{'s' * (len(legs) > 1)} at {' and '.join(str(leg['progress']) for leg in legs)}"
        if legs[0]["max_tokens"] is not None:
            told += f", `max_tokens` {' and '.join(str(leg['max_tokens']) for leg in legs)}"
        if notes := _listed(note["kind"] for note in self.asked["notes"]):
            told += f", {notes}"
        if kinds := _listed(finding["kind"] for finding in self.asked["findings"]):
            told += f", **wrong**: {kinds}"
        return told


def _listed(kinds: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(f"`{kind}`" for kind in kinds))


def answers(url: str, names: Iterable[str]) -> dict[str, list[Answer]]:
    """The answers to the rows of these names, one for each way to ask, from one child process."""
    asked = [(name, way) for name in names for way in _WAYS]
    cases = [
        {"url": url, "content": _prompt(name, way), "continues": continues, "max_tokens": tokens}
        for name, way in asked
        for continues, tokens in (_WAYS[way],)
    ]
    done = subprocess.run(
        [_ENVIRONMENT / "bin" / "python", "-I", _HERE / "consumer.py"],
        input=json.dumps(cases).encode(),
        capture_output=True,
        env={
            "PATH": os.defpath,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # Whatever else it might want to fetch or report meets a proxy that is not there.
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
            "NO_PROXY": "127.0.0.1",
        },
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"LiteLLM's process ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    answered: dict[str, list[Answer]] = {}
    for (name, way), one in zip(asked, json.loads(done.stdout), strict=True):
        answer = Answer(tuple(one["chunks"]), one["end"], _words(name), _verdict(url, _test(name, way)))
        answered.setdefault(name, []).append(answer)
    return answered


def _test(name: str, way: str) -> str:
    """The id of a case's test; it stands in the prompt, and so decides the words: the same in every run."""
    return f"litellm.{name.replace(' ', '_')}.{list(_WAYS).index(way)}"


def _prompt(name: str, way: str) -> str:
    first, *others = _LISTS[name].split(", ")
    return f"hello <<fault:{', '.join([f'{first};test={_test(name, way)}', *others])}>>"


def _verdict(url: str, test: str) -> Mapping[str, Any]:
    """The server's verdict over the legs of a test, which are those of one conversation."""
    answer = httpx.get(f"{url}/lab/verdict", params={"test": test}, trust_env=False)
    conversation: Mapping[str, Any]
    (conversation,) = answer.raise_for_status().json()["data"]
    return conversation


def _words(name: str) -> int:
    """The words of a row's whole answer: a mode that ends well on its own account has said all there is."""
    death = MODES[name].death if name in MODES else None
    return int(death.after_chunks) if death is not None and is_whole(death) else WORDS


def rows(met: Mapping[str, list[Answer]]) -> Iterator[str]:
    """The rows of the table."""
    for name, row_answers in met.items():
        yield row([f"`{_LISTS[name]}`", *(answer.cell() for answer in row_answers)])


def recorded(url: str, text: str) -> str:
    """The document with its table recorded anew."""
    head = ["the legs", *_WAYS]
    lines = [f"Recorded with litellm {_version()}.", "", row(head), row(["---"] * len(head))]
    block = "".join(f"{line}\n" for line in (*lines, *rows(answers(url, _LISTS))))
    return _BLOCK.sub(lambda found: found["open"] + block + found["close"], text)


def written(text: str) -> list[str]:
    """The rows of the document."""
    block = _BLOCK.search(text)
    return re.findall(r"^\| `.*", block.group(), re.MULTILINE) if block else []


def _version() -> str:
    pinned = re.search(r"^litellm==(\S+)", (_HERE / "requirements.txt").read_text(), re.MULTILINE)
    return pinned[1] if pinned else "unknown"
