"""The script of an answer that nothing is wrong with: one that the engine paces, or an echo of the client's words."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.dialects import LAB
from inference_lab.core.faults.death import Close
from inference_lab.core.stream.content import bursts
from inference_lab.core.stream.edits import commented, stamped
from inference_lab.core.stream.events import TURN, Await, Burst, Delivered, Event, Frame, Head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from inference_lab.core.answer.pieces import Pieces
    from inference_lab.core.apis.contract import Counts, StreamWriter
    from inference_lab.core.apis.dialects import Dialect

STREAM_HEAD: Final = Head(200, ((b"content-type", LAB.content_type), *LAB.headers))
_TURN_CALLS: Final = 16
"""After so many frames of calls in an echo others have their turn."""


def healthy_script(
    writer: StreamWriter,
    pieces: Pieces,
    finish: str,
    counts: Callable[[], Counts],
    *,
    include_usage: bool,
    unseen_tokens: int = 0,
) -> Iterator[Event]:
    """The events of an answer that the engine paces: each content frame waits for its tokens.

    `counts` is called when the usage frame is due, since the engine knows what was cached only then. `unseen_tokens`
    are those of an answer without pieces, which its other frames wait for.
    """
    dialect = writer.dialect
    writer.promised = counts
    events = _answer_events(
        writer, pieces, finish, counts, include_usage=include_usage, unseen_tokens=unseen_tokens
    )
    events = stamped(events, writer) if writer.numbers else events
    return chain((_stream_head(dialect),), commented(events, dialect.comment) if dialect.comment else events)


def _answer_events(
    writer: StreamWriter,
    pieces: Pieces,
    finish: str,
    counts: Callable[[], Counts],
    *,
    include_usage: bool,
    unseen_tokens: int,
) -> Iterator[Event]:
    pieces, last = pieces.without_last() if writer.dialect.finish_rides else (pieces, None)
    has_begun = False
    for part in bursts(pieces, None, writer, awaited=True):
        tokens = 1 if isinstance(part, Burst) else part.token_count
        yield from (Await(tokens),) if has_begun else _opened(writer, tokens)
        if isinstance(part, Burst):
            writer.pass_over(len(part.frames), len(part.frames))
            yield part
        else:
            yield from writer.content(part)
        has_begun = True
    if last is not None:
        yield from (Await(last.token_count),) if has_begun else _opened(writer, last.token_count)
        yield writer.finish_with(last, finish)
    else:
        yield from () if has_begun else _opened(writer, unseen_tokens)
        yield from writer.closings(finish)
        yield from writer.finish(finish, counts() if include_usage and writer.counts_in_finish else None)
    if include_usage:
        yield from writer.usage(counts(), finish)
    yield from writer.terminal()
    yield Close.TERMINATOR


def _opened(writer: StreamWriter, tokens: int) -> Iterator[Event]:
    """The wait for the first tokens; the opening comes with the first of them, as the time to first token."""
    if writer.has_opening:
        if tokens:
            yield Await(1)
        yield from writer.opening()
        tokens -= 1
    if tokens > 0:
        yield Await(tokens)


def _stream_head(dialect: Dialect) -> Head:
    """The head of a stream that nothing is wrong with."""
    if dialect is LAB:
        return STREAM_HEAD
    return Head(200, ((b"content-type", dialect.content_type), *dialect.headers))


def echo_script(
    writer: StreamWriter,
    contents: Iterable[tuple[bytes, Delivered]],
    finish: str,
    counts: Counts,
    *,
    include_usage: bool,
) -> Iterator[Event]:
    """The events of a verbatim answer: its content frames with what each says, and every frame is due at once."""
    events = _echo_events(writer, contents, finish, counts, include_usage=include_usage)
    return stamped(events, writer) if writer.numbers else events


def _echo_events(
    writer: StreamWriter,
    contents: Iterable[tuple[bytes, Delivered]],
    finish: str,
    counts: Counts,
    *,
    include_usage: bool,
) -> Iterator[Event]:
    yield _stream_head(writer.dialect)
    writer.promised = lambda: counts
    yield from writer.opening()
    calls = 0
    for content, told in contents:
        yield Frame(content, said=told)
        if told.calls:  # each has been read back, which takes as long as many frames of text
            calls += 1
            if calls % _TURN_CALLS == 0:
                yield TURN
    yield from writer.closings(finish)
    yield from writer.finish(finish, counts if include_usage and writer.counts_in_finish else None)
    if include_usage:
        yield from writer.usage(counts, finish)
    yield from writer.terminal()
    yield Close.TERMINATOR


def headed(script: Iterator[Event], headers: tuple[tuple[bytes, bytes], ...]) -> Iterator[Event]:
    """The script, its head with what an API adds to it."""
    return _headed(script, headers) if headers else script


def _headed(script: Iterator[Event], headers: tuple[tuple[bytes, bytes], ...]) -> Iterator[Event]:
    for event in script:
        if isinstance(event, Head):
            yield msgspec.structs.replace(event, headers=event.headers + headers)
            break
        yield event
    yield from script
