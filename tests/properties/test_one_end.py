"""How an answer ended, told twice: by the oracle from the bytes that a client read, by the journal from what went out.

Both are told nothing else, but how the transport ended. They may not contradict each other about the same bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.faults.modes import MODES
from inference_lab.core.journal.conversation import verdicts
from inference_lab.core.oracle import verify
from inference_lab.core.oracle.verdict import Kind
from inference_lab.core.stream.read_back import Unchunked
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.axes_values import PAIRED, changes_of, directive_of, settings_for, values_of
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import complete

if TYPE_CHECKING:
    from pathlib import Path

    from inference_lab.core.oracle.judge import Ended
    from tests.support.rawclient import Received

ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "p266"}]},
    COMPLETIONS: {"prompt": "p266"},
}
WORDS = 9
FINISHES = ("none", "stop", "length", "tool_calls", "content_filter", "abort")
TAILS = [f";done={done};finish={finish}" for done in ("false", "true", "twice") for finish in FINISHES]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """A model of each dialect, and one that thinks, whose whole answer is nine words."""
    models = {
        name: f'dialect = "{name}"\n{MODEL.format(name=name)}[answer]\ntokens = {WORDS}\n'
        for name in DIALECTS
    }
    models["thinks"] = f"{MODEL.format(name='thinks')}[answer]\ntokens = 6\nreasoning = 3\n"
    return MemoryLab(write(tmp_path_factory.mktemp("ends"), models))


def read_of(got: Received) -> bytes:
    """What a client reads of a body: its framing and its content coding taken off, up to where one of them breaks."""
    if got.headers.get("transfer-encoding") == "chunked":
        data = Unchunked().feed(got.after_head)
    else:
        length = got.headers.get("content-length")
        data = got.after_head if length is None else got.after_head[: int(length)]
    if got.headers.get("content-encoding") != "gzip":
        return data
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data)


def ended_of(got: Received) -> Ended:
    with suppress(ValueError):  # broken framing
        return "clean" if complete(got) else "broken"
    return "broken"


def contradiction(got: Received, lab: MemoryLab) -> str | None:
    """What verify and the verdict say of an exchange, where they contradict each other; '' for one that was refused."""
    _, row = max(lab.rows.items())
    lab.rows.clear()
    if row.ending == "refused":
        return ""
    assert row.state == "ended", row
    (conversation,) = verdicts(lambda _: [row], prompt=row.prompt)
    end = conversation.end
    if row.status not in {None, 200} or end == "unknown":  # a status is told to verify separately
        assert end != "whole"
        return None
    verdict = verify(read_of(got), ended=ended_of(got))
    kinds = {finding.kind for finding in verdict.findings}
    is_wrong = (verdict.outcome == "whole") != (end == "whole") if verdict.outcome != "wrong" else False
    is_wrong = is_wrong or (Kind.SILENT_TRUNCATION in kinds and end != "dead")
    if end == "whole" and verdict.outcome == "wrong":  # then what is wrong is not the end
        is_wrong = is_wrong or Kind.PHANTOM_CALL in kinds
    return f"{row.fault or row.trigger}: {verdict}, and {end}" if is_wrong else None


def meet(lab: MemoryLab, path: str, fault: str | None, model: str = "lab", **more: Any) -> str | None:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **ASKED[path], **more}
    if not body["stream"]:
        del body["stream_options"]
    headers = {} if fault is None else {"x-inference-lab-fault": fault}
    return contradiction(lab.exchange(path, body, headers), lab)


def assert_one_end(met: list[str | None], least: int) -> None:
    found = [one for one in met if one]
    assert not found, "\n".join(found[:20]) + f"\n… {len(found)} of {len(met)}"
    assert sum(one is None for one in met) >= least


@pytest.mark.parametrize("model", [*DIALECTS, "thinks"])
def test_of_healthy_answers(lab: MemoryLab, model: str) -> None:
    met = [
        meet(lab, path, None, model, stream=stream, max_tokens=limit)
        for path in ASKED
        for stream in (True, False)
        for limit in (1, 2, 3, 4, WORDS, 64)
    ]
    assert_one_end(met, len(met))


@pytest.mark.parametrize("model", DIALECTS)
@pytest.mark.parametrize("mode", MODES)
def test_of_every_mode_in_every_dialect(lab: MemoryLab, mode: str, model: str) -> None:
    met = [
        meet(lab, path, f"{mode};delay_ms=0", model, stream=stream)
        for path in ASKED
        for stream in (True, False)
    ]
    assert_one_end(met, 0 if mode.startswith("echo_") else 1)


@pytest.mark.parametrize("mode", MODES)
def test_of_every_mode_with_any_error_and_end(lab: MemoryLab, mode: str) -> None:
    errors = (
        "",
        *(f";error={variant}" for variant in VARIANTS),
        ";malformed=true",
        ";malformed=true;then=rest",
    )
    tails = ("", *TAILS)
    numbers = count(1)
    # Each with a third of the other, so that all of both are met, and most of their pairs over all modes.
    met = [
        meet(lab, path, f"{mode};delay_ms=0{error}{tail}")
        for path in ASKED
        for error in errors
        for tail in tails
        if not error or not tail or next(numbers) % 3 == 0
    ]
    assert_one_end(met, 0)


@pytest.mark.parametrize("key", PAIRED)
def test_of_any_two_values(lab: MemoryLab, key: str) -> None:
    numbers = count(len(key))
    met = []
    for value in values_of(key):
        first = settings_for(key, value)
        met += [
            meet(lab, path, directive_of((("delay_ms", "0"), *({**first, key: value}.items()))))
            for path in ASKED
        ]
        for other in PAIRED[PAIRED.index(key) + 1 :]:
            for second in changes_of(other):
                if next(numbers) % 5:
                    continue
                settings = {**settings_for(other, second), **first, other: second, key: value}
                path = CHAT if next(numbers) % 2 else COMPLETIONS
                met.append(meet(lab, path, directive_of(settings.items())))
    assert_one_end(met, 0)


ECHOES = (
    {"text": "a b c"},
    {"text": ""},
    {"text": "a", "finish_reason": "length"},
    {"text": "a", "finish_reason": "tool_calls"},
    {"text": "a", "finish_reason": "abort"},
    {"text": "", "finish_reason": "length"},
    *(
        {"text": text, "tool_calls": [{"name": "f", "arguments": arguments}], **finish}
        for text in ("", "a")
        for arguments in ("{}", "", '{"a":', '{"a": "qu0000"}', '{"a": 1}', '{"a": ""}', "nothing")
        for finish in ({}, {"finish_reason": "stop"}, {"finish_reason": "length"})
    ),
)


@pytest.mark.parametrize("stream", [True, False])
def test_of_every_echo(lab: MemoryLab, stream: bool) -> None:
    met = []
    for echo in ECHOES:
        messages = [{"role": "user", "content": f"<<respond:{json.dumps(echo)}>>"}]
        met.append(meet(lab, CHAT, None, messages=messages, stream=stream))
    assert_one_end(met, len(ECHOES))


def captured(got: Received) -> str | None:
    """The incident that this response would be recorded as; None where it has no body."""
    body = Unchunked().feed(got.after_head)
    if got.status != 200 or not body:
        return None
    close = "terminator" if ended_of(got) == "clean" else "fin"
    kind = json.dumps(got.headers.get("content-type", "text/plain"))
    data = base64.b64encode(body).decode()
    return (
        f'close = "{close}"\n[head.headers]\ncontent-type = {kind}\n'
        f'[[events]]\nframe = {{ base64 = "{data}" }}\n'
    )


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("model", DIALECTS)
def test_of_every_mode_captured_and_replayed(lab: MemoryLab, tmp_path: Path, model: str, path: str) -> None:
    home = write(
        tmp_path, {model: f'dialect = "{model}"\n{MODEL.format(name=model)}[answer]\ntokens = {WORDS}\n'}
    )
    (home / "faults").mkdir()
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **ASKED[path]}
    ends = {}
    for mode in MODES:
        got = lab.exchange(path, body, {"x-inference-lab-fault": f"{mode};delay_ms=0"})
        _, row = max(lab.rows.items())
        lab.rows.clear()
        incident = (
            captured(got) if got.headers.get("content-type", "").startswith("text/event-stream") else None
        )
        if incident is not None:
            (home / "faults" / f"captured-{mode}.toml").write_text(incident)
            ends[f"captured-{mode}"] = row.ends_well
    assert len(ends) > 20
    replaying = MemoryLab(home)
    for name, ends_well in ends.items():
        got = replaying.exchange(path, body, {"x-inference-lab-fault": name})
        _, row = max(replaying.rows.items())
        assert row.ends_well == ends_well, name
        assert contradiction(got, replaying) is None, name
