"""What an answer is to hold, judged before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from inference_lab.core.answer.answer import Limits, healthy
from inference_lab.core.answer.writer import Calls
from inference_lab.core.apis.request import Common, call_target_of, needs_tool
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.prompts.calls import requires_call, targets_of
from inference_lab.core.stream.source import AnswerSource, answer_of
from inference_lab.core.tokens import FIRST_TEXT_WORD

if TYPE_CHECKING:
    from inference_lab.core.answer.pieces import Pieces
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Api, Prompt
    from inference_lab.core.faults.death import Death
    from inference_lab.core.prompts.calls import CallTarget
    from inference_lab.web.checks import Accepted

_R = TypeVar("_R", bound=Common)


def engine_plan(api: Api[_R], accepted: Accepted[_R], prompt: Prompt) -> Plan:
    """What the engine is to answer.

    Raises:
        ApiError: 400 `context_length_exceeded`, or `invalid_request` for words without an id of their own and for a
            call without a tool.
    """
    config = accepted.served.config
    asked = accepted.body.token_limit
    left = config.context_limit_tokens - len(prompt.ids)
    if left < max(1, asked or 0):
        wanted = f"{asked} for the answer" if asked else "at least one for the answer"
        raise context_exceeded(
            f"the model holds {config.context_limit_tokens} tokens; "
            f"the prompt has {len(prompt.ids)}, and {wanted} do not fit",
            api,
        )
    plan = healthy(
        accepted.served.style,
        prompt.position,
        reasoning_words=config.answer.reasoning if prompt.thinking else 0,
        answer_words=config.answer.tokens,
        max_tokens=asked,
        context_left=left,
        calls=_calls(accepted.body, prompt, config.answer.calls),
    )
    require_ids(accepted.body, plan.pieces)
    return plan


def _calls(body: Common, prompt: Prompt, count: int) -> Calls:
    """The calls of a healthy answer.

    Raises:
        ApiError: 400 where it must call a tool and there is none, in the request or in its prompt.
    """
    count = 1 if body.parallel_tool_calls is False else count
    if not requires_call(body.tool_choice):
        return Calls(count)
    if isinstance(body.tool_choice, dict):
        return Calls(count, (call_target_of(body),))
    tools = targets_of(body.tools) or prompt.position.tools
    if not tools and prompt.position.place.channel not in {"call", "end"}:
        raise needs_tool()
    return Calls(count, tuple(tools))


def require_ids(body: Common, pieces: Pieces, frames: int | None = None) -> None:
    """Where token ids are asked for, every word of the answer must have one of its own.

    Raises:
        ApiError: 400 `invalid_request`.
    """
    if body.return_token_ids and pieces.reach(FIRST_TEXT_WORD, frames):
        raise invalid_request(
            f"return_token_ids: words from {FIRST_TEXT_WORD} on have no id; ask for fewer tokens",
            "return_token_ids",
        )


def fault_plan(accepted: Accepted[_R], prompt: Prompt, death: Death) -> Plan:
    """The whole answer as a fault plays it: text unless it says otherwise, and past the context rather than refused.

    Raises:
        ValueError: see `answer_of`.
    """
    config = accepted.served.config
    limits = Limits(
        reasoning_words=config.answer.reasoning if prompt.thinking else 0,
        answer_words=config.answer.tokens,
        max_tokens=accepted.body.token_limit,
        context_left=max(1, config.context_limit_tokens - len(prompt.ids)),
    )
    return answer_of(accepted.served.style, prompt.position, death, limits)


def context_exceeded(message: str, api: Api[_R]) -> ApiError:
    """400 for what the model, or its KV cache, can never hold."""
    return ApiError(400, "context_length_exceeded", message, param=api.prompt_field)


def call_to_make(body: Common, prompt: Prompt) -> CallTarget:
    """What a call of the answer calls: a leg that a gateway makes has its tools in the prompt alone."""
    return call_target_of(body) if body.tools else prompt.position.first_tool


def source_of(accepted: Accepted[_R], prompt: Prompt, answer: Plan, death: Death) -> AnswerSource:
    """Where a fault's answer, or an incident's words, come from."""
    style, call = accepted.served.style, call_to_make(accepted.body, prompt)
    return AnswerSource(style, prompt.position, answer, death, call=call)
