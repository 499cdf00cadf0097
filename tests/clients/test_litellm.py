"""LiteLLM's Router in its own environment: two rows of the table in docs/clients.md, and what it is trusted with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.clients.litellm_router import CONFIG, IS_SET_UP, WORDS, answers, rows, written
from tests.support.clients.meetings import FILE
from tests.support.server import start

if TYPE_CHECKING:
    from tests.support.clients.litellm_router import Answer

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not IS_SET_UP, reason="no .venv-litellm here: scripts/litellm --setup makes it"),
]
MET: Final = ("cut_between_frames", "reset")
HELD: Final = 3
"""Words before the death."""


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    config = tmp_path_factory.mktemp("litellm") / "lab.toml"
    config.write_text(CONFIG)
    server = start(config, "--enable-directives")
    try:
        return answers(server.url, MET)
    finally:
        server.stop()


def test_the_router_makes_of_a_death_what_the_document_says(met: dict[str, list[Answer]]) -> None:
    then = written(FILE.read_text(encoding="utf-8"))
    missing = [row for row in rows(met) if row not in then]
    if missing:
        pytest.fail("\n".join(["docs/clients.md is out of date: scripts/litellm", *missing]), pytrace=False)


@pytest.mark.parametrize("name", MET)
def test_a_stream_that_is_continued_brings_every_word_once(met: dict[str, list[Answer]], name: str) -> None:
    passed_on, continued, limited = met[name]
    assert passed_on.end != "ends"
    assert passed_on.verdict.outcome == "honest prefix"
    for answer in (continued, limited):
        kinds = {finding.kind.value for finding in answer.verdict.findings}
        assert kinds <= {"usage_words", "silent_truncation"}, (
            "no word is wrong, only how many they are said to be"
        )
    assert continued.verdict.words == {"text": WORDS}


@pytest.mark.parametrize("name", MET)
def test_a_leg_goes_on_where_the_dead_one_ended_and_under_a_limit_too_low(
    met: dict[str, list[Answer]], name: str
) -> None:
    passed_on, continued, limited = ([_asked(leg) for leg in answer.asked["legs"]] for answer in met[name])
    assert passed_on == [(0, None)]
    assert continued == [(0, None), (HELD, None)]
    (first, (progress, limit)) = limited
    assert (first, progress) == ((0, WORDS), HELD)
    assert limit < WORDS - HELD
    for answer in met[name]:
        assert (answer.asked["findings"], answer.asked["notes"]) == ([], []), (
            "also none of them is rerendered"
        )


def _asked(leg: dict[str, Any]) -> tuple[int, int | None]:
    return leg["progress"], leg["max_tokens"]
