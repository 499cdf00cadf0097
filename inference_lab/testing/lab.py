"""What a test asks of a running lab: a death, a message that carries one, the journal, a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference_lab.testing import journal
from inference_lab.testing.received import Received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from inference_lab.core.faults.incident import Incidents
    from inference_lab.core.oracle import Ended, Usage, Verdict
    from inference_lab.testing.current import CurrentTest
    from inference_lab.testing.journal import Row

HEALTHY = "ok"


class Handle:
    """The part that is the same wherever the server runs.

    `url` is without a slash at its end, `others` are those of further ports; `incidents` tells which modes the served
    config adds.
    """

    def __init__(
        self,
        url: str,
        current: CurrentTest,
        incidents: Callable[[], Incidents],
        others: Sequence[str] = (),
    ) -> None:
        self.url = url
        self.urls = (url, *others)
        self._current = current
        self._incidents = incidents

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def test(self) -> str | None:
        """The id that the last `fault()` or `prompt()` of this test has used; None before the first."""
        return self._current.latest

    def fault(self, directive: str | None = None) -> dict[str, str]:
        """Headers for a request that is to die so, with a fresh test id; without a directive as the test's marker says.

        Raises:
            ValueError: no directive, or one that the server would refuse.
        """
        wanted = self._wanted(directive)
        if wanted is None:
            raise ValueError(
                'no fault to ask for: give a directive, or mark the test @pytest.mark.fault("reset;after_chunks=2")'
            )
        from inference_lab.core.faults.plan import plan_from_header  # noqa: PLC0415 - nothing is loaded before its use

        test = self._current.fresh()
        directive = f"{wanted};test={test}"
        plan_from_header(directive, self._incidents())
        return {"x-inference-lab-fault": directive, "x-test-id": test}

    def prompt(self, text: str, fault: str | None = None) -> dict[str, str]:
        """A user's message that tells the server how to die, through any gateway, with a fresh test id.

        Without a fault as the test's marker says; without a marker nothing dies.

        Raises:
            ValueError: a directive that the server would refuse.
        """
        wanted = self._wanted(fault)
        if wanted is None:
            wanted = HEALTHY
        from inference_lab.core.faults.plan import plan_from_prompt  # noqa: PLC0415

        directive = f"{wanted};test={self._current.fresh()}"
        plan_from_prompt(directive, self._incidents())
        return {"role": "user", "content": f"{text} <<fault:{directive}>>"}

    def verify(  # noqa: PLR0913 - what the command takes, each by its name
        self,
        response: object,
        *,
        tokens: int | None = None,
        max_tokens: int | None = None,
        ended: Ended | None = None,
        start: int = 0,
        tag: str | None = None,
        hidden_tokens: int = 0,
        status: int | None = None,
        stream: bool | None = None,
        finish: str | None = None,
        usage: Usage = "not",
        ignore: Iterable[str] = (),
    ) -> Verdict:
        """Judge what a client has received; see docs/verify.md.

        `response` is text, bytes, an iterable of either, or a response of httpx or requests. An iterable that stops
        with the client's own exception has died there. Unless `ended` says otherwise, a response that could be read is
        taken as ended cleanly, an exception as a broken end, and bytes alone as neither. Unless `status` and `stream`
        are given, they are the response's status and what its request asked for, where it tells them.

        Raises:
            TypeError: something else.
            ValueError: both `tokens` and `max_tokens`; a name in `ignore` that is neither a finding's nor a weight's.
        """
        from inference_lab.core.oracle import verify  # noqa: PLC0415

        received = Received(response)
        body = list(received.blocks())  # how it ended must be known before it is judged
        return verify(
            body,
            tokens=tokens,
            max_tokens=max_tokens,
            ended=ended or received.ended,
            start=start,
            tag=tag,
            hidden_tokens=hidden_tokens,
            status=received.status if status is None else status,
            stream=received.stream if stream is None else stream,
            finish=finish,
            usage=usage,
            ignore=ignore,
        )

    def _wanted(self, directive: str | None) -> str | None:
        marked = self._current.marked
        if directive is not None or marked is None:
            return directive
        if len(marked) != 1 or not isinstance(marked[0], str):
            raise ValueError(
                f'@pytest.mark.fault takes one directive, such as "reset;after_chunks=2", not {marked}'
            )
        return marked[0]

    def _query(self, test: str | None, count: int, wait_s: float, filters: dict[str, object]) -> str:
        if test is None and not filters:
            test = self.test
        return journal.query(test, count=count, wait_s=wait_s, filters=filters)

    def _rows(self, path: str, wait_s: float) -> list[Row]:
        return journal.rows(*journal.fetch(self.url, path, timeout_s=wait_s + journal.PATIENCE_S))


class InferenceLab(Handle):
    """A lab in a process of its own."""

    def journal(
        self, *, test: str | None = None, count: int = 1, wait_s: float = 5, **filters: object
    ) -> list[Row]:
        """What the server has seen of the latest `fault()` or `prompt()`, oldest first.

        Waits until `count` requests have ended, or `wait_s` seconds (at most 60). `test` is another id; `filters` are
        those of docs/journal.md, over all tests unless `test` is given.

        Raises:
            ValueError: nothing to ask about, or a filter that the server does not know.
        """
        return self._rows(self._query(test, count, wait_s, filters), wait_s)
