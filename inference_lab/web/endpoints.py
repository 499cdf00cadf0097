"""The two completion endpoints as values: how each reads its prompt, writes its frames and writes a whole answer."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from inference_lab.core.answer.end import Spoken
from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.answer.position import Position, locate
from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.apis.chat.writer import ChatWriter
from inference_lab.core.apis.completions.writer import CompletionsWriter
from inference_lab.core.apis.contract import Form
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.identity import CHAT_PREFIX, COMPLETIONS_PREFIX, call_id
from inference_lab.core.prompts.calls import Call, CallTarget, call_target, requires_call, targets_of
from inference_lab.core.prompts.echo import Echo, find
from inference_lab.core.prompts.messages import text_of
from inference_lab.core.stream.events import NOTHING, TURN, Said, SaidSoFar, Turn
from inference_lab.core.stream.read_back import said_in
from inference_lab.core.tokens import decode, encode
from inference_lab.web.requests import ChatRequest, Common, CompletionsRequest, prompt_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from inference_lab.core.answer.templates import Format
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Counts

_R = TypeVar("_R", bound=Common)
_TEXT: Final = Said(content_frames=1, spoken=Spoken(text=True))
"""What a frame of an echo's text says."""
_TURN_FRAMES: Final = 16
"""So many frames of calls are read back before others have their turn: some milliseconds."""
_TURN_CALLS: Final = 512


class Prompt(msgspec.Struct, frozen=True):
    """A request's prompt: its ids, where it stands in its answer, and whether the model reasons."""

    ids: list[int]
    position: Position
    thinking: bool


class Endpoint(Generic[_R]):
    """What differs between the endpoints.

    `is_chat` says whether frames carry deltas or raw text, `kind` is the body's struct, `writer` writes a stream's
    frames, `id_prefix` is that of response ids.
    """

    path: str
    is_chat: bool
    prompt_field: str
    id_prefix: str
    kind: type[_R]
    writer: type[ChatWriter | CompletionsWriter]

    def check(self, body: _R) -> None:
        """Refuse a body whose types are right but whose values are not.

        Raises:
            ApiError: 400.
        """
        body.check()

    def prompt(self, body: _R, style: Format, *, reasons: bool) -> Prompt:
        """Render the prompt in a model's format; `reasons` is whether the model does unless the request forbids it.

        Raises:
            ApiError: 400 for a conversation the template cannot render.
        """
        raise NotImplementedError

    def echo(self, body: _R) -> Echo | None:
        """The echo-directive in the prompt, on the endpoint that has them."""
        raise NotImplementedError

    def form(self, body: _R, prompt: Prompt) -> Form:
        """What a request asks of its stream's frames."""
        ids = prompt.ids if body.return_token_ids else None
        return Form(usage_asked=body.include_usage, prompt_ids=ids, prompt_tokens=len(prompt.ids))

    def whole(
        self, body: _R, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """The JSON of an answer that is not streamed, made in turns where it is long."""
        raise NotImplementedError


class _Chat(Endpoint[ChatRequest]):
    path = "/v1/chat/completions"
    is_chat = True
    prompt_field = "messages"
    id_prefix = CHAT_PREFIX
    kind = ChatRequest
    writer = ChatWriter

    def check(self, body: ChatRequest) -> None:
        super().check(body)
        call_target_of(body)
        if requires_call(body.tool_choice) and not targets_of(body.tools):
            raise needs_tool()

    def prompt(self, body: ChatRequest, style: Format, *, reasons: bool) -> Prompt:
        thinking = is_thinking(body.chat_template_kwargs, default=reasons)
        try:
            text = style.render(
                body.messages or (),
                body.tools,
                thinking=thinking,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
            )
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None
        ids = encode(text)
        return Prompt(ids, locate(style, text, ids), thinking)

    def echo(self, body: ChatRequest) -> Echo | None:
        try:
            return find(text_of(message.content) for message in body.messages or ())
        except ValueError as error:
            raise invalid_request(str(error), "messages") from None

    def whole(
        self, body: ChatRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
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
        choice = {"index": 0, "message": message, "finish_reason": plan.finish}
        ids = yield from _told_ids(body, prompt, plan)
        return _whole(completion, "chat.completion", choice | ids, counts)

    def whole_message(
        self, completion: Completion, message: dict[str, Any], finish: str, counts: Counts
    ) -> bytes:
        """The JSON of an answer whose message is given."""
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return _whole(completion, "chat.completion", choice, counts)


class _Completions(Endpoint[CompletionsRequest]):
    path = "/v1/completions"
    is_chat = False
    prompt_field = "prompt"
    id_prefix = COMPLETIONS_PREFIX
    kind = CompletionsRequest
    writer = CompletionsWriter

    def check(self, body: CompletionsRequest) -> None:
        super().check(body)
        call_target_of(body)
        prompt_of(body)

    def prompt(self, body: CompletionsRequest, style: Format, *, reasons: bool) -> Prompt:
        prompt = prompt_of(body)
        if isinstance(prompt, str):
            ids = encode(prompt)
            return Prompt(ids, locate(style, prompt, ids), reasons)
        return Prompt(prompt, locate(style, decode(prompt)), reasons)

    def echo(self, body: CompletionsRequest) -> Echo | None:
        del body  # echo-directives are a chat feature
        return None

    def whole(
        self, body: CompletionsRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        texts: list[str] = []
        for piece in plan.pieces.joined():
            if piece.words == JOINED_WORDS:
                yield TURN
            texts.append(piece.raw)
        choice = {"index": 0, "text": "".join(texts), "logprobs": None, "finish_reason": plan.finish}
        ids = yield from _told_ids(body, prompt, plan)
        return _whole(completion, "text_completion", choice | ids, counts)


CHAT: Final = _Chat()
COMPLETIONS: Final = _Completions()


def echo_frames(writer: ChatWriter, echo: Echo) -> Iterator[tuple[bytes, Said]]:
    """The content frames of an echo: its text cut before each blank, then two frames per call.

    They are made as they are sent, and nothing is kept of one that is. Its words are the client's own: they tell no
    place in an answer.
    """
    pieces, calls = echo.text_pieces(), echo.tool_calls
    return chain(((writer.text(piece), _TEXT) for piece in pieces), _call_frames(writer, calls))


def _call_frames(writer: ChatWriter, calls: Iterable[Call]) -> Iterator[tuple[bytes, Said]]:
    for index, call in enumerate(calls):
        frames = (writer.announcement(index, call.name), writer.arguments(index, call.arguments))
        # Calls are read back: whether their arguments close, and say anything, is the client's own doing.
        for frame, said, told in zip(frames, said_in(frames), ("", call.arguments), strict=True):
            yield frame, msgspec.structs.replace(said, words=0, calls=((index, told),))


def said_by_echo(writer: ChatWriter, echo: Echo) -> Generator[Turn, None, Said]:
    """What an echo that is not streamed says, found in turns where it has many calls; it has no frames."""
    told = SaidSoFar(Said(spoken=_TEXT.spoken) if echo.text else NOTHING)
    for number, (_, said) in enumerate(_call_frames(writer, echo.tool_calls), 1):
        told.add(said)
        if number % _TURN_FRAMES == 0:
            yield TURN
    return msgspec.structs.replace(told.total, content_frames=0)


def echo_message(echo: Echo, completion: Completion) -> Generator[Turn, None, dict[str, Any]]:
    """The message of an echo that is not streamed, made in turns where it has many calls."""
    calls: list[dict[str, Any]] = []
    for index, call in enumerate(echo.tool_calls):
        function = {"name": call.name, "arguments": call.arguments}
        calls.append({"id": call_id(completion.id, index), "type": "function", "function": function})
        if len(calls) % _TURN_CALLS == 0:
            yield TURN
    message: dict[str, Any] = {"role": "assistant", "content": echo.text or None}
    return message | {"tool_calls": calls} if calls else message


def call_target_of(body: Common) -> CallTarget:
    """The tool that a tool call of this request's answer calls.

    Raises:
        ApiError: 400 for malformed tools.
    """
    try:
        return call_target(body.tools, body.tool_choice)
    except ValueError as error:
        raise invalid_request(str(error), "tools") from None


def needs_tool() -> ApiError:
    """400 for an answer that must be a call of nothing."""
    return invalid_request(
        "tool_choice: is 'required', which needs a function tool in tools: there is none", "tool_choice"
    )


def _told_ids(body: Common, prompt: Prompt, plan: Plan) -> Generator[Turn, None, dict[str, list[int]]]:
    """What `return_token_ids` adds to the choice of an answer that is not streamed."""
    if not body.return_token_ids:
        return {}
    ids: list[int] = []
    for piece in plan.pieces.joined():
        if piece.words == JOINED_WORDS:
            yield TURN
        ids += encode(piece.raw)
    ids += encode(plan.unseen)
    return {"prompt_token_ids": prompt.ids, "token_ids": ids}


def _whole(completion: Completion, kind: str, choice: dict[str, Any], counts: Counts) -> bytes:
    return msgspec.json.encode(
        {
            "id": completion.id,
            "object": kind,
            "created": completion.created,
            "model": completion.model,
            "choices": [choice],
            "usage": msgspec.Raw(counts.json()),
        }
    )
