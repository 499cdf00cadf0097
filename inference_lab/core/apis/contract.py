"""What an API is: how it reads a request, writes the frames of a stream, and an answer that is not streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from inference_lab.core.answer.resume_point import ResumePoint
from inference_lab.core.apis.choices_reader import CHOICES
from inference_lab.core.apis.dialects import DIALECTS, LAB, Dialect
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.apis.request import Common, StreamOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.errors import ErrorFields, Variant
    from inference_lab.core.apis.reading import FrameReader
    from inference_lab.core.errors import ApiError
    from inference_lab.core.faults.values import Value
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.core.stream.events import Delivered, Frame, Turn

_B = TypeVar("_B", bound=Common)

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
    has no finish reason. `shape` is what an API has besides.
    """

    usage_asked: bool = False
    prompt_ids: list[int] | None = None
    prompt_tokens: int = 0
    tokens_off_by: int = 0
    reasoning_key: str | None = None
    usage_in_each: Literal["", "null", "zero", "so_far"] = ""
    empty_finish: bool = False
    shape: Any = None


PLAIN: Final = Form()


class StreamWriter(ABC):
    """Writes the frames of one response's stream, each a whole SSE event, in the order in which they are sent.

    It counts what it writes: tokens for the usage, and whether content has begun. `kind` is the `object` of every
    frame, where an API has that. `has_opening`: something stands before the first content frame. `is_first_alike`: the
    first content frame is written as the others are. `numbers`: frames depend on those sent before them, see `stamp`.
    `counts_in_finish`: where counts are sent, the finish has them. `promised` are those that an engine knows before the
    end.
    """

    kind: ClassVar[str] = ""
    counts_in_finish: ClassVar[bool] = False
    has_opening: bool = True
    is_first_alike: bool = True
    numbers: ClassVar[bool] = False

    def __init__(self, completion: Completion, dialect: Dialect = LAB, form: Form = PLAIN) -> None:
        self.completion = completion
        self.dialect = dialect
        self.form = form
        self.tokens = 0
        self.has_begun = False
        self.promised: Callable[[], Counts] | None = None

    @abstractmethod
    def opening(self) -> Iterable[Frame]:
        """What stands before the first content frame."""

    @abstractmethod
    def content(self, piece: Piece) -> Iterable[Frame]:
        """One content frame, with what closes the block before it and opens its own."""

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """What stands before and after the quoted text of a content frame that is not the first.

        None if frames of the channel differ in more than their text.
        """
        del channel
        return None

    def pass_over(self, frames: int, tokens: int) -> None:
        """So many content frames have been written from the template, or are to count as written."""
        self.has_begun = self.has_begun or frames > 0
        self.tokens += tokens

    @abstractmethod
    def empty(self) -> Frame:
        """A frame of content without text, which does not count."""

    def bare(self, choices: bytes) -> Frame:
        """A frame with `choices` in place of its list of choices; an API that has none says so in `Api.lacks`."""
        raise NotImplementedError(choices)

    def closings(self, reason: str | None = None) -> Iterable[Frame]:
        """What closes the block that is open, where an API has blocks; `reason` is the finish, at the end."""
        del reason
        return ()

    @abstractmethod
    def finish(self, reason: str, counts: Counts | None = None) -> Iterable[Frame]:
        """The frame that carries the finish reason and no text, if there is one; with `counts` they are in it."""

    @abstractmethod
    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        """The finish frame with a piece of text in it; `counts` is asked once that is counted."""

    @abstractmethod
    def usage(self, counts: Counts, reason: str | None = None) -> Iterable[Frame]:
        """The frame with the token counts alone, where an API has one; `reason` is the finish, if there was one."""

    @abstractmethod
    def terminal(self) -> Iterable[Frame]:
        """What says that the stream is over."""

    @abstractmethod
    def error(self, variant: str, fields: ErrorFields, *, is_first: bool) -> Iterable[Frame]:
        """An error, as the variant with this name has it; `is_first`: nothing of the body comes before it."""

    def foreign_error(self, variant: str, fields: ErrorFields) -> bytes:
        """An error as a variant of the table of errors has it, whatever API that is of."""
        made = self.completion
        return VARIANTS[variant].block(
            fields, id_=made.id, kind=self.kind, created=made.created, model=made.model
        )

    def error_json(self, status: int, fields: ErrorFields, *, nested: bool) -> bytes:
        """A failure's JSON body, with its code unless that is left out; `nested` false: its fields alone."""
        kind = "rate_limit_error" if status == 429 else "server_error"
        error: dict[str, object] = {
            "message": fields.message,
            "type": kind if fields.type is None else fields.type,
        }
        if nested:
            error["param"] = None
        if fields.has_code:
            error["code"] = fields.code
        return msgspec.json.encode({"error": error} if nested else error)

    @abstractmethod
    def malformed(self) -> Frame:
        """A whole event whose JSON breaks off."""

    def stamp(self, frame: Frame) -> Frame:
        """A frame in the order of sending, as it goes out: with its number, where an API counts its frames."""
        return frame

    def counts(self) -> Counts:
        """The usage so far."""
        return Counts(self.form.prompt_tokens, max(0, self.tokens + self.form.tokens_off_by))


class Prompt(msgspec.Struct, frozen=True):
    """A request's prompt: its ids, where it stands in its answer, and whether the model reasons."""

    ids: list[int]
    position: ResumePoint
    thinking: bool


class Api(Generic[_B]):
    """An API of completions: one subclass and one value each, in `table.APIS`.

    `body` is the request's struct, `reader` reads its frames, `dialects` and `errors` are its spellings. `is_raw`: text
    comes with its markup, and calls as text; elsewhere each channel has a member of its own. `lacks` are values of axes
    that mean nothing here, and what an API must be or have for them. `mode_rows` are what modes are here, where that is
    not what the table of modes says.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    prompt_field: ClassVar[str]
    id_prefix: ClassVar[str]
    is_raw: ClassVar[bool] = False
    body: type[_B]
    reader: ClassVar[FrameReader] = CHOICES
    dialects: ClassVar[Mapping[str, Dialect]] = DIALECTS
    errors: ClassVar[Mapping[str, Variant]] = VARIANTS
    lacks: ClassVar[Mapping[tuple[str, object], str]] = {}
    mode_rows: ClassVar[Mapping[str, Mapping[str, Value]]] = {}

    def prompt(self, body: _B, template: ChatTemplate, *, reasons: bool) -> Prompt:
        """Render the prompt in a model's format; `reasons` is whether the model does unless the request forbids it.

        Raises:
            ApiError: 400 for a conversation the template cannot render.
        """
        raise NotImplementedError

    def echo(self, body: _B) -> Echo | None:
        """The echo-directive in the prompt, on an API that has them.

        Raises:
            ApiError: 400 for one that is malformed.
        """
        del body
        return None

    def echo_frames(self, writer: StreamWriter, echo: Echo) -> Iterable[tuple[bytes, Delivered]]:
        """The content frames of an echo, and what each says."""
        raise NotImplementedError

    def echo_whole(
        self, completion: Completion, echo: Echo, counts: Counts
    ) -> Generator[Turn, None, tuple[bytes, Delivered]]:
        """The JSON of an echo that is not streamed, and what it says but for its end, made in turns."""
        raise NotImplementedError

    def sample(self, words: int) -> Common:
        """A request for a stream of so many words, with its counts; the conversation in it is not looked at."""
        return Common(stream=True, stream_options=StreamOptions(include_usage=True), max_tokens=words)

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> StreamWriter:
        """Who writes the frames of a stream."""
        raise NotImplementedError

    def form(self, body: _B, prompt: Prompt) -> Form:
        """What a request asks of its stream's frames."""
        ids = prompt.ids if body.return_token_ids else None
        return Form(usage_asked=body.include_usage, prompt_ids=ids, prompt_tokens=len(prompt.ids))

    def whole(
        self, body: _B, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """The JSON of an answer that is not streamed, made in turns where it is long."""
        raise NotImplementedError

    def headers(self, digits: str) -> tuple[tuple[bytes, bytes], ...]:
        """What a response's head has besides; `digits` are those of its id."""
        del digits
        return ()

    def error(self, error: ApiError, digits: str) -> bytes:
        """The body of a refusal."""
        del digits
        return error.body()

    def too_long(self, prompt_tokens: int, wanted: int | None, limit_tokens: int) -> str:
        """Why a prompt and an answer of so many `wanted` tokens do not fit into a model."""
        needed = f"{wanted} for the answer" if wanted else "at least one for the answer"
        return (
            f"the model holds {limit_tokens} tokens; the prompt has {prompt_tokens}, and {needed} do not fit"
        )

    def text_of(self, piece: Piece) -> str:
        """A piece's text as a frame of content shows it."""
        return piece.raw if self.is_raw else piece.delta
