"""Large answers in pieces: what a reader that is slow holds up, and how many there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from inference_lab.core.errors import ApiError
from inference_lab.wire import pieces
from inference_lab.wire.pieces import LargeAnswers, Pieces

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Watch:
    """Stands for a look-out for readers that take nothing."""

    is_on = True

    def stop(self) -> None:
        self.is_on = False


class Request:
    """A response whose reader is what the test says."""

    has_left = False

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.watches: list[Watch] = []
        self.producer: Any = None
        self.response = self

    def watch_reader(self) -> Watch:
        self.watches.append(Watch())
        return self.watches[-1]

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: N802 - Twisted's
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:  # noqa: N802 - Twisted's
        self.producer = None

    def write(self, data: bytes) -> None:
        self.written.append(data)


def begun(work: Coroutine[Deferred[Any], Any, None]) -> Deferred[None]:
    return ensureDeferred(work)


def test_the_next_piece_is_made_when_the_reader_has_room() -> None:
    request = Request()
    made = Pieces(request)  # type: ignore[arg-type] # stands for a request
    assert begun(made.send(b"1")).called
    request.producer.pauseProducing()
    waiting = begun(made.send(b"2"))
    assert (request.written, waiting.called) == ([b"1", b"2"], False)
    assert [watch.is_on for watch in request.watches] == [True]
    request.producer.resumeProducing()
    assert waiting.called
    assert [watch.is_on for watch in request.watches] == [False]
    made.stop()
    assert request.producer is None


@pytest.mark.parametrize("bound", ["count", "bytes"])
def test_past_the_bound_an_answer_is_a_503_until_another_is_over(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MOST_ANSWERS", 1 if bound == "count" else 100)
    monkeypatch.setattr(pieces, "MOST_HELD_BYTES", 10)
    answers = LargeAnswers()
    with answers.begin(Request(), 50):  # type: ignore[arg-type] # as above
        with pytest.raises(ApiError) as refused, answers.begin(Request(), 1):  # type: ignore[arg-type] # as above
            pass
        assert (refused.value.status, refused.value.code) == (503, "too_many_answers")
        assert refused.value.headers == (("retry-after", "1"),)
    with answers.begin(Request(), 1):  # type: ignore[arg-type] # as above
        pass
