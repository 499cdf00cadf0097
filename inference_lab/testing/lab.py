"""What a test asks of a running lab: a death, a message that carries one, the journal, a verdict; and which test."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode, urlsplit

from inference_lab.testing.received import Received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from inference_lab.core.faults.incident import Incidents
    from inference_lab.core.oracle import Ended, Usage, Verdict

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH = 40

Row: TypeAlias = dict[str, Any]
"""One request as the server saw it; docs/journal.md lists the keys."""

_PATIENCE_S = 10.0
"""How long an answer may take beyond what it was asked to wait."""

HEALTHY = "ok"


class CurrentTest:
    """What a lab knows about the test that asks it.

    Ids are counted per test, not drawn: the same test sends the same bytes in every run, alone or among others, so it
    gets the same words and the same death. They are unique on one server, however often a test is run again.
    """

    def __init__(self) -> None:
        self.marked: tuple[object, ...] | None = None
        """The arguments of the test's `fault` marker, if it has one."""
        self.latest: str | None = None
        """The last id that this test has got."""
        self._name = "test"
        self._counts: Counter[str] = Counter()

    def begin(self, name: str, marked: tuple[object, ...] | None = None) -> None:
        """Another test runs now; `name` is its full one, such as pytest's node id; `marked` see there."""
        short = _FOREIGN.sub("-", re.split(r"::|\.(?=\w+$)", name)[-1])[:_NAME_LENGTH].strip("-")
        # Tests in different files may share the short name.
        digest = hashlib.blake2b(name.encode(errors="backslashreplace"), digest_size=4).hexdigest()
        self._name = f"{short or 'test'}-{digest}"
        self.marked = marked
        self.latest = None

    def fresh(self) -> str:
        """A new id: 1 to 64 characters of `[A-Za-z0-9._-]`."""
        self._counts[self._name] += 1
        self.latest = f"{self._name}-{self._counts[self._name]}"
        return self.latest


def _path(test: str | None, *, count: int, wait_s: float, filters: dict[str, object]) -> str:
    """The path to ask for.

    Raises:
        ValueError: no test to ask about.
    """
    if test is None and not filters:
        raise ValueError("no test to ask about: call fault() or prompt() first, or give test=…")
    asked = {} if test is None else {"test": test}
    return "/lab/journal?" + urlencode({**asked, "count": count, "wait": f"{wait_s:g}", **filters})


def _rows_in(status: int, body: bytes) -> list[Row]:
    """The rows of an answer, oldest first.

    Raises:
        ValueError: the server has refused the question, with its reason.
    """
    answer = json.loads(body)
    if status != 200:
        raise ValueError(f"the journal says {status}: {answer['error']['message']}")
    data: list[Row] = answer["data"]
    return data


def _fetch(url: str, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """GET, straight from the server whatever proxy the environment names; status and body.

    Raises:
        ValueError: the server is on a Unix socket.
    """
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415 - 30 ms, for whoever asks nothing

    address = urlsplit(url)
    host, port = address.hostname or "", address.port
    if address.scheme == "https":
        import ssl  # noqa: PLC0415 - as above

        # The server is ours, whatever its certificate says.
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=timeout_s, context=trusting)
    elif address.scheme == "http":
        connection = HTTPConnection(host, port, timeout=timeout_s)
    else:
        raise ValueError(f"the journal of a lab is asked for over TCP, not at {url}")
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


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
        return _path(test, count=count, wait_s=wait_s, filters=filters)

    def _rows(self, path: str, wait_s: float) -> list[Row]:
        return _rows_in(*_fetch(self.url, path, timeout_s=wait_s + _PATIENCE_S))


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
