"""A stream's head is put together without Twisted, and is the one Twisted would write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from twisted.web.server import NOT_DONE_YET

from inference_lab.core.faults.death import Close
from inference_lab.core.stream.events import Event, Frame, Head
from tests.support.memory import GET, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.wire.request import LabRequest

REQUESTS = {
    "1.1": GET,
    "1.1, closing": GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    "1.0": GET.replace(b"HTTP/1.1", b"HTTP/1.0"),
}


def script() -> Iterator[Event]:
    yield Frame(b"abc")
    yield Close.TERMINATOR


class Own(Stage):
    """A stream's head as this server writes it."""

    head = Head(200, ((b"content-type", b"text/plain"), (b"x-more", b"1")))


class Twisteds(Stage):
    """The same head through Twisted's headers and its first write."""

    def render(self, request: LabRequest) -> int:
        headers = {"content-type": "text/plain", "x-more": "1"}
        if not request.has_chunks:
            headers["connection"] = "close"
        headers["access-control-allow-origin"] = "*"
        for name, value in headers.items():
            request.responseHeaders.addRawHeader(name, value)
        request.write(b"abc")
        request.finish()
        return NOT_DONE_YET


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS)
def test_the_whole_response_is_what_twisted_would_write(data: bytes) -> None:
    written = []
    for stage in (Own(script), Twisteds(script)):
        channel, transport = stage.connect()
        channel.dataReceived(data)
        written.append(re.sub(rb"Date: [^\r]*", b"Date: now", transport.value()))
    assert written[0] == written[1]
    assert b"\r\nDate: now\r\n" in written[0]


def test_head_frames_and_end_that_are_due_together_are_one_write() -> None:
    stage = Own(script)
    channel, transport = stage.connect()
    writes: list[bytes] = []
    transport.write = writes.append  # type: ignore[method-assign]
    channel.dataReceived(GET)
    (data,) = writes
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert data.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


def test_a_head_with_nothing_to_follow_it_goes_out_by_itself() -> None:
    stage = Own(lambda: iter([Close.HANG]))
    channel, transport = stage.connect()
    channel.dataReceived(GET)
    assert transport.value().endswith(b"\r\n\r\n")
    assert transport.value().count(b"HTTP/1.1 200 OK\r\n") == 1
