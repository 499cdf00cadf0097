"""What this server writes is right to the oracle: healthy in every spelling, and dead, but honestly so."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.death import AXES
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.faults.modes import MODES
from inference_lab.core.oracle import Kind, verify
from inference_lab.core.stream.events import Frame
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.axes_scripts import script_of
from tests.support.lab import MODEL, MemoryLab, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference_lab.core.faults.death import Death
    from inference_lab.core.oracle import Verdict

OWN: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "p266"}]},
    COMPLETIONS: {"prompt": "p266"},
}
WORDS = 9

SPELLINGS = (
    *("eol=crlf", "eol=cr", "space=false", "multiline=3", "multiline=99", "comments=1", "comments=3"),
    *("id=true", "retry=250", "retry=alone", "bom=true", "spacing=python", "bom=true;retry=alone;eol=cr"),
    *("segment=byte", "segment=utf8", "segment=whole", "segment=2", "segment=crlf;eol=crlf"),
    *("tokens_per_frame=4", "tokens_per_frame=varied", "after_chunks=9;frame_bytes=5000", "length=both"),
    *("usage=always", "usage=every_chunk", "usage=null_every_chunk", "usage=zero_every_chunk"),
    *("usage=on_finish", "usage=with_choices", "usage=never", "empty_finish=true", "text_in_finish=true"),
    *("after_chunks=3;then=rest;pause_ms=5;heartbeat=ping;heartbeat_ms=1", "done=twice", "done=false"),
    *("after_chunks=3;sequence=choices_null", "after_chunks=3;sequence=choices_empty"),
    *("sequence=double_finish;text_in_finish=false", "content_type=text/plain", "close=fin", "close=hang"),
    "eol=cr;comments=2;id=true;spacing=python;segment=byte;tokens_per_frame=varied",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """A model of each dialect, whose whole answer is nine words."""
    models = {
        name: f'dialect = "{name}"\n{MODEL.format(name=name)}[answer]\ntokens = {WORDS}\n'
        for name in DIALECTS
    }
    return MemoryLab(write(tmp_path_factory.mktemp("honest"), models))


def judged(lab: MemoryLab, model: str, path: str, fault: str, **known: Any) -> Verdict:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **OWN[path]}
    got = lab.exchange(path, body, {"x-inference-lab-fault": fault})
    assert got.status, got.raw
    assert got.status != 400, got.raw
    # Broken chunked framing is the transport's to tell; what the oracle gets is what a client reads up to there.
    return verify(got.body, **known)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", DIALECTS)
def test_a_healthy_stream_is_whole_however_it_is_spelled(lab: MemoryLab, name: str, spelling: str) -> None:
    for path in OWN:
        verdict = judged(lab, name, path, f"ok;delay_ms=0;{spelling}")
        assert verdict.outcome == "whole", (path, verdict)
        assert verdict.words in ({"text": WORDS}, {"text": WORDS + 1}, {"text": 3})
        if "usage=never" not in spelling:
            assert verdict.completion_tokens == sum(verdict.words.values())


LEGS_ONLY = {"echo_restart", "echo_overlap"}
DEATHS = [name for name in MODES if name not in LEGS_ONLY]

# Every end that can be asked of a death.
FINISHES = (
    *("none", "stop", "length", "tool_calls", "content_filter", "abort", "error"),
    *("insufficient_system_resource", "cancelled", "stop;empty_finish=true"),
)
TAILS = [f";done={done};finish={finish}" for done in ("false", "true", "twice") for finish in FINISHES]
TAILS += [";text_in_finish=true", ";text_in_finish=true;finish=length;done=false", ";usage_off_by=+99"]
UNSEEN = {"raw_json", "raw_html"}
"""Errors on lines that are no field: an SSE parser skips them."""


@cache
def death_judged(death: Death, path: str) -> Verdict:
    """What a client reads of a death, judged; without its close, which comes behind all that is read."""
    frames = [event.data for event in script_of(death, path) if isinstance(event, Frame)]
    return verify(b"".join(frames))


class Lie(NamedTuple):
    """Frames that a directive asks for and that say something false: what about them, and what they are called."""

    what: str
    kinds: set[Kind]
    is_told: Callable[[Death, Verdict], bool]


def ends(verdict: Verdict, *finishes: str) -> bool:
    return verdict.finish in finishes and not verdict.error


LIES = (
    Lie(
        "another word after an error",
        {Kind.TEXT_AFTER_ERROR, Kind.NOT_JSON},
        lambda death, _: (
            death.text_in_finish and (bool(death.malformed) or death.error not in {"none", *UNSEEN})
        ),
    ),
    Lie(
        "an end without a single word",
        {Kind.SILENT_TRUNCATION},
        lambda _, verdict: not verdict.words and ends(verdict, "stop", "tool_calls"),
    ),
    Lie(
        "a stop after reasoning alone",
        {Kind.SILENT_TRUNCATION},
        lambda _, verdict: set(verdict.words) == {"reasoning"} and ends(verdict, "stop"),
    ),
    Lie(
        "an end inside an open call",
        {Kind.SILENT_TRUNCATION},
        lambda death, verdict: death.content == "tool_call" and ends(verdict, "stop", "tool_calls"),
    ),
    Lie(
        "a count that is off",
        {Kind.USAGE_WORDS},
        lambda death, verdict: isinstance(death.usage_off_by, int) and verdict.completion_tokens is not None,
    ),
    Lie(
        "tool_calls without a whole call",
        {Kind.PHANTOM_CALL},
        lambda death, verdict: (
            death.content != "tool_call" and bool(verdict.words) and ends(verdict, "tool_calls")
        ),
    ),
)
"""All that this server writes and that is wrong; everything else is whole, or an honest prefix."""


def wrong_of(fault: str, path: str) -> bool | None:
    """Whether a death is called wrong though it tells no lie, or not called so though it does; None: it is refused."""
    try:
        death = parse_directive(fault).death
        verdict = death_judged(msgspec.structs.replace(death, close="fin"), path)
    except ValueError:
        return None
    if death.then == "rest" and death.malformed:  # no death: the answer goes on after it, and is torn
        assert verdict.findings[0].kind is Kind.NOT_JSON
        return False
    told = [lie for lie in LIES if lie.is_told(death, verdict)]
    kinds = {finding.kind for finding in verdict.findings}
    return bool(kinds) is not bool(told) or not kinds <= set().union(*(lie.kinds for lie in told))


@pytest.mark.parametrize("mode", DEATHS)
def test_no_honest_death_is_wrong_whatever_its_error_and_its_end(mode: str) -> None:
    met: dict[str, bool | None] = {}
    for path in OWN:
        for error in ("", *(f";error={variant}" for variant in VARIANTS), ";malformed=true"):
            for tail in ("", *TAILS):
                fault = f"{mode}{error}{tail}"
                met[f"{path} {fault}"] = wrong_of(fault, path)
    assert [fault for fault, wrong in met.items() if wrong] == []
    assert list(met.values()).count(False) >= 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_error_is_wrong_however_it_is_spelled_and_wherever_it_comes(variant: str) -> None:
    met: dict[str, bool | None] = {}
    for path in OWN:
        for row in ("ok;after_chunks=0", "ok;at=head", "ok;at=role", "ok;after_chunks=9"):
            dialects = (f";dialect={name}" for name in DIALECTS)
            for more in ("", ";eol=crlf", ";eol=cr;multiline=3", ";bom=true;spacing=python", *dialects):
                for tail in ("", *(TAILS[::7] if more else TAILS)):
                    fault = f"{row};error={variant}{more}{tail}"
                    met[f"{path} {fault}"] = wrong_of(fault, path)
    assert [fault for fault, wrong in met.items() if wrong] == []
    assert list(met.values()).count(False) > len(TAILS)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("mode", DEATHS)
def test_no_honest_death_is_wrong_in_any_dialect(lab: MemoryLab, mode: str, name: str) -> None:
    for path in OWN:
        verdict = judged(lab, name, path, f"{mode};delay_ms=0")
        assert verdict.outcome != "wrong", (path, verdict)


# Deaths whose end a client cannot see, once its transport has said that all went well.
SILENT = {
    *("clean_eof", "tool_call_eof", "done_without_finish", "torn_frame_clean"),
    *("cut_between_frames", "cut_mid_frame", "reset", "stall", "mid_reasoning", "mid_tool_call"),
    *("heartbeat_stall", "cut_conn_close", "empty_200"),
}


@pytest.mark.parametrize("mode", DEATHS)
def test_a_clean_end_makes_wrong_what_no_frame_shows(lab: MemoryLab, mode: str) -> None:
    for path in OWN:
        verdict = judged(lab, "lab", path, f"{mode};delay_ms=0", ended="clean")
        kinds = [finding.kind for finding in verdict.findings]
        assert kinds == ([Kind.SILENT_TRUNCATION] if mode in SILENT else []), (path, verdict)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_error_is_seen_by_its_frame_even_behind_a_clean_end(lab: MemoryLab, variant: str) -> None:
    for path in OWN:
        verdict = judged(lab, "lab", path, f"clean_eof;delay_ms=0;error={variant}", ended="clean")
        assert verdict.outcome == ("wrong" if variant in UNSEEN else "honest prefix"), (path, verdict)
        assert verdict.error is (variant not in UNSEEN)


def test_the_spellings_above_are_of_keys_there_are() -> None:
    keys = {part.partition("=")[0] for spelling in SPELLINGS for part in spelling.split(";")}
    assert keys < set(AXES)
    framing = {
        "eol",
        "space",
        "multiline",
        "comments",
        "id",
        "retry",
        "bom",
        "spacing",
        "segment",
        "frame_bytes",
    }
    assert framing < keys
