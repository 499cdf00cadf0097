"""`verify` streams its input: its memory does not grow with the stream."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from inference_lab.core.oracle import verify
from inference_lab.core.tokens import spell
from tests.support.streams import chunk, raw_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 2**20


def answer(frame: Callable[[str], bytes], count: int) -> Iterator[bytes]:
    for index in range(count):
        yield frame(spell("qu", index))


FRAMES = {
    "deltas": lambda word: chunk({"content": word}),
    "raw text": raw_chunk,
    "plain text": lambda word: word.encode(),
    "one long call": lambda word: raw_chunk(
        ('{"name": "f", "arguments": {"k": "' if word[0] == "q" else "") + word
    ),
    "the same finding again and again": lambda _: raw_chunk("qu0000 x"),
    "comments": lambda _: b": ping\n\n",
    "a line without end": lambda _: b"x" * 64,
    "calls without end": lambda word: raw_chunk('{"name": "f", "arguments": {"k": "qu0000"}}' + word[:0]),
}


@pytest.mark.parametrize("name", FRAMES)
def test_memory_does_not_grow_with_the_stream(name: str) -> None:
    peaks = []
    for count in (200, 1_200):
        tracemalloc.start()
        verify(answer(FRAMES[name], count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A line is kept up to its limit, which is far from here.
    room = MIB if name == "a line without end" else MIB // 64
    assert peaks[1] < peaks[0] + room


def test_ids_of_calls_are_not_kept_whole() -> None:
    tracemalloc.start()
    verify(chunk({"tool_calls": [{"index": index, "id": "x" * MIB}]}) for index in range(40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MIB


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("members", "room"), [(300_000, 48 * MIB), (8_000_000, 5 * 24 * MIB)])
def test_a_frame_of_many_members_takes_little_more_than_its_line(
    members: int, room: int, *, is_stream: bool
) -> None:
    line = b'{"choices":[' + b"{}," * members + b"{}]}"
    body = b"data: " + line + b"\n\n" if is_stream else line
    tracemalloc.start()
    verdict = verify(body[place : place + MIB] for place in range(0, len(body), MIB))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < room, peak
    is_long = members > 1_000_000
    assert ("too_long" in {finding.kind.value for finding in verdict.findings}) is is_long
