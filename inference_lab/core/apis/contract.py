"""What every API's stream is made with: the facts that its frames repeat, its counts, and the writer of its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.apis.dialects import Dialect

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


class StreamWriter(Protocol):
    """Writes the frames of one response's stream, each a whole SSE event."""

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
        """The frame before the first content frame, if there is one."""

    @property
    def terminal(self) -> bytes:
        """The frame that says that the stream is over."""

    @property
    def is_first_alike(self) -> bool:
        """Whether the first content frame is written as the others are."""

    def content(self, piece: Piece, *, first: bool = False) -> bytes:
        """One content frame; `first` of the stream."""

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """What stands before and after the quoted text of a content frame that is not the first.

        None if frames of the channel differ in more than their text.
        """

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
