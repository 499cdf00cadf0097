"""The player in memory: deadlines, tokens, back-pressure, and nothing left behind."""

from __future__ import annotations

from itertools import count, repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.faults.death import Close
from inference_lab.core.stream.events import ONE_WORD, Await, Break, Burst, Event, Frame, Pause, single
from inference_lab.wire import transport as wire_transport
from inference_lab.wire.h1 import channel as wire_http
from tests.support.memory import GET, Stage, body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A_FRAME = b"3\r\nabc\r\n"


def paced(frames: int, ms: int, close: Close) -> Iterator[Event]:
    for index in range(frames):
        if index:
            yield Pause(ms)
        yield Frame(b"abc")
    yield close


def test_each_frame_is_written_when_it_is_due_and_not_before() -> None:
    stage = Stage(lambda: paced(3, 125, Close.HANG))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == A_FRAME
    stage.clock.advance(0.124)
    assert transport.value() == b""
    stage.clock.advance(0.001)
    assert transport.value() == A_FRAME
    transport.clear()
    stage.clock.advance(0.125)
    assert transport.value() == A_FRAME


def test_the_time_between_content_frames_is_counted_without_what_they_waited_for_before_and_after() -> None:
    def content() -> Iterator[Event]:
        yield Pause(500)
        for _ in range(3):
            yield Frame(b"abc", said=ONE_WORD)
            yield Pause(125)
        yield Close.TERMINATOR

    stage = Stage(content)
    channel, _ = stage.connect()
    channel.dataReceived(GET)
    (player,) = stage.players
    for _ in range(7):
        stage.clock.advance(0.125)
    assert (player.content_frames, player.speaking_us) == (3, 250_000)
    assert player.request.model.itl_us.sum_us == 250_000


def test_deadlines_are_absolute_so_a_late_wake_up_is_caught_up_in_one_write() -> None:
    stage = Stage(lambda: paced(10, 125, Close.HANG))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    body_of(transport)
    stage.clock.advance(0.5)  # the process stood still for four deadlines
    assert transport.value() == A_FRAME * 4
    transport.clear()
    stage.clock.advance(0.125)
    assert transport.value() == A_FRAME


def test_a_terminator_ends_the_response_and_the_connection_serves_the_next_request() -> None:
    stage = Stage(lambda: paced(1, 0, Close.TERMINATOR))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == A_FRAME + b"0\r\n\r\n"
    assert transport.connected
    channel.dataReceived(GET)
    assert body_of(transport) == A_FRAME + b"0\r\n\r\n"
    channel.connectionLost(None)  # type: ignore[arg-type] # the reason is not looked at
    assert stage.clock.getDelayedCalls() == []
    assert stage.gone == 2


@pytest.mark.parametrize("close", [Close.FIN, Close.RST])
def test_an_abrupt_ending_waits_for_the_flush_grace_and_writes_no_terminator(close: Close) -> None:
    stage = Stage(lambda: paced(1, 0, close))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    stage.clock.advance(0.024)
    assert transport.connected
    stage.clock.advance(0.002)
    assert not transport.connected
    assert body_of(transport) == A_FRAME
    assert stage.clock.getDelayedCalls() == []
    assert stage.gone == 1


def test_a_stall_stays_open_for_a_day_and_writes_nothing() -> None:
    stage = Stage(lambda: paced(1, 0, Close.HANG))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == A_FRAME
    for _ in range(24):
        stage.clock.advance(3600)
    assert transport.connected
    assert transport.value() == b""


def test_a_client_that_leaves_ends_the_work_at_once() -> None:
    stage = Stage(lambda: paced(10, 2**63, Close.HANG))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    transport.loseConnection()
    assert stage.clock.getDelayedCalls() == []
    assert stage.gone == 1


def test_a_paused_player_writes_nothing_and_goes_on_when_resumed() -> None:
    stage = Stage(lambda: paced(4, 125, Close.TERMINATOR))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    body_of(transport)
    channel.pauseProducing()
    stage.clock.advance(0.25)
    assert transport.value() == b""
    channel.resumeProducing()
    assert transport.value() == A_FRAME * 2
    transport.clear()
    channel.pauseProducing()
    channel.resumeProducing()
    assert transport.value() == b"", "nothing is due yet"
    stage.clock.advance(0.125)
    assert transport.value() == A_FRAME + b"0\r\n\r\n"


def test_a_stream_that_is_pipelined_behind_an_answer_still_under_way_waits_for_the_reader_too() -> None:
    def first() -> Iterator[Event]:
        yield Frame(b"abc")
        yield Pause(125)
        yield Close.TERMINATOR

    scripts = iter([first(), paced(1, 0, Close.HANG)])
    stage = Stage(lambda: next(scripts))
    channel, transport = stage.connect()
    channel.dataReceived(GET + GET)
    channel.pauseProducing()  # TLS says so once, and not for each write more
    body_of(transport)
    stage.clock.advance(0.125)
    assert transport.value().startswith(b"0\r\n\r\nHTTP/1.1 200 ")
    assert transport.value().endswith(b"\r\n\r\n")
    transport.clear()
    channel.resumeProducing()
    assert transport.value() == A_FRAME


BURSTS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 7, 125])), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from([0, 1, 7, 124, 125, 600]), st.booleans()), max_size=8)


@given(BURSTS, st.sampled_from([0, 125]), STEPS)
def test_a_burst_is_written_as_the_frames_and_pauses_that_it_stands_for(
    bursts: list[tuple[int, int]], between_ms: int, steps: list[tuple[int, bool]]
) -> None:
    def script() -> Iterator[Event]:
        for place, (size, every_ms) in enumerate(bursts):
            if place and between_ms:
                yield Pause(between_ms)
            yield Burst([b"%d.%d" % (place, frame) for frame in range(size)], every_ms)
        yield Close.TERMINATOR

    def written(make: Callable[[], Iterator[Event]]) -> list[tuple[bytes, int, int]]:
        stage = Stage(make)
        channel, transport = stage.connect()
        channel.dataReceived(GET)
        (player,) = stage.players
        found = [(body_of(transport), player.frames, player.content_frames)]
        for step_ms, reads in [*steps, (600, True)]:
            (channel.resumeProducing if reads else channel.pauseProducing)()
            stage.clock.advance(step_ms / 1000)
            found.append((transport.value(), player.frames, player.content_frames))
            transport.clear()
        return found

    assert written(script) == written(lambda: single(script()))


def test_raw_bytes_wait_for_a_slow_reader_too_and_keep_their_place() -> None:
    def script() -> Iterator[Event]:
        yield from (
            Frame(b"abc"),
            Pause(125),
            Break("raw", b"zz"),
            Break("raw", b"yy"),
            Frame(b"abc"),
            Close.HANG,
        )

    stage = Stage(script)
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    body_of(transport)
    channel.pauseProducing()
    stage.clock.advance(1)
    assert transport.value() == b""
    channel.resumeProducing()
    assert transport.value() == b"zzyy" + A_FRAME


def test_frames_due_together_leave_in_bursts_and_other_streams_get_their_turn_between() -> None:
    stage = Stage(lambda: (Frame(b"x" * 1000) for _ in repeat(None)))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert 65_536 <= len(body_of(transport)) < 67_500
    stage.clock.turn()
    assert 65_536 <= len(transport.value()) < 67_500
    transport.loseConnection()
    assert stage.clock.getDelayedCalls() == []


def test_sends_of_a_byte_let_other_streams_have_their_turn_far_sooner() -> None:
    stage = Stage(lambda: (Frame(b"x", alone=True) for _ in repeat(None)))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == b"1\r\nx\r\n" * 64
    transport.loseConnection()


@pytest.mark.parametrize("joined", [False, True])
def test_a_burst_stops_where_the_consumer_pauses_it(*, joined: bool) -> None:
    frames = (Frame(b"%08d" % number) for number in count())
    stage = Stage(lambda: (Burst([b"%08d" % number] * 64) for number in count()) if joined else frames)
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    body_of(transport)
    channel.pauseProducing()
    stage.clock.turn()
    stage.clock.turn()
    assert transport.value() == b""
    channel.resumeProducing()
    assert 65_536 <= len(transport.value()) < 130_000
    transport.loseConnection()


def test_content_waits_for_the_engines_tokens() -> None:
    def script() -> Iterator[Event]:
        for tokens in (1, 3, 1):
            yield Await(tokens)
            yield Frame(b"abc")
        yield Close.TERMINATOR

    stage = Stage(script)
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert body_of(transport) == b""
    (player,) = stage.players
    for tokens, written in ((1, A_FRAME), (2, b""), (1, A_FRAME), (1, A_FRAME + b"0\r\n\r\n")):
        player.on_tokens(tokens)
        assert transport.value() == written
        transport.clear()
    assert stage.gone == 1


def test_tokens_that_come_together_are_written_together_and_a_paused_reader_keeps_its_credit() -> None:
    def script() -> Iterator[Event]:
        for _ in range(4):
            yield Await(1)
            yield Frame(b"abc")
        yield Close.TERMINATOR

    stage = Stage(script)
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    body_of(transport)
    (player,) = stage.players
    channel.pauseProducing()
    player.on_tokens(3)
    assert transport.value() == b""
    channel.resumeProducing()
    assert transport.value() == A_FRAME * 3
    transport.clear()
    player.on_tokens(1)
    assert transport.value() == A_FRAME + b"0\r\n\r\n"


def test_a_body_over_the_limit_is_dropped_as_it_comes() -> None:
    stage = Stage(lambda: paced(1, 0, Close.TERMINATOR), max_body_bytes=10)
    channel, transport = stage.connect()
    channel.dataReceived(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 11\r\n\r\n12345")
    assert transport.value().startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in transport.value()
    transport.clear()
    channel.dataReceived(b"678901" + GET)
    assert transport.value() == b""
    assert stage.players == []
    stage.clock.advance(10)
    assert not transport.connected
    assert stage.clock.getDelayedCalls() == []


def test_a_defect_in_one_script_resets_its_stream_and_leaves_the_others_alone() -> None:
    def broken() -> Iterator[Event]:
        yield Frame(b"abc")
        yield Pause(125)
        raise ZeroDivisionError

    scripts = iter([broken(), paced(3, 125, Close.HANG)])
    stage = Stage(lambda: next(scripts))
    bad, good = stage.connect(), stage.connect()
    for channel, _ in (bad, good):
        channel.dataReceived(GET)
    body_of(good[1])
    stage.clock.advance(0.125)
    assert not bad[1].connected
    assert good[1].value() == A_FRAME
    assert stage.gone == 1


def test_an_idle_client_with_a_response_still_under_way_is_reset_only_when_it_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose rest the kernel has already taken, so that nothing in this process is left to send."""
    under_way = [1000]
    for module in (wire_http, wire_transport):
        monkeypatch.setattr(module, "unsent_bytes", lambda _: under_way[0])
    stage = Stage(lambda: paced(1, 0, Close.TERMINATOR))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    stage.clock.advance(61)  # Twisted's idle timeout
    for _ in range(40):  # the reader takes a byte a second
        under_way[0] -= 1
        stage.clock.advance(1)
    assert transport.connected
    for _ in range(31):
        stage.clock.advance(1)
    assert not transport.connected
    assert stage.clock.getDelayedCalls() == []
