"""`/lab/journal` and `/lab/verdict`: what the journal holds, at once or as soon as so much is there, and judged."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.journal.conversation import verdicts
from inference_lab.core.journal.filters import Filter, Wait, filter_of, part_of, wait_of
from inference_lab.core.journal.row import Row
from inference_lab.storage.database import Database, DatabaseError
from inference_lab.web.query import query_of, refused, to_remove
from inference_lab.wire.pieces import PIECE_BYTES, LargeAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.interfaces import IDelayedCall

    from inference_lab.storage.pages import Page
    from inference_lab.storage.store import Store
    from inference_lab.wire.pacer import Pacer
    from inference_lab.wire.recording import Recorder
    from inference_lab.wire.request import LabRequest

_T = TypeVar("_T")
_LOOK_EVERY_S: Final = 0.05  # other workers write in batches of the same length
_GRACE_S: Final = 1.0
_BEGIN: Final = b'{"object":"list","data":['

_log: Final = Logger()


class JournalPages:
    """Answers for `store`, into which `recorder` hands what is over."""

    def __init__(self, store: Store, recorder: Recorder, pacer: Pacer) -> None:
        self._store = store
        self._recorder = recorder
        self._pacer = pacer
        self._pauses: dict[Deferred[None], IDelayedCall] = {}
        self._asked = 0  # questions that are not answered yet, with the waits they belong to
        self._quiet: Deferred[None] | None = None
        self._large = LargeAnswers()

    async def rows(self, request: LabRequest) -> bytes:
        """The rows that match, the oldest first; with `wait` once `count` of them have ended.

        Raises:
            ApiError: 400 for a query that is none, 503 when the journal does not answer.
        """
        query = query_of(request)
        try:
            wait = wait_of(query.pop("wait", None), query.pop("count", None))
            part = part_of(query.pop("limit", None), query.pop("after", None))
            wanted = filter_of(query)
        except ValueError as error:
            raise refused(error) from None
        with self._asking():
            if wait is not None:
                await self._wait(wanted, wait)
            page = await self._ask(
                lambda database: database.read_page(wanted, part.after, most_rows=part.limit), look=True
            )
            left = None if part.limit is None else part.limit - len(page.rows)
            if page.next is None or left == 0:
                return request.prepare_json(200, _BEGIN + b",".join(page.rows) + self._rest(page))
            return await self._further(request, wanted, page, left)

    async def _further(self, request: LabRequest, wanted: Filter, page: Page, left: int | None) -> bytes:
        """Send what does not fit in a page; answers the last piece."""
        with self._large.begin(request) as pieces:
            request.prepare_json_pieces()
            if request.method == b"HEAD":
                return b""
            await pieces.send(_BEGIN + b",".join(page.rows))
            while True:
                page = await self._next_page(request, wanted, page, left)
                left = None if left is None else left - len(page.rows)
                told = b"".join(b"," + row for row in page.rows)
                if page.next is None or left == 0:
                    return told + self._rest(page)
                await pieces.send(told)

    async def _next_page(self, request: LabRequest, wanted: Filter, page: Page, left: int | None) -> Page:
        def question(database: Database) -> Page:
            return database.read_page(wanted, page.next, until=page.until, most_rows=left)

        try:
            return await self._store.ask(question)
        except DatabaseError as error:  # rather no answer than half of one
            _log.error("{request}: broken off, journal {error}", request=request, error=error)
            request.response.cut()
            return await Deferred()  # cancelled when the connection is gone

    def _rest(self, page: Page) -> bytes:
        told = {
            "lost_rows": self._store.lost_rows,
            "dropped_rows": page.dropped,
            "next": None if page.next is None else str(page.next),
        }
        return b"]," + msgspec.json.encode(told)[1:]

    async def verdict(self, request: LabRequest) -> bytes:
        """The conversations of one key or one test, or all of them, judged.

        Raises:
            ApiError: 400 for a query that does not name which, 503 as in `rows`.
        """
        query = query_of(request)
        prompt, test, says_all = (query.pop(key, None) for key in ("prompt", "test", "all"))
        if query or [prompt, test, says_all].count(None) != 2:
            raise invalid_request(
                "give one of prompt=KEY, test=ID and all=true, and nothing else", next(iter(query), "prompt")
            )
        if says_all not in {None, "true"}:
            raise invalid_request(f"all: is {says_all!r:.60}, expected true", "all")
        try:
            filter_of(
                {key: value for key, value in (("prompt", prompt), ("test", test)) if value is not None}
            )
        except ValueError as error:
            raise refused(error) from None

        def question(database: Database) -> bytes:
            return msgspec.json.encode(verdicts(partial(_rows_of, database), prompt=prompt, test=test))

        self._large.refuse_further()
        with self._asking():
            judged = await self._ask(question, look=True)
            if len(judged) <= PIECE_BYTES or request.method == b"HEAD":
                return request.prepare_json(200, b"%b%b]}" % (_BEGIN, judged[1:-1]))
            with self._large.begin(request, len(judged)) as pieces:
                request.prepare_json_pieces()
                await pieces.send(_BEGIN)
                for begin in range(1, len(judged) - 1, PIECE_BYTES):
                    await pieces.send(judged[begin : min(begin + PIECE_BYTES, len(judged) - 1)])
                return b"]}"

    async def delete(self, request: LabRequest) -> bytes:
        """Remove the rows that match; without a filter only if the query says `all=true`.

        Raises:
            ApiError: see `rows`.
        """
        wanted = to_remove(request, "remove all rows")
        with self._asking():
            deleted = await self._ask(lambda database: database.delete(wanted))
        return request.prepare_json(200, msgspec.json.encode({"deleted": deleted}))

    def finish(self) -> Deferred[None]:
        """The server is about to end: whoever waits is answered with what is there; fires when all are."""
        if self._quiet is None:
            self._quiet = Deferred()
            if not self._asked:
                self._quiet.callback(None)
        for pause, call in list(self._pauses.items()):
            call.cancel()
            self._wake(pause)
        return self._quiet

    def end(self) -> Deferred[None]:
        """As `finish`, and who has not taken a large answer soon after that is reset."""
        quiet = self.finish()
        if not quiet.called:
            reset = self._pacer.clock.callLater(_GRACE_S, self._large.reset_all)
            quiet.addCallback(lambda _: reset.cancel() if reset.active() else None)
        return quiet

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked and self._quiet is not None and not self._quiet.called:
                self._quiet.callback(None)

    async def _wait(self, wanted: Filter, wait: Wait) -> None:
        until_us = self._pacer.now_us() + round(wait.seconds * 1e6)
        while self._quiet is None:
            if await self._ask(lambda database: database.count_ended(wanted)) >= wait.count:
                return
            left_s = (until_us - self._pacer.now_us()) / 1e6
            if left_s <= 0:
                return
            await self._pause(min(left_s, _LOOK_EVERY_S))

    def _pause(self, seconds: float) -> Deferred[None]:
        pause: Deferred[None] = Deferred(lambda pause: self._pauses.pop(pause).cancel())
        self._pauses[pause] = self._pacer.clock.callLater(seconds, self._wake, pause)
        return pause

    def _wake(self, pause: Deferred[None]) -> None:
        del self._pauses[pause]
        pause.callback(None)

    async def _ask(self, question: Callable[[Database], _T], *, look: bool = False) -> _T:
        self._recorder.flush(look=look)
        try:
            return await self._store.ask(question)
        except DatabaseError as error:
            raise ApiError(503, "journal_unavailable", f"journal {error}") from None


def _rows_of(database: Database, wanted: Filter) -> list[Row]:
    return [msgspec.json.decode(document, type=Row) for document in database.read(wanted)]
