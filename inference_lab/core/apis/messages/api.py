"""`POST /v1/messages` as a value, and the JSON of its answers that are not streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.apis.contract import Api, Prompt
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.apis.echoes import echo_frames, json_object_of, told_whole
from inference_lab.core.apis.errors import VARIANTS
from inference_lab.core.apis.messages.reader import EVENTS, STOP_REASONS
from inference_lab.core.apis.messages.request import MessagesRequest, chat_of
from inference_lab.core.apis.messages.request import reasons as body_reasons
from inference_lab.core.apis.messages.signature import Signature
from inference_lab.core.apis.messages.writer import (
    ERROR_AND_DONE,
    NATIVE_ERROR,
    MessagesWriter,
    error_type,
    tool_id,
    usage_json,
)
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.prompts.echo import Echo, find
from inference_lab.core.prompts.messages import text_of
from inference_lab.core.stream.events import TURN, Delivered, Turn
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Counts, Form, StreamWriter
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.faults.values import Value

_OWN_CODES: Final = frozenset(
    {
        "invalid_fault_directive",
        "invalid_test_id",
        "attempts_unavailable",
        "journal_unavailable",
        "draining",
        "overloaded",
    }
)
"""What only this server has: the code stands before its message, as there is no member for it."""
_CONTEXT: Final = "context_length_exceeded"
_A_CHOICE: Final = "an API with choices"


class Messages(Api[MessagesRequest]):
    """See `contract.Api`."""

    name = "messages"
    path = "/v1/messages"
    prompt_field = "messages"
    id_prefix = "msg_"
    body = MessagesRequest
    reader = EVENTS
    dialects = {"lab": LAB}  # noqa: RUF012 - declared as a class variable by `Api`
    errors = {  # noqa: RUF012 - as above
        name: row
        for name, row in {**VARIANTS, ERROR_AND_DONE: VARIANTS[NATIVE_ERROR]}.items()
        if name not in {"openrouter", "openrouter_choice", "openrouter_empty"}
    }
    lacks = {  # noqa: RUF012 - as above
        ("text_in_finish", True): "an API whose finish can carry text",
        ("empty_finish", True): "an API with a finish reason in each frame",
        ("sequence", "choices_null"): _A_CHOICE,
        ("sequence", "choices_empty"): _A_CHOICE,
        ("usage", "every_chunk"): "an API with usage in each frame",
        ("usage", "null_every_chunk"): "an API with usage in each frame",
        ("usage", "zero_every_chunk"): "an API with usage in each frame",
        ("usage", "with_choices"): _A_CHOICE,
        ("reject", "unsupported_param"): "an API of OpenAI's",
        ("strict_params", True): "an API of OpenAI's",
        ("heartbeat", "empty_delta"): "an API whose deltas need no block",
        ("reasoning_key", "reasoning"): "chat, where reasoning is a member of a delta",
    }
    mode_rows: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "error_envelope_200": {
            "error": NATIVE_ERROR,
            "type": "api_error",
            "message": "Provider returned error",
            "done": "false",
        },
        "error_400_in_sse": {
            "error": NATIVE_ERROR,
            "type": "invalid_request_error",
            "message": "prompt is too long: 200001 tokens > 200000 maximum",
        },
        "cancelled_499": {
            "error": ERROR_AND_DONE,
            "type": "api_error",
            "message": "An internal error occurred during generation.",
        },
        "first_frame_error": {"error": NATIVE_ERROR, "done": "false"},
        "cut_after_finish": {"usage": "asked"},
    }

    def prompt(self, body: MessagesRequest, template: ChatTemplate, *, reasons: bool) -> Prompt:
        """See `Api.prompt`."""
        thinking = is_thinking(body.chat_template_kwargs, default=body_reasons(body, default=reasons))
        try:
            text = template.render(chat_of(body), body.tools, thinking=thinking)
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None
        ids = encode(text)
        return Prompt(ids, locate(template, text, ids), thinking)

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> MessagesWriter:
        """See `Api.writer`."""
        return MessagesWriter(completion, dialect, form)

    def echo(self, body: MessagesRequest) -> Echo | None:
        """See `Api.echo`."""
        try:
            return find(text_of(message.content) for message in chat_of(body))
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None

    def echo_frames(self, writer: StreamWriter, echo: Echo) -> Iterator[tuple[bytes, Delivered]]:
        """See `Api.echo_frames`."""
        return echo_frames(writer, echo)

    def echo_whole(
        self, completion: Completion, echo: Echo, counts: Counts
    ) -> Generator[Turn, None, tuple[bytes, Delivered]]:
        """See `Api.echo_whole`."""
        said = yield from told_whole(MessagesWriter(completion), echo)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": echo.text}] if echo.text else []
        for index, call in enumerate(echo.tool_calls):
            blocks.append(_tool_use(completion.id, index, call.name, call.arguments))
        return _message(completion, blocks, echo.finish_reason, counts), said

    def headers(self, digits: str) -> tuple[tuple[bytes, bytes], ...]:
        """See `Api.headers`."""
        return ((b"request-id", b"req_" + digits.encode()),)

    def error(self, error: ApiError, digits: str) -> bytes:
        """See `Api.error`."""
        message, param = error.message, error.param
        if error.code in _OWN_CODES:
            message = f"{error.code}: {message}"
        elif param is not None and error.code != _CONTEXT and not message.startswith(param):
            message = f"{param}: {message}"
        inner = {"type": error_type(error.status), "message": message}
        return msgspec.json.encode({"type": "error", "error": inner, "request_id": f"req_{digits}"})

    def too_long(self, prompt_tokens: int, wanted: int | None, limit_tokens: int) -> str:
        """See `Api.too_long`: Anthropic's words."""
        if prompt_tokens >= limit_tokens:
            return f"prompt is too long: {prompt_tokens} tokens > {limit_tokens} maximum"
        return (
            f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {wanted} > {limit_tokens}, "
            "decrease input length or `max_tokens` and try again"
        )

    def whole(
        self, body: MessagesRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """See `Api.whole`."""
        del body, prompt
        texts: dict[str, list[str]] = {"reasoning": [], "text": []}
        calls: dict[int, tuple[str, list[str]]] = {}
        for piece in plan.pieces.joined():
            if piece.words == JOINED_WORDS:
                yield TURN
            if piece.channel == "call":
                calls.setdefault(piece.call, (piece.name or "", []))[1].append(piece.delta)
            else:
                texts[piece.channel].append(piece.delta)
        blocks: list[dict[str, Any]] = []
        if texts["reasoning"]:
            signature, thought = Signature(), "".join(texts["reasoning"])
            signature.add(thought)
            blocks.append({"type": "thinking", "thinking": thought, "signature": signature.text})
        if texts["text"]:
            blocks.append({"type": "text", "text": "".join(texts["text"])})
        for call, (name, fragments) in calls.items():
            blocks.append(_tool_use(completion.id, call, name, "".join(fragments)))
        return _message(completion, blocks, plan.finish, counts)


MESSAGES: Final = Messages()


def _message(completion: Completion, blocks: list[dict[str, Any]], finish: str, counts: Counts) -> bytes:
    return msgspec.json.encode(
        {
            "id": completion.id,
            "type": "message",
            "role": "assistant",
            "content": blocks,
            "model": completion.model,
            "stop_reason": STOP_REASONS.get(finish, finish),
            "stop_sequence": None,
            "usage": msgspec.Raw(usage_json(counts, counts.completion_tokens)),
        }
    )


def _tool_use(message_id: str, call: int, name: str, arguments: str) -> dict[str, Any]:
    """A call's block; its input is `{}` where its fragments are no object: those of an open call may be its rest."""
    return {
        "type": "tool_use",
        "id": tool_id(message_id, call),
        "name": name,
        "input": json_object_of(arguments) or {},
    }
