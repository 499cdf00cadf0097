"""What this server writes is right to the oracle: healthy in every spelling, and dead, but honestly so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.answers.dialects import DIALECTS
from inference_lab.faults.axes import AXES
from inference_lab.faults.errors import VARIANTS
from inference_lab.faults.modes import MODES
from inference_lab.oracle import Kind, verify
from tests.lab import MODEL, MemoryLab, write

if TYPE_CHECKING:
    from inference_lab.oracle import Verdict

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
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
    *("usage=on_finish", "usage=with_choices", "usage=never", "finish=empty_each", "text_in_finish=true"),
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


# A [DONE] behind half an answer is no honest death.
LIES = {"done_without_finish": Kind.SILENT_TRUNCATION}
# Errors that an SSE parser does not see, so that a [DONE] behind them is the same lie.
UNSEEN = {"raw_json", "raw_html"}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("mode", MODES)
def test_no_honest_death_is_wrong(lab: MemoryLab, mode: str, name: str) -> None:
    if mode.startswith("echo"):
        return  # for later legs only
    for path in OWN:
        for more in ("", ";after_chunks=0", ";after_chunks=8"):
            if more and not {"after_chunks", "then"} & MODES[mode].changes.keys():
                continue
            verdict = judged(lab, name, path, f"{mode};delay_ms=0{more}")
            if mode in LIES:
                assert {finding.kind for finding in verdict.findings} == {LIES[mode]}
            else:
                assert verdict.outcome != "wrong", (path, more, verdict)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_error_in_a_stream_is_wrong(lab: MemoryLab, variant: str) -> None:
    for path in OWN:
        for more in ("", ";done=true", ";done=false", ";after_chunks=0", ";eol=crlf;segment=byte"):
            verdict = judged(lab, "lab", path, f"cut_between_frames;delay_ms=0;error={variant}{more}")
            if variant in UNSEEN and "done=true" in more:
                assert {finding.kind for finding in verdict.findings} == {Kind.SILENT_TRUNCATION}
            elif variant == "plain":
                assert {finding.kind for finding in verdict.findings} <= {
                    Kind.NOT_JSON,
                    Kind.SILENT_TRUNCATION,
                }
            else:
                assert verdict.outcome == "honest prefix", (path, more, verdict)


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
