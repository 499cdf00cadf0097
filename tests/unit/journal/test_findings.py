"""What the verdict finds beside the places of legs: waits, spellings, calls, captured deaths, and what a row says."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inference_lab.core.journal.conversation import Conversation, verdicts
from inference_lab.core.journal.findings import Kind, Note
from inference_lab.core.journal.row import Row
from inference_lab.core.oracle import verify
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.lab import MODEL, MemoryLab, write
from tests.support.rawclient import request

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"q": {"type": "string"}}}}}
]
HELLO = [{"role": "user", "content": "hello"}]


def judged(rows: list[Row]) -> list[Conversation]:
    return verdicts(lambda _: rows)


def told(one: Conversation) -> list[Kind | Note]:
    return [*(finding.kind for finding in one.findings), *(note.kind for note in one.notes)]


def exchanged(lab: MemoryLab, *asked: tuple[str | None, dict[str, Any]]) -> list[Row]:
    """The rows of these requests of one test, each a second after the end of the one before."""
    for fault, more in asked:
        body = {"model": "lab", "stream": True, "messages": HELLO, **more}
        headers = {"x-test-id": "t"} | ({} if fault is None else {"x-inference-lab-fault": fault})
        lab.exchange(CHAT, body, headers)
    rows, now_s = [], 0.0
    for number, row in lab.rows.items():
        rows.append(msgspec.structs.replace(row, id=number, time=row.time + now_s))
        now_s += 1 + (row.duration_ms or 0) / 1000
    return rows


# -- waits


@pytest.mark.parametrize(
    ("retry_after", "early"),
    [
        ("1", False),
        ("2", True),
        ('"Fri, 15 Jan 2027 08:00:01 GMT"', False),  # the time of the lab is that of 08:00:00.5
        ('"Fri, 15 Jan 2027 08:00:09 GMT"', True),
        ("soon", False),
        ('"-5"', False),
    ],
)
def test_a_leg_that_comes_before_it_was_asked_to_is_found(
    lab: MemoryLab, retry_after: str, early: bool
) -> None:
    rows = exchanged(lab, (f"overloaded_429;retry_after={retry_after}", {}), ("ok", {}))
    (one,) = judged(rows)
    found = [finding for finding in one.findings if finding.kind is Kind.RETRIED_TOO_EARLY]
    assert len(found) == early
    if early:
        assert found[0].message.startswith("it comes 1.00 s after leg 0, whose retry-after (")
    elsewhere = msgspec.structs.replace(rows[1], port=1)
    assert Kind.RETRIED_TOO_EARLY not in told(judged([rows[0], elsewhere])[0])


def test_a_wait_lasts_over_the_legs_that_come_too_early(lab: MemoryLab) -> None:
    fault = "overloaded_429;retry_after=5"
    rows = exchanged(lab, (fault, {}), ("bad_gateway_html", {}), ("ok", {}))
    assert [(finding.kind, finding.leg) for finding in judged(rows)[0].findings] == [
        (Kind.RETRIED_TOO_EARLY, 1),
        (Kind.RETRIED_TOO_EARLY, 2),
    ]


# -- spellings


@pytest.mark.parametrize(
    ("name", "before", "now", "same"),
    [
        ("stop", "END", ["END"], True),
        ("stop", ["a", "b"], ["b", "a", "a"], True),
        ("stop", [], None, True),
        ("stop", "END", "end", False),
        ("stop", "x" * 300, ["x" * 300], True),
        ("temperature", 1, 1.0, True),
        ("temperature", 1, 1.5, False),
        ("logit_bias", {"1": 5, "2": 3}, {"2": 3.0, "1": 5.0}, True),
        ("logit_bias", {}, None, True),
        ("logit_bias", {str(n): n for n in range(90)}, {str(n): float(n) for n in reversed(range(90))}, True),
        ("logit_bias", {str(n): n for n in range(90)}, {str(n): n for n in range(91)}, False),
        ("seed", None, 0, False),
    ],
)
def test_another_spelling_of_the_same_parameter_is_no_change(
    lab: MemoryLab, name: str, before: object, now: object, same: bool
) -> None:
    rows = exchanged(lab, ("overloaded_503", {name: before}), ("ok", {name: now}))
    assert (Kind.CHANGED in told(judged(rows)[0])) is not same


# -- calls


def history(call_id: str, arguments: object) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]}


CALLS = {
    "whole": ("ok;content=tool_call_complete;after_chunks=4;delay_ms=0", '{"q": "dx0000 dx0001"}'),
    "cut": ("mid_tool_call;after_chunks=3;delay_ms=0", '{"q": "dx0000 dx0001'),
    "announced": ("mid_tool_call;after_chunks=1;delay_ms=0", ""),
}


def sent(lab: MemoryLab, fault: str) -> tuple[str, str]:
    """The id and the arguments of a call that goes out, and one row of it."""
    body = {"model": "lab", "stream": True, "messages": HELLO, "tools": TOOLS}
    got = lab.exchange(CHAT, body, {"x-inference-lab-fault": fault, "x-test-id": "t"})
    lines = [line.removeprefix(b"data: ") for line in got.body.split(b"\n\n")]
    frames = [json.loads(line) for line in lines if line.startswith(b"{")]
    calls = [
        call for one in frames if one["choices"] for call in one["choices"][0]["delta"].get("tool_calls", ())
    ]
    return calls[0]["id"], "".join(call["function"]["arguments"] for call in calls)


@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_were_never_sent_are_found(lab: MemoryLab, name: str) -> None:
    fault, _ = CALLS[name]
    call, arguments = sent(lab, fault)
    respelled = (
        [json.loads(arguments), json.dumps(json.loads(arguments), indent=1)] if name == "whole" else []
    )
    for held in (arguments, *respelled):
        rows = exchanged(lab, (None, history(call, held)))
        assert [told(one) for one in judged(rows)] == [[], []]
        del lab.rows[max(lab.rows)]
    for invented in ("{}", '{"q": "Paris"}', arguments + " dx0002"):
        rows = exchanged(lab, (None, history(call, invented)))
        (first, second) = judged(rows)
        assert (told(first), told(second)) == ([], [Kind.INVENTED_ARGUMENTS])
        assert call in second.findings[0].message
        elsewhere = [rows[0], msgspec.structs.replace(rows[1], test="u")]
        assert [told(one) for one in judged(elsewhere)] == [[], []]
        assert b"Paris" not in msgspec.json.encode(rows)
        del lab.rows[max(lab.rows)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_call_that_a_later_leg_completes_was_sent(lab: MemoryLab, path: str) -> None:
    call, arguments = sent(lab, "mid_tool_call;after_chunks=3;delay_ms=0")
    before = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    raw = f'<|user|>hello<|end|><|assistant|>{{"name": "f", "arguments": {arguments}'
    asked = {"messages": [*HELLO, before], "tools": TOOLS} if path == CHAT else {"prompt": raw}
    got = lab.exchange(path, {"model": "lab", "stream": False, **asked}, {"x-test-id": "t"}).json
    choice = got["choices"][0]
    rest = (
        choice["text"] if path == COMPLETIONS else choice["message"]["tool_calls"][0]["function"]["arguments"]
    )
    whole = json.loads(arguments + rest.removesuffix("}" if path == COMPLETIONS else ""))
    rows = exchanged(lab, (None, history(call, json.dumps(whole))))
    assert [
        one for judgement in judged(rows) for one in told(judgement) if one is Kind.INVENTED_ARGUMENTS
    ] == []
    rows = exchanged(lab, (None, history(call, "{}")))
    assert Kind.INVENTED_ARGUMENTS in [one for judgement in judged(rows) for one in told(judgement)]


# -- twice


def test_the_same_request_twice_at_once_is_noted_on_both(lab: MemoryLab) -> None:
    rows = exchanged(lab, (None, {}), (None, {}))
    assert [told(one) for one in judged(rows)] == [[], []]
    rows = [
        msgspec.structs.replace(row, time=1000.0 + number, duration_ms=5000.0)
        for number, row in enumerate(rows)
    ]
    assert [told(one) for one in judged(rows)] == [[Note.SENT_TWICE], [Note.SENT_TWICE]]
    rows[1] = msgspec.structs.replace(rows[1], body_digest="0" * 16)
    assert [told(one) for one in judged(rows)] == [[], []]


def test_each_of_many_that_overlap_is_noted(lab: MemoryLab) -> None:
    (row,) = exchanged(lab, (None, {}))
    times = ((0.0, 9000.0), (1.0, 10.0), (2.0, 10.0), (20.0, 10.0))
    rows = [
        msgspec.structs.replace(row, id=number, time=time, duration_ms=duration)
        for number, (time, duration) in enumerate(times)
    ]
    assert [told(one) for one in judged(rows)] == [[Note.SENT_TWICE]] * 3 + [[]]


# -- what is not known


def test_of_a_server_that_was_lost_nothing_is_said(lab: MemoryLab) -> None:
    rows = exchanged(lab, ("ok", {}), ("ok", {}))
    lost = {"words": None, "reached": None, "ends_well": None, "duration_ms": None, "ending": "server_lost"}
    rows[0] = msgspec.structs.replace(rows[0], **lost)
    assert [one.end for one in judged(rows[:1])] == ["unknown"]
    rows[1] = msgspec.structs.replace(rows[1], progress=3)
    (one,) = judged(rows)
    assert (one.end, told(one)) == ("whole", [])


def test_an_answer_that_may_not_have_been_taken_has_no_known_end(lab: MemoryLab) -> None:
    rows = exchanged(lab, ("ok", {}))
    assert [one.end for one in judged(rows)] == ["whole"]
    rows[0] = msgspec.structs.replace(rows[0], bytes_unsent=1)
    assert [one.end for one in judged(rows)] == ["unknown"]


def test_a_row_of_an_earlier_journal_is_judged_as_it_was(lab: MemoryLab) -> None:
    rows = exchanged(lab, ("ok", {}))
    new = (
        "finish",
        "usage",
        "error_sent",
        "calls",
        "history_calls",
        "retry_after",
        "silent_ms",
        "last_four_ms",
    )
    for ending, end in (("terminator", "whole"), ("client_left", "dead")):
        document = msgspec.to_builtins(rows[0]) | {"ending": ending, "done_sent": False}
        old = msgspec.convert({key: value for key, value in document.items() if key not in new}, Row)
        assert [one.end for one in judged([old])] == [end]


# -- captured deaths

FRAME = 'data: {{"id":"<<id>>","choices":[{{"index":0,"delta":{{"content":"{}"}},"finish_reason":{}}}]}}\n\n'
WORDS = FRAME.format("<<word>><<word>>", "null")
STOP = FRAME.format("", '"stop"')
ERROR = 'data: {"error":{"message":"upstream failed"}}\n\n'
DONE = "data: [DONE]\n\n"
OTHER_API = 'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'
INCIDENTS = {
    # the frames and the close; how it ends, the words and whether it is told as a whole answer
    "cut": ([WORDS], "fin", ("dead", 2)),
    "whole": ([WORDS, STOP, DONE], "terminator", ("whole", 2)),
    "stop-then-cut": ([WORDS, STOP], "fin", ("whole", 2)),
    "error": ([WORDS, ERROR, DONE], "terminator", ("dead", 2)),
    "foreign": ([FRAME.format("Hello", "null"), STOP, DONE], "terminator", ("whole", None)),
    "mixed": ([WORDS, FRAME.format("Hello", "null"), STOP], "terminator", ("whole", None)),
    "other-api": ([OTHER_API], "terminator", ("unknown", None)),
    "plain": (["upstream connect error"], "terminator", ("unknown", None)),
    "nothing": ([], "terminator", ("dead", 0)),
    "page": (["<html><head></head></html>"], "terminator", ("dead", 0)),
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    home = write(tmp_path_factory.mktemp("captured"), {"lab": MODEL.format(name="lab")})
    (home / "faults").mkdir()
    for name, (frames, close, _) in INCIDENTS.items():
        blanks = "placeholders = true\n" if any("<<" in frame for frame in frames) else ""
        events = "".join(f"[[events]]\nframe = {json.dumps(frame)}\n" for frame in frames)
        (home / "faults" / f"{name}.toml").write_text(f'close = "{close}"\n{blanks}{events}')
    coded = '[head.headers]\ncontent-type = "text/event-stream"\ncontent-encoding = "gzip"\n'
    (home / "faults" / "coded.toml").write_text(f'close = "fin"\n{coded}[[events]]\nframe = "x"\n')
    (home / "faults" / "broken.toml").write_text('close = "fin"\n[[events]]\nraw = "zz\\r\\n"\n')
    return MemoryLab(home)


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_captured_death_ends_as_its_bytes_say(captured: MemoryLab, name: str) -> None:
    captured.rows.clear()
    got = captured.exchange(
        CHAT, {"model": "lab", "stream": True, "messages": HELLO}, {"x-inference-lab-fault": name}
    )
    (row,) = captured.rows.values()
    (one,) = judged([row])
    end, words = INCIDENTS[name][2]
    assert (one.end, row.words, row.reached) == (end, words, words)
    if end != "unknown":
        assert (verify(got.body).is_whole or words is None) == (end == "whole")


@pytest.mark.parametrize("name", ["coded", "broken"])
def test_what_nobody_can_read_has_no_known_end(captured: MemoryLab, name: str) -> None:
    captured.rows.clear()
    captured.exchange(
        CHAT, {"model": "lab", "stream": True, "messages": HELLO}, {"x-inference-lab-fault": name}
    )
    (row,) = captured.rows.values()
    assert (row.ends_well, row.words, row.reached) == (None, None, None)
    assert judged([row])[0].end == "unknown"


def test_a_captured_death_asked_for_again_is_a_restart_and_gone_on_with_it_is_not(
    captured: MemoryLab,
) -> None:
    captured.rows.clear()
    assert told(judged(exchanged(captured, ("cut", {}), ("cut", {})))[0]) == [Kind.RESTART]
    captured.rows.clear()
    said = {"messages": [*HELLO, {"role": "assistant", "content": "dx0000 dx0001"}]}
    assert told(judged(exchanged(captured, ("error", {}), ("ok", said)))[0]) == []


# -- a row while it lasts, and one that is left


@pytest.fixture
def slow(tmp_path: Path) -> MemoryLab:
    """An engine that is silent for three seconds."""
    return MemoryLab(write(tmp_path, {"lab": MODEL.format(name="lab")}), ttft_us=3_000_000)


def left(lab: MemoryLab, fault: str | None, after_s: tuple[float, ...]) -> Row:
    channel, transport = lab.connect()
    body = json.dumps({"model": "lab", "stream": True, "messages": HELLO}).encode()
    headers = {} if fault is None else {"x-inference-lab-fault": fault}
    channel.dataReceived(request("POST", CHAT, body, headers=headers))
    for step in after_s:
        lab.clock.advance(step)
    transport.loseConnection()
    return max(lab.rows.items())[1]


@pytest.mark.parametrize(
    ("fault", "after_s", "silent_ms", "last_four_ms", "note"),
    [
        ("ok;ttft_ms=1;delay_ms=100", (0.002, *[0.1] * 8), 0, 300, Note.LEFT_EARLY),
        ("ok;ttft_ms=2000;heartbeat=ping", (1.5,), 1500, None, None),
        ("slow_but_alive;after_chunks=0", (1.5,), 1500, None, None),
        ("ok;delay_ms=900", [0.9] * 7, 0, 2700, None),
        ("stall;after_chunks=2;delay_ms=0", (0.4,), 400, None, Note.LEFT_EARLY),
    ],
)
def test_a_row_says_how_silent_and_how_slow_it_was_when_it_was_left(
    lab: MemoryLab,
    fault: str,
    after_s: tuple[float, ...],
    silent_ms: int,
    last_four_ms: int | None,
    note: Note | None,
) -> None:
    row = left(lab, fault, after_s)
    assert (row.ending, row.last_four_ms) == ("client_left", last_four_ms)
    assert row.silent_ms is not None
    assert row.silent_ms == pytest.approx(silent_ms, abs=60)
    assert told(judged([row])[0]) == ([] if note is None else [note])


def test_a_silent_engine_that_is_left_was_given_up(slow: MemoryLab) -> None:
    row = left(slow, None, (1.2,))
    assert (row.trigger, row.frames, row.ending) == ("engine", 0, "client_left")
    assert row.silent_ms == pytest.approx(1200, abs=60)
    again = msgspec.structs.replace(row, id=row.id + 1, time=row.time + 2)
    assert told(judged([row, again])[0]) == [Note.GAVE_UP_ON_SILENCE, Note.RETRY]


def test_an_answer_left_at_its_finish_is_whole(lab: MemoryLab) -> None:
    for steps in count(1):
        row = left(lab, "ok;after_chunks=2;delay_ms=30;done=false;usage=always", (0.03,) * steps)
        if row.finish is not None:
            break
    assert (row.ending, row.ends_well) == ("client_left", True)
    assert (judged([row])[0].end, told(judged([row])[0])) == ("whole", [])


def test_a_stale_connection_has_ended_its_answer(lab: MemoryLab) -> None:
    channel, transport = lab.connect()
    body = json.dumps({"model": "lab", "stream": True, "messages": HELLO}).encode()
    fault = "ok;close=stale;delay_ms=0"
    channel.dataReceived(request("POST", CHAT, body, headers={"x-inference-lab-fault": fault}))
    lab.clock.advance(1)
    (row,) = lab.rows.values()
    assert (row.state, row.ending, row.ends_well) == ("ended", "stale", True)
    transport.loseConnection()
    lab.clock.advance(1)
    assert len(lab.rows) == 1


def test_a_row_says_what_was_sent_last(lab: MemoryLab) -> None:
    for stream in (True, False):
        more = {"stream_options": {"include_usage": True}} if stream else {}
        row = exchanged(lab, (None, {**more, "max_tokens": 3, "stream": stream}))[-1]
        assert row.finish == "length"
        assert row.usage is not None
        assert row.usage["completion_tokens"] == 3
    row = exchanged(lab, ("reset", {}))[-1]
    assert (row.finish, row.usage, row.error_sent) == (None, None, False)
    row = exchanged(lab, ("error_400_in_sse", {}))[-1]
    assert (row.finish, row.error_sent, row.ends_well) == (None, True, False)
