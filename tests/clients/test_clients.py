"""Real clients against every mode: what docs/clients.md says of them, and what they can be relied on for."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.faults.death import ALL
from inference_lab.core.faults.leg_keys import leg_key
from inference_lab.core.faults.modes import MODES, OK
from tests.support.clients.libraries import CLIENTS
from tests.support.clients.meetings import FILE, SAID, TOKENS, Meeting, meet, meet_everywhere, rows, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.faults.death import Death

pytestmark = pytest.mark.clients

HINT: Final = "record it: .venv-dev/bin/python docs/clients.py"
WRITTEN: Final = written(FILE.read_text(encoding="utf-8"))

CLEAN: Final = ("ends", "ends", "ends", "exit 0")
CUT: Final = (
    "httpx.RemoteProtocolError",
    "aiohttp.ClientPayloadError",
    "requests.ChunkedEncodingError",
    "exit 18",
)
ENDS: Final = {
    "terminator": CLEAN,
    "terminator_rst": CLEAN,
    "fin": CUT,
    "fin_close": CUT,
    "rst": ("httpx.ReadError", *CUT[1:3], "exit 56"),
    "hang": ("httpx.ReadTimeout", "aiohttp.SocketTimeoutError", "requests.ConnectionError", "exit 28"),
    "stale": ("httpx.TransportError", "aiohttp.ClientConnectionError", "requests.ConnectionError", "exit 0"),
}
"""By the stream's close alone: how httpx, aiohttp, requests and curl say it ended."""
STATUS: Final = ("httpx.HTTPStatusError", "aiohttp.ClientResponseError", "requests.HTTPError", "exit 0")
"""The same for a status that is no success."""
REUSING: Final = ("httpx", "aiohttp", "requests")
"""Clients that send the second request on a connection that has gone stale, and do not try again."""


@pytest.fixture(scope="session")
def meetings(url: str) -> Callable[[str], dict[str, Meeting]]:
    """A mode's meetings, held once."""
    return cache(lambda mode: meet_everywhere(url, mode))


def sent(death: Death) -> int:
    """How many content frames a mode promises."""
    if (death.status, death.answer_as, death.at) != (200, "asked", "frames"):
        return 0
    return TOKENS if death.after_chunks == ALL or death.then == "rest" else int(death.after_chunks)


def begins(death: Death) -> int:
    """The number of the first word that a mode sends."""
    if leg_key(death) is None or death.restart:
        return 0
    return len(SAID.split()) - death.overlap + death.skip


def test_the_document_has_the_modes_that_there_are_in_their_order() -> None:
    if list(WRITTEN) != list(MODES):
        missing = ", ".join(sorted(MODES.keys() ^ WRITTEN.keys())) or "their order"
        pytest.fail(
            f"docs/clients.md does not have the modes of the table ({missing}); {HINT}", pytrace=False
        )


@pytest.mark.parametrize("mode", MODES)
def test_the_clients_make_of_a_mode_what_the_document_says(
    mode: str, meetings: Callable[[str], dict[str, Meeting]]
) -> None:
    now, then = rows(mode, meetings(mode)), WRITTEN.get(mode, [])
    if now != then:
        lines = "\n".join([f"docs/clients.md is out of date on {mode}; {HINT}", *then, "is now", *now])
        pytest.fail(lines if then else f"docs/clients.md has no row for {mode}; {HINT}", pytrace=False)


@pytest.mark.parametrize("mode", MODES)
def test_no_client_loses_or_repeats_a_frame_that_was_sent_before_the_death(
    mode: str, meetings: Callable[[str], dict[str, Meeting]]
) -> None:
    death = MODES[mode].death
    for endpoint, meeting in meetings(mode).items():
        for client, observation in meeting.observed.items():
            frames = 0 if death.close == "stale" and client in REUSING else sent(death)
            assert observation.frames.total() == frames, (endpoint, client)
            words = observation.words()
            assert words == list(range(begins(death), begins(death) + len(words))), (endpoint, client)
            assert len(words) >= frames - 1, (endpoint, client)  # a call's first frame may hold its name only


@pytest.mark.parametrize("mode", MODES)
def test_what_an_http_client_says_of_the_end_depends_on_the_connection_alone(
    mode: str, meetings: Callable[[str], dict[str, Meeting]]
) -> None:
    death = MODES[mode].death
    expected = ENDS[str(death.close)] if death.status < 400 else STATUS
    for endpoint, meeting in meetings(mode).items():
        ends = tuple(meeting.observed[client].end for client in CLIENTS if client != "openai")
        assert ends == expected, endpoint


@pytest.mark.parametrize("mode", MODES)
def test_the_sdk_raises_for_a_death_in_mid_stream_and_for_an_error_under_that_key_and_for_nothing_else(
    mode: str, meetings: Callable[[str], dict[str, Meeting]]
) -> None:
    for endpoint, meeting in meetings(mode).items():
        raw, sdk = meeting.observed["curl"], meeting.observed["openai"]
        dies = raw.end != "exit 0" and not raw.done
        assert (sdk.end != "ends") == (dies or sdk.strange < raw.strange or meeting.death.status >= 400), (
            endpoint
        )
        assert sdk.finish == raw.finish, endpoint


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_client_reads_the_whole_answer_in_every_dialect(dialect: str, endpoint: str, url: str) -> None:
    for client, observation in meet(url, OK, endpoint, f"dialect={dialect}").observed.items():
        assert observation.words() == list(range(TOKENS)), client
        assert observation.seen(done=False) == f"{TOKENS} text, `length`, usage", client
        assert observation.end in {"ends", "exit 0"}, client
