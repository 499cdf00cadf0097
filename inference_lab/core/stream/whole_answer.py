"""A response that is no stream, though it may begin like one: a status, an error, an answer in one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias

from inference_lab.core.apis.errors import DEFAULT_CODE, DEFAULT_MESSAGE, ErrorFields
from inference_lab.core.faults.death import HEALTHY, OPENED_KEYS, Death, at_defaults
from inference_lab.core.faults.silence import HEARTBEATS, beats_behind, beats_in, silence
from inference_lab.core.faults.values import Keyword
from inference_lab.core.stream.events import (
    AN_ERROR,
    NOTHING,
    BodyEnd,
    Delivered,
    Event,
    Frame,
    Head,
    Part,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.apis.dialects import Dialect

Whole: TypeAlias = Callable[[], Generator[Turn, None, tuple[bytes, Delivered]]]
"""Makes the JSON of an answer that is not streamed, and what it says, in turns."""

_JSON_TYPE: Final = b"application/json"
_HTML_TYPE: Final = b"text/html"


def answered(death: Death, writer: StreamWriter, whole: Whole) -> Iterator[Event]:
    """A response that is no stream, though it may begin like one."""
    kind, body, told = yield from _body(death, writer, whole)
    if not at_defaults(death, OPENED_KEYS):
        yield head_of(death, writer.dialect, kind or writer.dialect.content_type)
    else:
        yield _whole_head(death, kind, len(body))
    block = HEARTBEATS.get(death.heartbeat)
    beat = writer.empty() if block is None else Frame(block, part=Part.PING)
    yield from silence(death, death.ttft_ms, beat)
    if body:
        # After a heartbeat it is a line that is no field, which a reader of events passes over.
        yield Frame(body, said=NOTHING if beats_in(death, death.ttft_ms) else told)
    yield from beats_behind(death, beat)


def _whole_head(death: Death, kind: bytes, size: int) -> Head:
    headers = [(b"content-type", kind)] if kind else []
    if death.retry_after is not None:
        headers.append((b"retry-after", str(death.retry_after).encode("ascii")))
    # RFC 9110 section 8.6: no content-length in a 204, and in a 304 only that of the 200 it stands for.
    content_length = None if death.status in {204, 304} else size
    return Head(death.status, tuple(headers), "none" if content_length is None else "length", content_length)


def _body(
    death: Death, writer: StreamWriter, whole: Whole
) -> Generator[Turn, None, tuple[bytes, bytes, Delivered]]:
    """Its content type, its bytes and what it says."""
    if death.status != HEALTHY.status:
        if death.body == "html":
            return _HTML_TYPE, _html(death.status), AN_ERROR
        if death.body == "empty":
            return b"", b"", NOTHING
        return _JSON_TYPE, _error_json(death, writer, nested=death.body == "json"), AN_ERROR
    if death.answer_as == "json_error":
        return _JSON_TYPE, _error_json(death, writer, nested=True), AN_ERROR
    if death.answer_as == "html":
        return _HTML_TYPE, _html(502), AN_ERROR
    if death.answer_as == "empty":
        return b"", b"", NOTHING
    body, told = yield from whole()
    return _JSON_TYPE, body, told


def _html(status: int) -> bytes:
    return b"<html><head><title>%d</title></head><body><h1>%d</h1></body></html>\n" % (status, status)


def _error_json(death: Death, writer: StreamWriter, *, nested: bool) -> bytes:
    """An error as the API has it; `nested` false: its fields alone."""
    status = DEFAULT_CODE if death.status == HEALTHY.status else death.status
    code: object = status if death.code is None else death.code
    is_absent = isinstance(code, Keyword) and code.word == "absent"
    fields = ErrorFields(
        DEFAULT_MESSAGE if death.message is None else death.message,
        None if isinstance(code, Keyword) else code,  # type: ignore[arg-type] # a code, or the status
        has_code=not is_absent,
        type=death.type,
    )
    return writer.error_json(status, fields, nested=nested)


def head_of(
    death: Death,
    dialect: Dialect,
    kind: bytes,
    framing: BodyEnd = "stream",
    content_length: int | None = None,
) -> Head:
    """The head of a stream, or of what begins like one; its content type is `kind` unless the death has its own."""
    kind = kind if death.content_type is None else death.content_type.encode("ascii")
    headers = [(b"content-type", kind), *dialect.headers]
    if death.encoding in {"gzip", "gzip_truncated"}:
        headers.append((b"content-encoding", b"gzip"))
    return Head(
        200,
        tuple(headers),
        framing,
        content_length,
        idle_ms=death.idle_ms if death.close == "idle_close" else None,
        closes=death.close in {"fin_close", "eof"},
    )
