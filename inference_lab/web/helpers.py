"""The helper endpoints: what a prompt's ids are, what ids say, and how a conversation and its rest are rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.templates.thinking import is_thinking
from inference_lab.core.apis.messages.api import MESSAGES
from inference_lab.core.apis.messages.request import CountRequest
from inference_lab.core.apis.request import Ids, read_body
from inference_lab.core.apis.responses.api import RESPONSES
from inference_lab.core.apis.responses.request import ResponsesRequest
from inference_lab.core.errors import invalid_prompt, invalid_request
from inference_lab.core.prompts.messages import Message
from inference_lab.core.tokens import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.web.served import ServedModels

_HERE: Final = "expected the name of a served model"


class _Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What `/tokenize` and `/v1/render` share; unknown fields are accepted, null means absent."""

    model: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class _Tokenize(_Conversation, frozen=True, kw_only=True):
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class _Detokenize(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: Ids | None = None


class _Render(_Conversation, frozen=True, kw_only=True):
    virtual_model: str | None = None
    continuation_text: str | None = None
    return_token_ids: bool | None = None
    return_rendered: bool | None = None


class Helpers:
    """Answers the helper endpoints; each takes a body and gives the JSON value of its answer.

    They look for no directive in the prompt. Raises ApiError for a body that is not of the documented shape.
    """

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def count_tokens(self, body: bytes) -> dict[str, object]:
        """`POST /v1/messages/count_tokens`, Anthropic's shape: a conversation in, the length of its prompt out.

        Raises:
            ApiError: as for a message.
        """
        asked = read_body(body, CountRequest)
        asked.check()
        model = self._models.find(asked.model or "").model
        prompt = MESSAGES.prompt(asked, model.template, reasons=model.reasoning_words > 0)
        return {"input_tokens": len(prompt.ids)}

    def input_tokens(self, body: bytes) -> dict[str, object]:
        """`POST /v1/responses/input_tokens`, OpenAI's shape: as `count_tokens`.

        Raises:
            ApiError: as for a response.
        """
        asked = read_body(body, ResponsesRequest)
        asked.check()
        model = self._models.find(asked.model or "").model
        prompt = RESPONSES.prompt(asked, model.template, reasons=model.reasoning_words > 0)
        return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}

    def tokenize(self, body: bytes) -> dict[str, object]:
        """`POST /tokenize`, vLLM's shape: a prompt or a conversation in, ids out."""
        asked = read_body(body, _Tokenize)
        served = self._models.find(_named(asked.model))
        if (asked.prompt is None) == (not asked.messages):
            raise invalid_prompt("prompt: give either prompt or messages")
        text = asked.prompt
        if text is None:
            text = _render(served.model.template, asked, reasons=served.config.answer.reasoning > 0)
        return tokenized(
            text,
            max_model_len=served.config.context_limit_tokens,
            add_special_tokens=bool(asked.add_special_tokens),
            return_token_strs=bool(asked.return_token_strs),
        )

    def detokenize(self, body: bytes) -> dict[str, object]:
        """`POST /detokenize`, vLLM's shape: ids in, text out."""
        asked = read_body(body, _Detokenize)
        self._models.find(_named(asked.model))
        if asked.tokens is None:
            raise invalid_request("tokens: missing", "tokens")
        return detokenized(asked.tokens)

    def render(self, body: bytes) -> dict[str, object]:
        """`POST /v1/render`: a conversation and the answer so far in, the ids of a resume leg's prompt out."""
        asked = read_body(body, _Render)
        served = self._models.find(_named(asked.model or asked.virtual_model))
        if not asked.messages:
            raise invalid_request("messages: missing or empty, expected a list of messages", "messages")
        return rendered(
            _render(served.model.template, asked, reasons=served.config.answer.reasoning > 0),
            asked.continuation_text or "",
            return_token_ids=asked.return_token_ids is not False,
            return_rendered=bool(asked.return_rendered),
        )


def _named(model: str | None) -> str:
    if model is None:
        raise invalid_request(f"model: missing, {_HERE}", "model")
    return model


def _render(template: ChatTemplate, asked: _Conversation, *, reasons: bool) -> str:
    try:
        return template.render(
            asked.messages or (),
            asked.tools,
            thinking=is_thinking(asked.chat_template_kwargs, default=reasons),
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
        )
    except ValueError as error:
        raise invalid_request(str(error), "messages") from None


def tokenized(
    text: str, *, max_model_len: int, add_special_tokens: bool = False, return_token_strs: bool = False
) -> dict[str, object]:
    """`{count, max_model_len, tokens[, token_strs]}`, vLLM's shape; nothing is added unless asked for."""
    ids = encode(text, add_special_tokens=add_special_tokens)
    payload: dict[str, object] = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    if return_token_strs:
        payload["token_strs"] = [decode([number]) for number in ids]
    return payload


def detokenized(ids: Iterable[int]) -> dict[str, object]:
    """`{prompt}`, vLLM's shape."""
    return {"prompt": decode(ids)}


def rendered(
    prompt: str,
    continuation_text: str = "",
    *,
    return_token_ids: bool = True,
    return_rendered: bool = False,
) -> dict[str, object]:
    """`{token_ids, total, continuation_tokens[, rendered]}` of a prompt with the answer so far after it.

    `continuation_tokens` is what the text adds to the prompt's ids, so that a leg's prompt less the
    continuation is the first prompt even where the two share an id.
    """
    ids = encode(prompt + continuation_text)
    payload: dict[str, object] = {"token_ids": ids} if return_token_ids else {}
    payload |= {"total": len(ids), "continuation_tokens": len(ids) - len(encode(prompt))}
    if return_rendered:
        payload["rendered"] = prompt + continuation_text
    return payload
