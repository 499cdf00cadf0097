"""`POST /v1/chat/completions` as a value, and the JSON of its answers that are not streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.apis.chat.echo import echo_frames, echo_message, said_by_echo
from inference_lab.core.apis.chat.request import ChatRequest
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.choices import told_ids, whole_json
from inference_lab.core.apis.contract import Api, Prompt
from inference_lab.core.errors import invalid_request
from inference_lab.core.identity import call_id
from inference_lab.core.prompts.echo import Echo, find
from inference_lab.core.prompts.messages import text_of
from inference_lab.core.stream.events import TURN, Turn
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Counts, Form, StreamWriter
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.stream.events import Delivered


class Chat(Api[ChatRequest]):
    """See `contract.Api`."""

    name = "chat"
    path = "/v1/chat/completions"
    prompt_field = "messages"
    id_prefix = "chatcmpl-"
    body = ChatRequest

    def prompt(self, body: ChatRequest, template: ChatTemplate, *, reasons: bool) -> Prompt:
        """See `Api.prompt`."""
        thinking = is_thinking(body.chat_template_kwargs, default=reasons)
        try:
            text = template.render(
                body.messages or (),
                body.tools,
                thinking=thinking,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
            )
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None
        ids = encode(text)
        return Prompt(ids, locate(template, text, ids), thinking)

    def echo(self, body: ChatRequest) -> Echo | None:
        """See `Api.echo`."""
        try:
            return find(text_of(message.content) for message in body.messages or ())
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None

    def echo_frames(self, writer: StreamWriter, echo: Echo) -> Iterator[tuple[bytes, Delivered]]:
        """See `Api.echo_frames`."""
        assert isinstance(writer, ChatWriter)  # noqa: S101 - made in `writer`
        return echo_frames(writer, echo)

    def echo_whole(
        self, completion: Completion, echo: Echo, counts: Counts
    ) -> Generator[Turn, None, tuple[bytes, Delivered]]:
        """See `Api.echo_whole`."""
        said = yield from said_by_echo(ChatWriter(completion), echo)
        message = yield from echo_message(echo, completion)
        return whole_message(completion, message, echo.finish_reason, counts), said

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> ChatWriter:
        """See `Api.writer`."""
        return ChatWriter(completion, dialect, form)

    def whole(
        self, body: ChatRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """See `Api.whole`."""
        texts: dict[str, list[str]] = {"text": [], "reasoning": []}
        calls: dict[int, dict[str, Any]] = {}
        for piece in plan.pieces.joined():
            if piece.words == JOINED_WORDS:
                yield TURN
            if piece.channel != "call":
                texts[piece.channel].append(piece.delta)
                continue
            function = calls.setdefault(piece.call, {"function": {}})["function"]
            if piece.name is not None:  # a call's announcement; an open call's rest has none
                calls[piece.call] = {"id": call_id(completion.id, piece.call), "type": "function"}
                calls[piece.call]["function"] = function = {"name": piece.name}
            function["arguments"] = function.get("arguments", "") + piece.delta
        content: str | None = "".join(texts["text"])
        if any("id" in call for call in calls.values()):
            content = content or None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if texts["reasoning"]:
            message["reasoning_content"] = "".join(texts["reasoning"])
        if calls:
            message["tool_calls"] = list(calls.values())
        ids = yield from told_ids(body, prompt, plan)
        return whole_message(completion, message, plan.finish, counts, ids)


CHAT: Final = Chat()


def whole_message(
    completion: Completion,
    message: dict[str, Any],
    finish: str,
    counts: Counts,
    ids: dict[str, list[int]] | None = None,
) -> bytes:
    """The JSON of an answer whose message is given."""
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return whole_json(completion, "chat.completion", choice | (ids or {}), counts)
