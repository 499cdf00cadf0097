"""The frames of the two endpoints as bytes: one SSE event each, compact JSON, keys in the contract's order.

Everything that is the same in each frame of a response is prepared once, so a content frame costs one
concatenation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from inference_lab.core.answer.dialects import LAB
from inference_lab.core.identity import call_id
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from inference_lab.core.answer.dialects import Dialect
    from inference_lab.core.answer.pieces import Channel, Piece

DONE: Final = b"data: [DONE]\n\n"

quote = msgspec.json.encode
"""A string as JSON with its quotes: UTF-8, only what JSON must escape is escaped."""


class Completion(msgspec.Struct, frozen=True):
    """What every frame of one response repeats: `id`, `created` (Unix seconds), `model`."""

    id: str
    created: int
    model: str


class Counts(msgspec.Struct, frozen=True):
    """Token counts of one response; `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def json(self, *, total_first: bool = False) -> bytes:
        """The `usage` object, as vLLM writes it with `total_first`.

        `prompt_tokens_details` is there only when something was cached.
        """
        total = self.prompt_tokens + self.completion_tokens
        details = (
            b',"prompt_tokens_details":{"cached_tokens":%d}' % self.cached_tokens
            if self.cached_tokens
            else b""
        )
        if total_first:
            written = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}'
            return written % (self.prompt_tokens, total, self.completion_tokens, details)
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b}' % (
            self.prompt_tokens,
            self.completion_tokens,
            total,
            details,
        )


class Shape(Protocol):
    """An endpoint's way of writing a stream."""

    @property
    def dialect(self) -> Dialect:
        """Whose frames they are."""

    @property
    def completion(self) -> Completion:
        """What every frame repeats."""

    @property
    def kind(self) -> str:
        """The `object` of every frame."""

    @property
    def opening(self) -> bytes | None:
        """The frame before the first content frame, if the endpoint has one."""

    def content(self, piece: Piece, *, first: bool = False) -> bytes:
        """One content frame; `first` of the stream."""

    def around(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """What stands before and behind the quoted text of a content frame; None if frames differ in more than it."""

    def empty(self) -> bytes:
        """A content frame without text."""

    def bare(self, choices: bytes) -> bytes:
        """A frame with `choices` in place of its list of choices."""

    def finish(self, reason: str) -> bytes:
        """The frame that carries the finish reason and no text."""

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:
        """The finish frame, with a piece of text in it; `first` content of the stream."""

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:
        """The frame with the token counts and no choices, or with another finish for `reason`, if there was one."""


def call_opening(index: int, call: str, name: str) -> bytes:
    """A delta's member that announces tool call `index`, whose id is `call`."""
    return b'"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]' % (
        index,
        quote(call),
        quote(name),
    )


def call_fragment(index: int, fragment: str) -> bytes:
    """A delta's member with a fragment of the arguments of tool call `index`."""
    return b'"tool_calls":[{"index":%d,"function":{"arguments":%b}}]' % (index, quote(fragment))


def _head(completion: Completion, kind: str) -> bytes:
    return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
        quote(completion.id),
        kind.encode(),
        completion.created,
        quote(completion.model),
    )


class ChatShape:
    """Frames of `POST /v1/chat/completions`: `chat.completion.chunk`, a role frame first."""

    dialect = LAB
    kind = "chat.completion.chunk"

    def __init__(self, completion: Completion, reasoning_key: str = "reasoning_content") -> None:
        self.completion = completion
        self._head = _head(completion, self.kind)
        self._delta = self._head + b'{"index":0,"delta":'
        self._end = b',"finish_reason":null}]}\n\n'
        self._delta_end = b"}" + self._end
        self._text = self._delta + b'{"content":'
        self._reasoning = self._delta + b"{%b:" % quote(reasoning_key)
        self._completion_id = completion.id
        self.opening: bytes | None = self._delta + b'{"role":"assistant"}' + self._end

    def content(self, piece: Piece, *, first: bool = False) -> bytes:  # noqa: ARG002 - the role has its own frame
        """One content frame; the channel chooses the delta's key. A call's piece with a name announces it."""
        if piece.channel == "text":
            return self._text + quote(piece.delta) + self._delta_end
        if piece.channel == "reasoning":
            return self._reasoning + quote(piece.delta) + self._delta_end
        if piece.name is not None:
            return self.announcement(piece.call, piece.name)
        return self.arguments(piece.call, piece.delta)

    def around(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """See `Shape`; a call's frames carry its number."""
        if channel == "call":
            return None
        return self._text if channel == "text" else self._reasoning, self._delta_end

    def text(self, text: str) -> bytes:
        """A frame of answer text."""
        return self._text + quote(text) + self._delta_end

    def announcement(self, index: int, name: str) -> bytes:
        """The frame that announces tool call `index`."""
        return (
            self._delta
            + b"{"
            + call_opening(index, call_id(self._completion_id, index), name)
            + b"}"
            + self._end
        )

    def arguments(self, index: int, fragment: str) -> bytes:
        """A frame with a fragment of the arguments of tool call `index`."""
        return self._delta + b"{" + call_fragment(index, fragment) + b"}" + self._end

    def finish(self, reason: str) -> bytes:
        """`delta` is empty and `finish_reason` set."""
        return self._head + b'{"index":0,"delta":{},"finish_reason":%b}]}\n\n' % quote(reason)

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:  # noqa: ARG002 - see above
        """The last text and `finish_reason` in one frame, as vLLM sends it."""
        return self._text + quote(piece.delta) + b'},"finish_reason":%b}]}\n\n' % quote(reason)

    def empty(self) -> bytes:
        """Content that is no text."""
        return self.text("")

    def bare(self, choices: bytes) -> bytes:
        """No list of choices, or another one."""
        return self._head.removesuffix(b"[") + choices + b"}\n\n"

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:  # noqa: ARG002 - has its own frame
        """`choices` is empty."""
        return self._head + b'],"usage":%b}\n\n' % counts.json()


class CompletionsShape:
    """Frames of `POST /v1/completions`: `text_completion`, no role frame, raw text with its markup."""

    dialect = LAB
    kind = "text_completion"
    opening: bytes | None = None

    def __init__(self, completion: Completion) -> None:
        self.completion = completion
        self._head = _head(completion, self.kind)
        self._text = self._head + b'{"index":0,"text":'
        self._end = b',"logprobs":null,"finish_reason":null}]}\n\n'

    def content(self, piece: Piece, *, first: bool = False) -> bytes:  # noqa: ARG002 - there is no role
        """One content frame with the piece's raw text, whatever its channel."""
        return self._text + quote(piece.raw) + self._end

    def around(self, channel: Channel) -> tuple[bytes, bytes] | None:  # noqa: ARG002 - raw text, whatever it is
        """See `Shape`."""
        return self._text, self._end

    def finish(self, reason: str) -> bytes:
        """`text` is empty and `finish_reason` set."""
        return self._text + b'"","logprobs":null,"finish_reason":%b}]}\n\n' % quote(reason)

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:  # noqa: ARG002 - see above
        """The last text and `finish_reason` in one frame, as vLLM sends it."""
        return self._text + quote(piece.raw) + b',"logprobs":null,"finish_reason":%b}]}\n\n' % quote(reason)

    def empty(self) -> bytes:
        """Content that is no text."""
        return self._text + b'""' + self._end

    def bare(self, choices: bytes) -> bytes:
        """No list of choices, or another one."""
        return self._head.removesuffix(b"[") + choices + b"}\n\n"

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:  # noqa: ARG002 - has its own frame
        """`choices` is empty."""
        return self._head + b'],"usage":%b}\n\n' % counts.json()


class TellingIds:
    """A shape that also tells token ids, as vLLM does for `return_token_ids`.

    The first frame's choice carries `prompt_token_ids`, each content frame's choice `token_ids`, those of its raw text.
    """

    _CHOICE_END: Final = b"}]}\n\n"

    def __init__(self, shape: Shape, prompt_ids: list[int]) -> None:
        self._shape = shape
        self._prompt = b',"prompt_token_ids":%b' % msgspec.json.encode(prompt_ids)
        self.opening = None if shape.opening is None else self._tell(shape.opening, self._prompt)

    def content(self, piece: Piece, *, first: bool = False) -> bytes:
        """One content frame."""
        return self._tell(self._shape.content(piece), self._ids(piece, first=first))

    def around(self, channel: Channel) -> tuple[bytes, bytes] | None:  # noqa: ARG002 - the ids follow the text
        """See `Shape`."""
        return None

    @property
    def dialect(self) -> Dialect:
        """See `Shape`."""
        return self._shape.dialect

    @property
    def completion(self) -> Completion:
        """See `Shape`."""
        return self._shape.completion

    @property
    def kind(self) -> str:
        """See `Shape`."""
        return self._shape.kind

    def empty(self) -> bytes:
        """See `Shape`; it tells nothing."""
        return self._shape.empty()

    def bare(self, choices: bytes) -> bytes:
        """See `Shape`; it tells nothing."""
        return self._shape.bare(choices)

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:
        """The finish frame with text."""
        return self._tell(self._shape.finish_with(piece, reason), self._ids(piece, first=first))

    def finish(self, reason: str) -> bytes:
        """The finish frame, which tells nothing."""
        return self._shape.finish(reason)

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:
        """The usage frame, which tells nothing."""
        return self._shape.usage(counts, reason)

    def _ids(self, piece: Piece, *, first: bool) -> bytes:
        prompt = self._prompt if first and self.opening is None else b""
        return prompt + b',"token_ids":%b' % msgspec.json.encode(encode(piece.raw))

    def _tell(self, frame: bytes, ids: bytes) -> bytes:
        return frame.removesuffix(self._CHOICE_END) + ids + self._CHOICE_END
