"""How much of a text is kept: in a row, in a name, in a line of the log."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.core.answer.end import Spoken
from inference_lab.core.journal.conversation import verdicts
from inference_lab.core.journal.filters import filter_of
from inference_lab.core.journal.row import (
    LINE_BYTES,
    MOST_NAMES,
    NAME_BYTES,
    PARAMETERS,
    TEXT_BYTES,
    cut,
    cut_names,
    split_headers,
)
from inference_lab.core.journal.sent import MOST_CALLS, Leg, SentCalls, calls_in
from inference_lab.core.stream.events import Delivered
from inference_lab.service.logs import observer_of
from tests.support.lab import MemoryLab, files, write
from tests.support.rawclient import CHAT, request
from tests.support.rows import row

MOST_ROW_BYTES = 65_536
"""What docs/journal.md says of a row as fat as it may be."""
LONG = "a" * 400_000
FAULT = f'ok;after_chunks=1;delay_ms=0;finish=none;error=openai;message="{LONG}"'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    return MemoryLab(write(tmp_path_factory.mktemp("bounds"), files(families=("lab",))))


@given(st.text(), st.integers(10, 40))
def test_what_is_kept_of_a_text_is_its_beginning_in_so_many_bytes(text: str, most: int) -> None:
    kept = cut(text, most)
    assert len(kept.encode()) <= most
    assert cut(kept, most) == kept
    if kept != text:
        assert len(text.encode()) > most
        assert kept[-1] == "…"
        assert text.startswith(kept[:-1])
        assert len(kept.encode()) > most - 4, "no more is cut than has to be"


@pytest.mark.parametrize("count", [0, 1, MOST_NAMES, MOST_NAMES + 1, 10_000])
def test_a_list_of_names_says_how_many_it_leaves_out(count: int) -> None:
    kept = cut_names(["n" * 100] * count)
    left_out = count - MOST_NAMES
    assert len(kept) == min(count, MOST_NAMES) + (left_out > 0)
    assert all(len(name.encode()) <= NAME_BYTES for name in kept)
    if left_out > 0:
        assert kept[-1] == f"… and {left_out} more"


def test_a_row_as_fat_as_a_client_can_make_it_is_bounded(lab: MemoryLab) -> None:
    quotes = '"\\' * 1000
    history = [
        {"id": f"call_{number:024x}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for number in range(300)
    ]
    body = {
        "model": "lab",
        "stream": True,
        "messages": [
            {"role": "user", "content": f"<<fault:{FAULT}>>"},
            {"role": "assistant", "content": None, "tool_calls": history},
            {"role": "user", "content": "go on"},
        ],
        **{name: [0.5] * 60 for name in PARAMETERS - {"stream_options", "n", "max_tokens"}},
        **{f"{number:04d}{'é' * 100}": 1 for number in range(1000)},
    }
    named = dict.fromkeys(("accept", "user-agent", "x-request-id"), quotes)
    lab.send(request("GET", f"/{'p' * 3000}", headers=named | {f"x-{'n' * 90}-{n}": "1" for n in range(60)}))
    lab.exchange(CHAT, json.dumps(body | {"temperature": "hot"}).encode(), named)
    lab.exchange(CHAT, json.dumps({"model": LONG, "messages": []}).encode(), named)
    lab.exchange(
        CHAT, body | {"messages": body["messages"][:1]} if isinstance(body["messages"], list) else {}
    )
    rows = list(lab.rows.values())
    assert max(len(msgspec.json.encode(found)) for found in rows) <= MOST_ROW_BYTES
    assert rows[0].path.endswith("p…")
    assert rows[0].headers["accept"].endswith("…")
    assert any((found.model or "").endswith("a…") for found in rows)


def test_a_faults_text_is_cut_in_the_row_and_acts_whole(lab: MemoryLab) -> None:
    body = {"model": "lab", "stream": True, "messages": [{"role": "user", "content": f"<<fault:{FAULT}>>"}]}
    got = lab.exchange(CHAT, body)
    assert LONG.encode() in got.raw
    fault = list(lab.rows.values())[-1].fault
    assert fault is not None
    assert len(fault.encode()) == TEXT_BYTES
    assert fault.startswith("ok;after_chunks=1;")
    assert fault.endswith("aaa…")


def test_a_long_request_id_is_found_by_the_whole_of_it() -> None:
    kept, _ = split_headers([(b"x-request-id", [b"i" * 5000])])
    assert filter_of({"request_id": "i" * 5000}).request_id == kept["x-request-id"]
    assert filter_of({"request_id": kept["x-request-id"]}).request_id == kept["x-request-id"]


def test_of_many_calls_some_are_kept_and_none_is_called_invented() -> None:
    sent = SentCalls()
    sent.take((number, "{}") for number in range(1000))
    said = Delivered(0, 0, spoken=Spoken(calls_begun=1000))
    fields = Leg(start=0, progress=0, completion_id="chatcmpl-" + "0" * 24).fields(said, sent, 200)
    calls = fields["calls"]
    assert len(calls) == MOST_CALLS + 1
    assert (calls[-1].id, calls[-1].arguments) == (None, f"… and {1000 - MOST_CALLS} more")
    messages = [
        {"tool_calls": [{"id": f"call_{n:024x}", "function": {"arguments": "x"}} for n in range(500)]}
    ]
    history = calls_in(messages)
    assert (history[0].id, history[0].arguments) == (None, f"… and {500 - MOST_CALLS} more")
    assert history[-1].id == f"call_{499:024x}"
    common: dict[str, Any] = {"test": "t", "prompt": "0" * 16, "tag": "dx"}
    rows = [
        row(1.0, id=1, progress=0, calls=tuple(calls), **common),
        row(2.0, id=2, progress=0, history_calls=history, **common),
    ]
    judged = verdicts(lambda _: rows)
    assert not [finding for one in judged for finding in one.findings if finding.kind.value.startswith("inv")]


def test_of_a_long_usage_a_digest_is_kept() -> None:
    said = Delivered(0, 0, usage=b'{"completion_tokens":1,"x":"%b"}' % (b"y" * 5000))
    usage = Leg(start=0, progress=0).fields(said, SentCalls(), 200)["usage"]
    assert list(usage) == ["digest"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_of_the_log_is_bounded(form: str) -> None:
    file = io.StringIO()
    log = Logger("here", observer=observer_of(form, file))
    log.info("{trigger}: {count} frames", trigger=LONG, count=3)
    line = file.getvalue()
    assert "aaa…" in line
    assert line.count("\n") == 1
    assert len(line) < (LINE_BYTES + 100 if form == "text" else LINE_BYTES + TEXT_BYTES + 300)
    if form == "json":
        assert json.loads(line)["count"] == 3
    log.failure("failed", failure=Failure(ValueError(LONG)))
    assert len(file.getvalue()) < 80_000
