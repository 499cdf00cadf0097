"""What every API's stream is made with: the facts that its frames repeat, its counts, and the writer of its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.stream.events import Frame

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


class Form(msgspec.Struct, frozen=True):
    """How the inside of a response's frames is to be, beside what they say.

    `usage_asked`: the request asked for usage. With `prompt_ids` frames tell token ids, as vLLM's do for
    `return_token_ids`. Counts begin with `prompt_tokens`, and are `tokens_off_by` from what has been said.
    `usage_in_each` puts counts into every frame: null, zeros, or those so far. `empty_finish`: `""` in every frame that
    has no finish reason.
    """

    usage_asked: bool = False
    prompt_ids: list[int] | None = None
    prompt_tokens: int = 0
    tokens_off_by: int = 0
    reasoning_key: str | None = None
    usage_in_each: Literal["", "null", "zero", "so_far"] = ""
    empty_finish: bool = False


PLAIN: Final = Form()


class StreamWriter(Protocol):
    """Writes the frames of one response's stream, each a whole SSE event, in the order in which they are sent.

    It counts what it writes: tokens for the usage, and whether content has begun.
    """

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
    def has_opening(self) -> bool:
        """Whether anything stands before the first content frame."""

    @property
    def is_first_alike(self) -> bool:
        """Whether the first content frame is written as the others are."""

    def opening(self) -> Iterator[Frame]:
        """What stands before the first content frame."""

    def content(self, piece: Piece) -> Frame:
        """One content frame."""

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """What stands before and after the quoted text of a content frame that is not the first.

        None if frames of the channel differ in more than their text.
        """

    def pass_over(self, frames: int, tokens: int) -> None:
        """So many content frames have been written from the template, or are to count as written."""

    def empty(self) -> Frame:
        """A frame of content without text, which does not count."""

    def bare(self, choices: bytes) -> Frame:
        """A frame with `choices` in place of its list of choices."""

    def finish(self, reason: str, counts: Counts | None = None) -> Frame:
        """The frame that carries the finish reason and no text; with `counts` they are in it."""

    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        """The finish frame with a piece of text in it; `counts` is asked once that is counted."""

    def usage(self, counts: Counts, reason: str | None = None) -> Frame:
        """The frame with the token counts and no choices, or with another finish for `reason`, if there was one."""

    def terminal(self) -> Frame:
        """The frame that says that the stream is over."""

    def counts(self) -> Counts:
        """The usage so far."""
