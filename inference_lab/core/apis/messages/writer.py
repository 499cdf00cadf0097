"""The events of a message's stream.

An event has its name twice: in the `event:` line, and as the `type` of its data. What an answer says stands in blocks,
of which one is open at a time; a block opens with its first word and closes with what comes after its last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.contract import PLAIN, StreamWriter, quote
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.errors import DEFAULT_MESSAGE
from inference_lab.core.apis.messages.reader import STOP_REASONS
from inference_lab.core.apis.messages.signature import Signature
from inference_lab.core.stream.events import (
    AN_ERROR,
    NOTHING,
    SAID_DONE,
    UNREADABLE,
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

NATIVE_ERROR: Final = "anthropic"
"""The variant that is an event of this API, with a message and a type of its own choice."""
ERROR_AND_DONE: Final = "anthropic_and_done"
"""The same with `[DONE]` after it: dynamo's."""
_OVERLOADED: Final = ("overloaded_error", "Overloaded")
_STARTS: Final[dict[str, bytes]] = {
    "text": b'{"type":"text","text":""}',
    "reasoning": b'{"type":"thinking","thinking":"","signature":""}',
}
_DELTAS: Final[dict[str, bytes]] = {
    "text": b'{"type":"text_delta","text":',
    "reasoning": b'{"type":"thinking_delta","thinking":',
    "call": b'{"type":"input_json_delta","partial_json":',
}


def event(name: bytes, members: bytes = b"") -> bytes:
    """One event; `members` follow the type, each with its comma before it."""
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, members)


_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""`type` of an error by its status (Anthropic's documentation; 503 is ours). Others: see `error_type`."""


def error_type(status: int) -> str:
    """The type of an error, by its status."""
    return _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


_PING: Final = Frame(event(b"ping"), part=Part.PING)
_TERMINAL: Final = (Frame(event(b"message_stop"), said=SAID_DONE, part=Part.TERMINAL),)


def digits_of(message_id: str) -> str:
    """The digits that the ids of one response have in common."""
    return message_id.rpartition("_")[2]


def tool_id(message_id: str, call: int) -> str:
    """The id of a call, further ones numbered."""
    return f"toolu_{digits_of(message_id)}_{call}" if call else f"toolu_{digits_of(message_id)}"


def usage_json(counts: Counts, output_tokens: int) -> bytes:
    """A `usage` object: input that came from the prefix cache is counted apart (Anthropic excludes it)."""
    cached = counts.cached_tokens
    if not cached:
        return b'{"input_tokens":%d,"output_tokens":%d}' % (counts.prompt_tokens, output_tokens)
    return (
        b'{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}'
        % (
            counts.prompt_tokens - cached,
            cached,
            output_tokens,
        )
    )


class MessagesWriter(StreamWriter):
    """See `contract.StreamWriter`. An announcement of a call opens its block, and counts."""

    counts_in_finish = True

    def __init__(
        self,
        completion: Completion,
        dialect: Dialect = LAB,
        form: Form = PLAIN,
        stop_sequence: str | None = None,
    ) -> None:
        super().__init__(completion, dialect, form)
        self._stop_sequence = stop_sequence
        self._block: tuple[Channel, int] | None = None  # the open one: what it holds, and of which call
        self._index = -1
        self._has_pinged = False
        self._signature: Signature | None = None
        self._has_finished = False

    def opening(self) -> Iterator[Frame]:
        """See `StreamWriter.opening`."""
        made = self.completion
        data = b',"message":{"id":%b,"type":"message","role":"assistant","content":[],"model":%b' % (
            quote(made.id),
            quote(made.model),
        )
        usage = usage_json(self.counts() if self.promised is None else self.promised(), 1)
        data += b',"stop_reason":null,"stop_sequence":null,"usage":%b}' % usage
        yield Frame(event(b"message_start", data), part=Part.OPENING)

    def content(self, piece: Piece) -> Iterator[Frame]:
        """See `StreamWriter.content`."""
        self.has_begun = True
        self.tokens += piece.token_count
        is_announced = False
        if self._block != (piece.channel, piece.call) and not (self._has_finished and self._index >= 0):
            yield from self.closings()
            is_announced = piece.channel == "call"
            yield from self._opened(piece)
        if self._signature is not None:
            self._signature.add(piece.delta)
        if not is_announced or piece.delta:
            data = b',"index":%d,"delta":%b%b}' % (self._index, _DELTAS[piece.channel], quote(piece.delta))
            yield Frame(event(b"content_block_delta", data), said=said_of(piece), part=Part.CONTENT)

    def _opened(self, piece: Piece) -> Iterator[Frame]:
        """What opens a block; a call's announcement is a content frame, and says so unless its words follow at once."""
        self._block = (piece.channel, piece.call)
        self._index += 1
        self._signature = Signature() if piece.channel == "reasoning" else None
        if piece.channel == "call":
            ident = tool_id(self.completion.id, piece.call).encode()
            name = quote(piece.name or "")
            block = b'{"type":"tool_use","id":"%b","name":%b,"input":{}}' % (ident, name)
            part, said = (Part.BLOCK_START, NOTHING) if piece.delta else (Part.CONTENT, said_of(piece))
        else:
            block, part, said = _STARTS[piece.channel], Part.BLOCK_START, NOTHING
        data = b',"index":%d,"content_block":%b' % (self._index, block)
        yield Frame(event(b"content_block_start", data), said=said, part=part)
        if not self._has_pinged:
            self._has_pinged = True
            yield _PING

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """See `StreamWriter.template`: deltas of a block differ in their text, which a signature has to read."""
        if channel != "text" or self._block is None or self._block[0] != channel:
            return None
        before = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b'
        return before % (self._index, _DELTAS[channel]), b"}}\n\n"

    def empty(self) -> Frame:
        """See `StreamWriter.empty`."""
        channel = "text" if self._block is None else self._block[0]
        data = b',"index":%d,"delta":%b""}' % (max(0, self._index), _DELTAS[channel])
        return Frame(event(b"content_block_delta", data), part=Part.PING)

    def closings(self, reason: str | None = None) -> Iterator[Frame]:
        """See `StreamWriter.closings`."""
        del reason
        if self._block is None:
            return
        self._block = None
        if self._signature is not None:
            delta = b'{"type":"signature_delta","signature":"%b"}' % self._signature.text.encode()
            data = b',"index":%d,"delta":%b' % (self._index, delta)
            yield Frame(event(b"content_block_delta", data), part=Part.BLOCK_END)
            self._signature = None
        yield Frame(event(b"content_block_stop", b',"index":%d' % self._index), part=Part.BLOCK_END)

    def finish(self, reason: str, counts: Counts | None = None) -> Iterator[Frame]:
        """See `StreamWriter.finish`."""
        self._has_finished = True
        shown = STOP_REASONS.get(reason, reason)
        sequence = self._stop_sequence if shown == "stop_sequence" else None
        data = b',"delta":{"stop_reason":%b,"stop_sequence":%b}' % (quote(shown), quote(sequence))
        if counts is not None:
            data += b',"usage":%b' % usage_json(counts, counts.completion_tokens)
        said = finished(reason, None if counts is None else counts.json())
        yield Frame(event(b"message_delta", data), said=said, part=Part.FINISH)

    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        """No event has both; see `Api.lacks`."""
        raise NotImplementedError(piece, reason, counts)

    def usage(self, counts: Counts, reason: str | None = None) -> tuple[Frame, ...]:
        """See `StreamWriter.usage`: the counts stand in the finish."""
        del counts, reason
        return ()

    def terminal(self) -> tuple[Frame, ...]:
        """See `StreamWriter.terminal`."""
        return _TERMINAL

    def error(self, variant: str, fields: ErrorFields, *, is_first: bool) -> Iterator[Frame]:
        """See `StreamWriter.error`."""
        if variant in {NATIVE_ERROR, ERROR_AND_DONE}:
            kind, message = _OVERLOADED
            kind = kind if fields.type is None else fields.type
            message = message if fields.message == DEFAULT_MESSAGE else fields.message
            data = b',"error":{"type":%b,"message":%b}' % (quote(kind), quote(message))
            yield Frame(event(b"error", data), said=AN_ERROR, part=Part.ERROR)
            if variant == ERROR_AND_DONE:
                yield Frame(b"data: [DONE]\n\n", part=Part.ERROR)
            return
        block = self.foreign_error(variant, fields)
        yield Frame(block, said=said_by_error(block, is_first=is_first), part=Part.ERROR)

    def error_json(self, status: int, fields: ErrorFields, *, nested: bool) -> bytes:
        """See `StreamWriter.error_json`."""
        error = {
            "type": error_type(status) if fields.type is None else fields.type,
            "message": fields.message,
        }
        if not nested:
            return msgspec.json.encode(error)
        ident = f"req_{digits_of(self.completion.id)}"
        return msgspec.json.encode({"type": "error", "error": error, "request_id": ident})

    def malformed(self) -> Frame:
        """See `StreamWriter.malformed`."""
        data = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":"\n\n'
        )
        return Frame(data % max(0, self._index), said=UNREADABLE)
