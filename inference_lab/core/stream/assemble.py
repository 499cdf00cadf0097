"""The script of a request, put together in one place: for the server, `inference-lab faults` and the tests alike."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from inference_lab.core.answer.answer import Limits, healthy
from inference_lab.core.answer.resume_point import restarted
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.answer.writer import Calls
from inference_lab.core.apis.contract import Api, Completion, Counts, Prompt
from inference_lab.core.apis.dialects import LAB, Dialect
from inference_lab.core.apis.request import Common, call_target_of, needs_tool
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.faults.applies import ANY_CONNECTION, Connection, why_invisible
from inference_lab.core.faults.incident import incident_script
from inference_lab.core.identity import FIXED_CREATED
from inference_lab.core.prompts.messages import requires_call, targets_of
from inference_lab.core.stream.content import AnswerSource, Cut
from inference_lab.core.stream.events import said_of_whole
from inference_lab.core.stream.healthy import headed
from inference_lab.core.stream.script import fault_script
from inference_lab.core.tokens import FIRST_TEXT_WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from inference_lab.core.answer.pieces import Pieces
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Form, StreamWriter
    from inference_lab.core.faults.directive import Fault
    from inference_lab.core.stream.events import Delivered, Event, Turn


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as an answer knows it: its spelling, and how long its answers are. See `ServedModel`."""

    name: str
    template: ChatTemplate = FORMATS["lab"]
    dialect: Dialect = LAB
    reasoning_words: int = 0
    answer_words: int | None = None
    calls: int = 1
    context_limit_tokens: int = 2**31


class Asked(msgspec.Struct, frozen=True):
    """What is asked for, and by whom: all that an answer depends on, but for what is decided about it."""

    api: Api[Any]
    body: Common
    prompt: Prompt
    model: Model
    connection: Connection = ANY_CONNECTION

    @property
    def context_left(self) -> int:
        """How many tokens the model can hold beside the prompt; there may be none."""
        return self.model.context_limit_tokens - len(self.prompt.ids)

    def dialect_of(self, fault: Fault) -> Dialect:
        """Whose frames a fault's are: the model's unless it says otherwise."""
        # One that the API does not have is refused by `script`.
        return self.dialect if (name := fault.death.dialect) is None else self.api.dialects.get(name, LAB)

    @property
    def dialect(self) -> Dialect:
        """Whose frames the model's are, on an API that has them."""
        return self.api.dialects.get(self.model.dialect.name, LAB)


def completion_of(asked: Asked, fault: Fault | None, digits: str) -> Completion:
    """What the frames of an answer without a clock repeat; `digits` are those of its id, `fault` None: an echo."""
    dialect = LAB if fault is None else asked.dialect_of(fault)
    return Completion((dialect.id_prefix or asked.api.id_prefix) + digits, FIXED_CREATED, asked.model.name)


def script(
    asked: Asked,
    fault: Fault,
    completion: Completion,
    *,
    is_asked_for: bool = True,
    whole: Callable[[Plan, Counts], Generator[Turn, None, bytes]] | None = None,
) -> Iterator[Event]:
    """The events of a fault, or of the incident that it stands for.

    `is_asked_for`: by the client, not by a model's file, whose faults need not ask for usage to be seen. `whole` writes
    an answer that is not streamed, in place of the API.

    Raises:
        ApiError: 400 for words without ids, where these are asked for.
        ValueError: this request cannot meet the fault. See `fault_script` for when it is raised.
    """
    api, body, prompt = asked.api, asked.body, asked.prompt
    fault = as_played(fault, api)
    death = fault.death
    counted = body.include_usage or not is_asked_for
    reason = why_invisible(fault, api=api, counts=counted, connection=asked.connection)
    if reason is not None:
        raise ValueError(reason)
    source = _source_of(asked, fault)
    if fault.incident is not None:
        words = map(api.text_of, source.infinite_pieces("text") if fault.incident.words else ())
        events = incident_script(fault.incident, completion, words, delay_ms=fault.given_delay_ms)
    else:
        dialect = asked.dialect_of(fault)

        def writer_of(form: Form) -> StreamWriter:
            return api.writer(completion, dialect, form)

        def whole_answer() -> Generator[Turn, None, tuple[bytes, Delivered]]:
            plan = source.plan
            counts = Counts(len(prompt.ids), plan.completion_tokens)
            written = whole(plan, counts) if whole else api.whole(body, completion, prompt, plan, counts)
            data = yield from written
            return data, said_of_whole(plan.pieces, plan.finish, counts.json())

        events = fault_script(
            death,
            writer_of,
            dialect,
            source,
            form=api.form(body, prompt),
            whole=whole_answer,
            streaming=bool(body.stream),
        )
        if body.return_token_ids or not (body.stream and death.may_stream and death.at != "request"):
            cut = Cut(death, source)  # refused here, too, where the script has no content to refuse
            _require_ids(body, cut.pieces, lambda: cut.pieces_shown)
    return headed(events, api.headers(completion.id.removeprefix(api.id_prefix)))


@lru_cache(maxsize=256)
def as_played(fault: Fault, api: Api[Any]) -> Fault:
    """A fault as an API has its mode, but for what is asked for besides."""
    row = api.mode_rows.get(fault.mode)
    if row is None:
        return fault
    given = {key for key, _ in fault.settings}
    changes = {key: value for key, value in row.items() if key not in given}
    return replace(fault, death=replace(fault.death, **changes))


def _source_of(asked: Asked, fault: Fault) -> AnswerSource:
    """The answer as a fault plays it: text unless it says otherwise, and past the context rather than refused."""
    model, prompt, death = asked.model, asked.prompt, fault.death
    limits = Limits(
        reasoning_words=model.reasoning_words if prompt.thinking else 0,
        answer_words=model.answer_words,
        max_tokens=asked.body.token_limit,
        context_left=max(1, asked.context_left),
    )
    position = restarted(model.template, prompt.position) if death.restart else prompt.position
    call = call_target_of(asked.body) if asked.body.tools else None
    return AnswerSource(death, model.template, position, limits, call)


def healthy_plan(asked: Asked) -> Plan:
    """What the engine is to answer.

    Raises:
        ApiError: 400 `context_length_exceeded`, or `invalid_request` for words without an id of their own and for a
            call without a tool.
    """
    model, prompt = asked.model, asked.prompt
    wanted, left = asked.body.token_limit, asked.context_left
    if left < max(1, wanted or 0):
        raise context_exceeded(asked.api.too_long(len(prompt.ids), wanted, model.context_limit_tokens), asked)
    plan = healthy(
        model.template,
        prompt.position,
        reasoning_words=model.reasoning_words if prompt.thinking else 0,
        answer_words=model.answer_words,
        max_tokens=wanted,
        context_left=left,
        calls=_calls_of(asked),
    )
    _require_ids(asked.body, plan.pieces)
    return plan


def context_exceeded(message: str, asked: Asked) -> ApiError:
    """400 for what the model, or its KV cache, can never hold."""
    return ApiError(400, "context_length_exceeded", message, param=asked.api.prompt_field)


def _calls_of(asked: Asked) -> Calls:
    """The calls of a healthy answer.

    Raises:
        ApiError: 400 where it must call a tool and there is none, in the request or in its prompt.
    """
    body, position = asked.body, asked.prompt.position
    count = 1 if body.parallel_tool_calls is False else asked.model.calls
    if not requires_call(body.tool_choice):
        return Calls(count)
    if isinstance(body.tool_choice, dict):
        return Calls(count, (call_target_of(body),))
    tools = targets_of(body.tools) or position.tools
    if not tools and position.place.channel not in {"call", "end"}:
        raise needs_tool()
    return Calls(count, tuple(tools))


def _require_ids(body: Common, pieces: Pieces, count: Callable[[], int] | None = None) -> None:
    """Where token ids are asked for, every word of the answer, or of its first so many pieces, must have one.

    Raises:
        ApiError: 400 `invalid_request`.
    """
    if body.return_token_ids and pieces.reach(FIRST_TEXT_WORD, count and count()):
        raise invalid_request(
            f"return_token_ids: words from {FIRST_TEXT_WORD} on have no id; ask for fewer tokens",
            "return_token_ids",
        )
