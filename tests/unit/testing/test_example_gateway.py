"""The gateway of the examples, mended, as a real client: what its own client has, and what it has asked for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from inference_lab.core.oracle import Usage, verify
from tests.reference_model.contract import MODES
from tests.support.example_gateway import GATEWAY, mended

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.oracle import Verdict
    from inference_lab.testing import InferenceLab

CHAT = "/v1/chat/completions"
SILENCE_S = 1.1
WORDS, CALL_WORDS = 48, 16
RESUMED = [mode for mode in MODES if mode not in {"no_done", "no_usage"}]
LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    asked: dict[str, Any]

    def judged(self, **known: Any) -> Verdict:
        """The oracle's verdict, told all that a client knows."""
        wants_usage = self.asked.get("stream_options", {}).get("include_usage")
        usage: Usage = "asked" if wants_usage and known.pop("usage", True) else "not"
        return verify(self.body, ended="clean", status=self.status, stream=True, usage=usage, **known)

    @property
    def usage(self) -> dict[str, int] | None:
        frames = [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: {")]
        return next((frame["usage"] for frame in frames if frame.get("usage")), None)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The example, mended; it gives up on silence after `SILENCE_S`."""
    file = tmp_path_factory.mktemp("gateway") / "mended_gateway.py"
    file.write_text(mended((GATEWAY / "gateway.py").read_text(encoding="utf-8")), encoding="utf-8")
    spec = spec_from_file_location("mended_gateway", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda upstream: module.gateway(upstream, silence_s=SILENCE_S)


@pytest.fixture
def ask(inference_lab: InferenceLab, gateway: Callable[[str], Any]) -> Callable[..., Answer]:
    """Ask the gateway for an answer that dies as `fault` says; the client leaves behind so many `lines`, if any."""

    def run(fault: str, *, lines: int | None = None, **body: object) -> Answer:
        message = inference_lab.prompt("hello", fault=fault)
        return asyncio.run(through({"model": "lab", "stream": True, "messages": [message], **body}, lines))

    async def through(body: dict[str, Any], lines: int | None) -> Answer:
        # What the gateway still does behind its client's back it has done when it is closed.
        async with TestServer(gateway(inference_lab.url)) as server, ClientSession() as client:
            async with client.post(server.make_url(CHAT), json=body) as answer:
                if lines is None:
                    return Answer(answer.status, dict(answer.headers), await answer.read(), body)
                for _ in range(lines):
                    await answer.content.readline()
                answer.close()
            await asyncio.to_thread(inference_lab.journal)
            return Answer(answer.status, {}, b"", body)

    return run


@pytest.fixture
def verdict(inference_lab: InferenceLab) -> Callable[[], dict[str, Any]]:
    """The verdict over what the gateway asked for, once as many requests have ended as it made."""

    def fetch() -> dict[str, Any]:
        got = httpx.get(
            f"{inference_lab.url}/lab/verdict", params={"test": inference_lab.test}, trust_env=False
        )
        (conversation,) = got.json()["data"]
        return dict(conversation)

    return fetch


def words_of(mode: str, chunks: int) -> dict[str, int]:
    """The words of the whole answer, the deaths of `mode` behind so many frames survived."""
    if mode == "mid_reasoning":
        return {"reasoning": chunks, "text": WORDS}
    return {"call": CALL_WORDS} if mode == "mid_tool_call" else {"text": WORDS}


@pytest.mark.parametrize("usage", [False, True], ids=["", "usage"])
@pytest.mark.parametrize("chunks", [1, 2, 9])
@pytest.mark.parametrize("mode", RESUMED)
def test_no_basic_mode_shows_and_no_leg_is_asked_for_wrongly(
    ask: Callable[..., Answer],
    verdict: Callable[[], dict[str, Any]],
    mode: str,
    chunks: int,
    *,
    usage: bool,
) -> None:
    answer = ask(f"{mode};after_chunks={chunks}", stream_options={"include_usage": usage})
    words = words_of(mode, chunks)
    received = answer.judged(tokens=sum(words.values()))
    assert received.is_whole, str(received)
    assert received.words == words
    assert (answer.usage is not None) == usage
    asked = verdict()
    # A call that was announced, and no more, has no word that would tell the next leg from the first.
    legs = 3 if (mode, chunks) == ("mid_tool_call", 1) else 2
    assert (asked["end"], asked["findings"], len(asked["legs"])) == ("whole", [], legs)


@pytest.mark.parametrize("mode", ["no_done", "no_usage"])
def test_what_ends_without_its_trailer_is_not_asked_for_again(
    ask: Callable[..., Answer],
    verdict: Callable[[], dict[str, Any]],
    mode: str,
) -> None:
    answer = ask(mode, stream_options={"include_usage": True})
    received = answer.judged(tokens=3, usage=mode != "no_usage")
    assert received.is_whole, str(received)
    asked = verdict()
    assert (asked["end"], asked["findings"], len(asked["legs"])) == ("whole", [], 1)


@pytest.mark.parametrize(
    ("fault", "legs"),
    [
        ("cut_between_frames;after_chunks=5, reset;after_chunks=1, error_400_in_sse;after_chunks=7", 4),
        ("mid_reasoning;after_chunks=2, mid_reasoning;after_chunks=3, cut_mid_frame;after_chunks=2", 4),
        (
            "mid_tool_call;after_chunks=3, mid_tool_call;after_chunks=2, reset;content=tool_call;after_chunks=4",
            4,
        ),
        ("cut_mid_frame;after_chunks=7;utf8=true, cut_mid_frame;after_chunks=8;utf8=true", 3),
        ("clean_eof, done_without_finish, abort_finish, torn_frame_clean", 5),
        ("cut_between_frames;malformed=true", 2),
        ("reset;empty_finish=true", 2),
        ("ok;sequence=choices_null", 1),
        ("ok;sequence=choices_empty", 1),
        ("slow_but_alive;heartbeat=event;heartbeat_ms=100;beats=3", 1),
        ("ok;at=head;close=fin;times=1, ok;at=request;close=rst;times=1, reset", 4),
    ],
)
def test_deaths_one_after_the_other_do_not_show_either(
    ask: Callable[..., Answer],
    verdict: Callable[[], dict[str, Any]],
    fault: str,
    legs: int,
) -> None:
    received = ask(fault, stream_options={"include_usage": True}).judged()
    assert received.is_whole, str(received)
    asked = verdict()
    assert (asked["end"], asked["findings"], len(asked["legs"])) == ("whole", [], legs)


def test_signs_of_life_are_no_content(
    ask: Callable[..., Answer], verdict: Callable[[], dict[str, Any]]
) -> None:
    answer = ask("heartbeat_stall;heartbeat_ms=200")
    assert answer.judged(tokens=WORDS).is_whole
    asked = verdict()
    assert asked["findings"] == []
    assert [note["kind"] for note in asked["notes"]] == ["gave_up_on_silence"]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("fault", ["reset;after_chunks=5", "reset;after_chunks=5, stall;after_chunks=5"])
def test_a_leg_is_asked_for_what_is_left_of_the_limit(
    ask: Callable[..., Answer],
    verdict: Callable[[], dict[str, Any]],
    fault: str,
    limit: str,
) -> None:
    answer = ask(fault, stream_options={"include_usage": True}, **{limit: 20})
    received = answer.judged(tokens=20)
    assert received.is_whole, str(received)
    assert received.finish == "length"
    legs = verdict()["legs"]
    assert [leg["max_tokens"] for leg in legs] == [20, 15, 10][: len(legs)]


def test_behind_its_last_token_only_the_end_of_an_answer_is_made_up(
    ask: Callable[..., Answer], verdict: Callable[[], dict[str, Any]]
) -> None:
    answer = ask("reset;after_chunks=5", stream_options={"include_usage": True}, max_tokens=5)
    received = answer.judged(tokens=5)
    assert received.is_whole, str(received)
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 5
    assert len(verdict()["legs"]) == 1


def test_the_usage_of_a_spliced_answer_is_that_of_a_whole_one(ask: Callable[..., Answer]) -> None:
    asked = {"stream_options": {"include_usage": True}}
    spliced = ask('reset;after_chunks=5;name="same length"', **asked)
    assert spliced.usage == ask('ok;after_chunks=all;name="same length"', **asked).usage


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("ok;status=429;retry_after=7", 429, "application/json"),
        ("bad_gateway_html", 502, "text/html"),
        ("json_200", 200, "application/json"),
    ],
)
def test_what_is_no_stream_goes_to_the_client_as_it_is(
    inference_lab: InferenceLab, ask: Callable[..., Answer], fault: str, status: int, kind: str
) -> None:
    answer = ask(fault)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (status, kind)
    assert answer.headers.get("Retry-After") == ("7" if status == 429 else None)
    assert len(inference_lab.journal()) == 1


def test_a_request_without_a_stream_is_passed_on(ask: Callable[..., Answer]) -> None:
    answer = ask("ok", stream=False)
    assert verify(answer.body, tokens=WORDS).is_whole


def test_a_refused_leg_is_an_error_that_the_client_sees(ask: Callable[..., Answer]) -> None:
    received = ask("reset;after_chunks=5, ok;status=429;times=1").judged()
    assert received.is_honest_prefix, str(received)
    assert received.words == {"text": 5}


def test_an_answer_that_dies_at_every_leg_ends_in_an_error(
    ask: Callable[..., Answer], verdict: Callable[[], dict[str, Any]]
) -> None:
    received = ask("reset, reset, reset, reset, reset, reset").judged()
    assert received.is_honest_prefix, str(received)
    asked = verdict()
    assert (asked["end"], asked["findings"], len(asked["legs"])) == ("dead", [], 5)
    assert ask("ok;at=request;close=rst;times=9, ok").status == 502


@pytest.mark.parametrize("fault", ["ok;delay_ms=100", "stall", "reset;after_chunks=20;delay_ms=50"])
def test_once_its_client_has_left_no_leg_is_asked_for(
    inference_lab: InferenceLab,
    ask: Callable[..., Answer],
    verdict: Callable[[], dict[str, Any]],
    fault: str,
) -> None:
    ask(fault, lines=4)
    assert len(verdict()["legs"]) == 1
    (row,) = inference_lab.journal()
    assert row["ending"] == "client_left"
