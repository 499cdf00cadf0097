"""The events of a response's stream.

What an answer says stands in items, of which one is open at a time; its closing events repeat what it has said, and the
last event of the stream repeats all items. Each event has its number, which it gets as it goes out: see `stamp`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from inference_lab.core.apis.contract import PLAIN, StreamWriter, quote
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.errors import DEFAULT_CODE
from inference_lab.core.stream.events import (
    AN_ERROR,
    NOTHING,
    UNREADABLE,
    Delivered,
    Frame,
    Part,
    finished,
    said_of,
)
from inference_lab.core.stream.read_back import said_by_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.apis.contract import Completion, Counts, Form
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.apis.errors import ErrorFields

NATIVE_ERROR, FAILED, FAILED_AND_DONE = "responses", "response_failed", "response_failed_and_done"
"""This API's errors: an event, a response that has failed, and that without an error before `[DONE]` (dynamo's)."""
_NUMBER: Final = b'"sequence_number":#'
"""Where the number goes: no string has these bytes, whose quotes would be escaped."""
_DONE: Final = Frame(b"data: [DONE]\n\n", part=Part.ERROR)
_STATUSES: Final = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "content_filter": "incomplete",
}
"""Of a response, by chat's finish reasons; any other is its own status."""
_REASONS: Final = {
    "length": b'{"reason":"max_output_tokens"}',
    "content_filter": b'{"reason":"content_filter"}',
}
_KINDS: Final[dict[str, str]] = {"text": "msg", "reasoning": "rs", "call": "fc"}
_DELTAS: Final[dict[str, bytes]] = {
    "text": b"response.output_text",
    "reasoning": b"response.reasoning_text",
    "call": b"response.function_call_arguments",
    "summary": b"response.reasoning_summary_text",
}


def event(kind: bytes, members: bytes) -> bytes:
    """One event; its members follow the type."""
    return b'event: %b\ndata: {"type":"%b",%b}\n\n' % (kind, kind, members)


def usage_json(counts: Counts, reasoning_tokens: int) -> bytes:
    """A `usage` object."""
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":%d},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
    ) % (
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
        reasoning_tokens,
        counts.prompt_tokens + counts.completion_tokens,
    )


class Shape:
    """What of a response follows from its request: reasoning as a `summary`, and what is `encrypted` beside it."""

    def __init__(self, *, summary: bool = False, encrypted: bool = False, called: str = "") -> None:
        self.summary, self.encrypted, self.called = summary, encrypted, called


class ResponsesWriter(StreamWriter):
    """See `contract.StreamWriter`. A call's announcement adds its item, and counts."""

    counts_in_finish = True
    numbers = True

    def __init__(
        self,
        completion: Completion,
        dialect: Dialect = LAB,
        form: Form = PLAIN,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(completion, dialect, form)
        self._shape = shape or Shape()
        self._digits = completion.id.partition("_")[2]
        self._open: tuple[Channel, int] | None = None
        self._name = b""
        self._said: list[str] = []
        self._items: list[bytes] = []  # those that were closed
        self._index = -1
        self._of_kind = dict.fromkeys(_KINDS, 0)
        self._reasoning_words = 0
        self._finish: tuple[str, Counts | None] | None = None
        self._sent = 0

    # -- the response

    def response(
        self, status: str, *, details: bytes = b"null", error: bytes = b"null", usage: bytes = b"null"
    ) -> bytes:
        """The object as it stands; its output are the items that were closed, none of a response that has failed."""
        output = b"" if status in {"in_progress", "failed"} else b",".join(self._items)
        return (
            b'{"id":%b,"object":"response","created_at":%d,"status":%b,"error":%b,"incomplete_details":%b,'
            b'"instructions":null,"max_output_tokens":null,"model":%b,"output":[%b],"parallel_tool_calls":true,'
            b'"previous_response_id":null,"reasoning":{"effort":null,"summary":null},"store":false,"temperature":1.0,'
            b'"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1.0,"truncation":"disabled",'
            b'"usage":%b,"metadata":{}}'
        ) % (
            quote(self.completion.id),
            self.completion.created,
            quote(status),
            error,
            details,
            quote(self.completion.model),
            output,
            usage,
        )

    def ended(self) -> bytes:
        """The response as its last event has it."""
        reason, counts = ("stop", self.counts()) if self._finish is None else self._finish
        usage = b"null" if counts is None else usage_json(counts, self._reasoning_words)
        return self.response(
            _STATUSES.get(reason, reason), details=_REASONS.get(reason, b"null"), usage=usage
        )

    def opening(self) -> Iterator[Frame]:
        """See `StreamWriter.opening`; the first of two events that are sent together."""
        made = self.response("in_progress")
        for kind, part in ((b"response.created", Part.BLOCK_START), (b"response.in_progress", Part.OPENING)):
            yield Frame(event(kind, b'"response":%b,%b' % (made, _NUMBER)), part=part)

    # -- items

    def content(self, piece: Piece) -> Iterator[Frame]:
        """See `StreamWriter.content`."""
        self.has_begun = True
        self.tokens += piece.token_count
        self._reasoning_words += piece.words if piece.channel == "reasoning" else 0
        is_announced = False
        if self._open != (piece.channel, piece.call) and not (self._finish is not None and self._index >= 0):
            yield from self.closings()
            is_announced = piece.channel == "call"
            yield from self._added(piece)
        if is_announced and not piece.delta:
            return
        self._said.append(piece.delta)
        delta, ident, where = quote(piece.delta), self._ident, b'"output_index":%d,' % self._index
        channel = self._shown(piece.channel)
        if channel == "call":
            members = b'"delta":%b,"item_id":%b,%b%b' % (delta, ident, where, _NUMBER)
        elif channel == "summary":
            members = b'"delta":%b,"item_id":%b,%b%b,"summary_index":0' % (delta, ident, where, _NUMBER)
        else:
            logprobs = b'"logprobs":[],' if channel == "text" else b""
            members = b'"content_index":0,"delta":%b,"item_id":%b,%b%b%b' % (
                delta,
                ident,
                logprobs,
                where,
                _NUMBER,
            )
        yield Frame(event(_DELTAS[channel] + b".delta", members), said=said_of(piece), part=Part.CONTENT)

    def _shown(self, channel: str) -> str:
        return "summary" if channel == "reasoning" and self._shape.summary else channel

    @property
    def _ident(self) -> bytes:
        """The open item's id."""
        assert self._open is not None or self._last is not None  # noqa: S101 - after an item was added
        return self._last

    def _added(self, piece: Piece) -> Iterator[Frame]:
        """What opens an item."""
        channel = piece.channel
        self._open, self._said = (channel, piece.call), []
        self._index += 1
        number = self._of_kind[channel]
        self._of_kind[channel] += 1
        more = f"_{number}" if number else ""
        self._last = quote(f"{_KINDS[channel]}_{self._digits}{more}")
        self._call_id = quote(f"call_{self._digits}{more}")
        self._name = quote(piece.name or self._shape.called)
        members = b'"item":%b,"output_index":%d,%b' % (
            self._item("in_progress", is_new=True),
            self._index,
            _NUMBER,
        )
        is_counted = channel == "call" and not piece.delta
        part, said = (Part.CONTENT, said_of(piece)) if is_counted else (Part.BLOCK_START, NOTHING)
        yield Frame(event(b"response.output_item.added", members), said=said, part=part)
        if channel != "call":
            yield Frame(self._part(b"added", ""), part=Part.BLOCK_START)

    def _part(self, word: bytes, text: str) -> bytes:
        """The event of an item's only part."""
        where = b'"item_id":%b,"output_index":%d' % (self._ident, self._index)
        assert self._open is not None  # noqa: S101 - of an open item
        if self._shown(self._open[0]) == "summary":
            part = b'{"type":"summary_text","text":%b}' % quote(text)
            members = b'%b,"part":%b,%b,"summary_index":0' % (where, part, _NUMBER)
            return event(b"response.reasoning_summary_part." + word, members)
        kind = (
            b'"output_text","annotations":[],"logprobs":[]'
            if self._open[0] == "text"
            else b'"reasoning_text"'
        )
        members = b'"content_index":0,%b,"part":{"type":%b,"text":%b},%b' % (
            where,
            kind,
            quote(text),
            _NUMBER,
        )
        return event(b"response.content_part." + word, members)

    def _item(self, status: str, *, is_new: bool = False) -> bytes:
        """The open item, as it is added, and as it is closed."""
        assert self._open is not None  # noqa: S101 - of an open item
        channel, ident, shown = self._open[0], self._ident, quote(status)
        text = quote("".join(self._said))
        if channel == "call":
            return b'{"id":%b,"type":"function_call","status":%b,"arguments":%b,"call_id":%b,"name":%b}' % (
                ident, shown, b'""' if is_new else text, self._call_id, self._name,
            )  # fmt: skip
        if channel == "text":
            content = (
                b"" if is_new else b'{"type":"output_text","annotations":[],"logprobs":[],"text":%b}' % text
            )
            return b'{"id":%b,"type":"message","status":%b,"content":[%b],"role":"assistant"}' % (
                ident,
                shown,
                content,
            )
        secret = b""
        if self._shape.encrypted and not is_new:
            secret = b'"encrypted_content":"lab:%b",' % b64encode("".join(self._said).encode())
        if self._shape.summary:
            summary = b"" if is_new else b'{"type":"summary_text","text":%b}' % text
            return b'{"id":%b,"type":"reasoning",%b"summary":[%b]}' % (ident, secret, summary)
        content = b"" if is_new else b'{"type":"reasoning_text","text":%b}' % text
        return b'{"id":%b,"type":"reasoning",%b"status":%b,"summary":[],"content":[%b]}' % (
            ident,
            secret,
            shown,
            content,
        )

    def closings(self, reason: str | None = None) -> Iterator[Frame]:
        """See `StreamWriter.closings`."""
        if self._open is None:
            return
        channel, text = self._shown(self._open[0]), "".join(self._said)
        where = b'"item_id":%b,' % self._ident
        index = b'"output_index":%d,' % self._index
        if channel == "call":
            members = b'"arguments":%b,%b%b%b' % (quote(text), where, index, _NUMBER)
        elif channel == "summary":
            members = b'%b%b%b,"summary_index":0,"text":%b' % (where, index, _NUMBER, quote(text))
        else:
            logprobs = b'"logprobs":[],' if channel == "text" else b""
            members = b'"content_index":0,%b%b%b%b,"text":%b' % (where, logprobs, index, _NUMBER, quote(text))
        yield Frame(event(_DELTAS[channel] + b".done", members), part=Part.BLOCK_END)
        if channel != "call":
            yield Frame(self._part(b"done", text), part=Part.BLOCK_END)
        item = self._item("incomplete" if reason in _REASONS else "completed")
        members = b'"item":%b,"output_index":%d,%b' % (item, self._index, _NUMBER)
        self._items.append(item)
        self._open = None
        yield Frame(event(b"response.output_item.done", members), part=Part.BLOCK_END)

    # -- the end

    def empty(self) -> Frame:
        """See `StreamWriter.empty`; see `Api.lacks` too."""
        return Frame(b":\n\n", part=Part.PING)

    def finish(self, reason: str, counts: Counts | None = None) -> tuple[Frame, ...]:
        """See `StreamWriter.finish`: the last event says it."""
        self._finish = (reason, counts)
        return ()

    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        """No event has both; see `Api.lacks`."""
        raise NotImplementedError(piece, reason, counts)

    def usage(self, counts: Counts, reason: str | None = None) -> tuple[Frame, ...]:
        """See `StreamWriter.usage`: the last event has them."""
        del counts, reason
        return ()

    def terminal(self) -> Iterator[Frame]:
        """See `StreamWriter.terminal`."""
        reason, counts = ("stop", self.counts()) if self._finish is None else self._finish
        kind = b"response." + _STATUSES.get(reason, reason).encode()
        usage = None if counts is None else counts.json()
        said = finished(reason, usage) + Delivered(done=True)
        yield Frame(event(kind, b'"response":%b,%b' % (self.ended(), _NUMBER)), said=said, part=Part.TERMINAL)

    def error(self, variant: str, fields: ErrorFields, *, is_first: bool) -> Iterator[Frame]:
        """See `StreamWriter.error`."""
        code = quote("server_error" if fields.code == DEFAULT_CODE else fields.code)
        if variant == NATIVE_ERROR:
            kind = quote("server_error" if fields.type is None else fields.type)
            error = b'{"type":%b,"code":%b,"message":%b,"param":null}' % (kind, code, quote(fields.message))
            data = event(b"error", b'%b,"error":%b' % (_NUMBER, error))
            yield Frame(data, said=AN_ERROR, part=Part.ERROR)
        elif variant in {FAILED, FAILED_AND_DONE}:
            error = b"null"
            if variant == FAILED:
                error = b'{"code":%b,"message":%b}' % (code, quote(fields.message))
            made = self.response("failed", error=error)
            data = event(b"response.failed", b'"response":%b,%b' % (made, _NUMBER))
            yield Frame(data, said=AN_ERROR, part=Part.ERROR)
            if variant == FAILED_AND_DONE:
                yield _DONE
        else:
            block = self.foreign_error(variant, fields)
            yield Frame(block, said=said_by_error(block, is_first=is_first), part=Part.ERROR)

    def malformed(self) -> Frame:
        """See `StreamWriter.malformed`."""
        data = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            b'"content_index":0,"delta":"\n\n'
        )
        return Frame(data, said=UNREADABLE)

    def stamp(self, frame: Frame) -> Frame:
        """See `StreamWriter.stamp`."""
        if _NUMBER not in frame.data:
            return frame
        number = b'"sequence_number":%d' % self._sent
        self._sent += 1
        return replace(frame, data=frame.data.replace(_NUMBER, number, 1))
