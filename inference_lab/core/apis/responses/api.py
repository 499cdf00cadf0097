"""`POST /v1/responses` as a value, and the JSON of its answers that are not streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.apis.contract import Api, Form, Prompt
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.echoes import echo_frames, told_whole
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.apis.responses.reader import RESPONSE_EVENTS
from inference_lab.core.apis.responses.request import ResponsesRequest, chat_of
from inference_lab.core.apis.responses.writer import (
    FAILED,
    FAILED_AND_DONE,
    NATIVE_ERROR,
    ResponsesWriter,
    Shape,
)
from inference_lab.core.errors import invalid_request
from inference_lab.core.prompts.echo import Echo, find
from inference_lab.core.prompts.messages import text_of
from inference_lab.core.stream.events import TURN, Delivered, Turn
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Counts, StreamWriter
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.faults.values import Value

_A_CHOICE: Final = "an API with choices"
_IN_EACH: Final = "an API with usage in each frame"
_A_FINISH: Final = "an API with a frame for the finish"
_FOREIGN: Final = {"openrouter", "openrouter_choice", "openrouter_empty"}


class Responses(Api[ResponsesRequest]):
    """See `contract.Api`."""

    name = "responses"
    path = "/v1/responses"
    prompt_field = "input"
    id_prefix = "resp_"
    body = ResponsesRequest
    reader = RESPONSE_EVENTS
    dialects = {"lab": LAB}  # noqa: RUF012 - declared as a class variable by `Api`
    errors = {  # noqa: RUF012 - as above
        **{name: row for name, row in VARIANTS.items() if name not in _FOREIGN},
        **dict.fromkeys((NATIVE_ERROR, FAILED, FAILED_AND_DONE), VARIANTS["openai"]),
    }
    lacks = {  # noqa: RUF012 - as above
        ("text_in_finish", True): "an API whose finish can carry text",
        ("empty_finish", True): "an API with a finish reason in each frame",
        ("sequence", "choices_null"): _A_CHOICE,
        ("sequence", "choices_empty"): _A_CHOICE,
        ("sequence", "double_finish"): _A_FINISH,
        ("sequence", "after_finish"): _A_FINISH,
        ("usage", "every_chunk"): _IN_EACH,
        ("usage", "null_every_chunk"): _IN_EACH,
        ("usage", "zero_every_chunk"): _IN_EACH,
        ("usage", "with_choices"): _A_CHOICE,
        ("heartbeat", "empty_delta"): "an API whose deltas need no item",
        ("reasoning_key", "reasoning"): "chat, where reasoning is a member of a delta",
        ("strict_params", True): "chat and completions",
    }
    mode_rows: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "error_envelope_200": {"error": NATIVE_ERROR, "message": "Provider returned error", "done": "false"},
        "error_400_in_sse": {
            "error": FAILED,
            "code": "context_length_exceeded",
            "message": "Your input exceeds the context window of this model.",
        },
        "cancelled_499": {"error": FAILED_AND_DONE},
        "first_frame_error": {"error": NATIVE_ERROR, "done": "false"},
        "cut_after_finish": {"usage": "asked"},
    }

    def prompt(self, body: ResponsesRequest, template: ChatTemplate, *, reasons: bool) -> Prompt:
        """See `Api.prompt`."""
        effort = None if body.reasoning is None else body.reasoning.get("effort")
        thinking = is_thinking(body.chat_template_kwargs, default=reasons and effort != "none")
        messages, is_open = chat_of(body)
        try:
            text = template.render(
                messages, body.tools, thinking=thinking, add_generation_prompt=None if is_open else True
            )
        except ValueError as error:
            raise invalid_request(str(error), "input") from None
        ids = encode(text)
        return Prompt(ids, locate(template, text, ids), thinking)

    def echo(self, body: ResponsesRequest) -> Echo | None:
        """See `Api.echo`."""
        try:
            return find(text_of(message.content) for message in chat_of(body)[0])
        except ValueError as error:
            raise invalid_request(str(error), "input") from None

    def echo_frames(self, writer: StreamWriter, echo: Echo) -> Iterator[tuple[bytes, Delivered]]:
        """See `Api.echo_frames`."""
        return echo_frames(writer, echo)

    def echo_whole(
        self, completion: Completion, echo: Echo, counts: Counts
    ) -> Generator[Turn, None, tuple[bytes, Delivered]]:
        """See `Api.echo_whole`."""
        writer = ResponsesWriter(completion)
        said = yield from told_whole(writer, echo)
        return _ended(writer, echo.finish_reason, counts), said

    def sample(self, words: int) -> ResponsesRequest:
        """See `Api.sample`."""
        return ResponsesRequest(stream=True, max_output_tokens=words)

    def form(self, body: ResponsesRequest, prompt: Prompt) -> Form:
        """See `Api.form`."""
        called = prompt.position.place.called
        shape = Shape(
            summary=body.wants_summary,
            encrypted=body.wants_encrypted,
            called=called.name if called is not None else "",
        )
        return Form(usage_asked=True, prompt_tokens=len(prompt.ids), shape=shape)

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> ResponsesWriter:
        """See `Api.writer`."""
        return ResponsesWriter(completion, dialect, form, form.shape)

    def whole(
        self, body: ResponsesRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """See `Api.whole`."""
        form = self.form(body, prompt)
        writer = ResponsesWriter(completion, LAB, form, form.shape)
        for piece in plan.pieces.joined():
            if piece.words == JOINED_WORDS:
                yield TURN
            list(writer.content(piece))
        return _ended(writer, plan.finish, counts)


RESPONSES: Final = Responses()


def _ended(writer: ResponsesWriter, reason: str, counts: Counts) -> bytes:
    list(writer.closings(reason))
    writer.finish(reason, counts)
    return writer.ended()
