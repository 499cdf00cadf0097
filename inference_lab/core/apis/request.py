"""What request bodies share: JSON read in two steps, plain values first, so that the last of repeated keys counts."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.prompts.messages import CallTarget, call_target

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOKENS_LIMIT: Final = 2**31 - 1
Ids: TypeAlias = list[Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]]
"""Token ids as clients send them: u32."""
# Accepted on both endpoints, without an effect: what OpenAI's API has besides the fields that are read.
_SAMPLING_FIELDS: Final = {
    "temperature",
    "top_p",
    "seed",
    "stop",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "top_logprobs",
    "response_format",
    "reasoning_effort",
    "modalities",
    "service_tier",
    "metadata",
    "store",
    "user",
}
_CHATS_ALONE: Final = (
    "stream_options",
    "max_completion_tokens",
    "n",
    "best_of",
    "echo",
    "suffix",
    "logprobs",
    "parallel_tool_calls",
    "return_token_ids",
)
_PATH: Final = re.compile(r"(?s)(.*) - at `\$\.?(.*)`")

_T = TypeVar("_T")


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of a request."""

    include_usage: bool | None = None


class AgentHints(msgspec.Struct, frozen=True):
    """`nvext.agent_hints`: `priority`, larger is more urgent."""

    priority: int | None = None


class Nvext(msgspec.Struct, frozen=True):
    """NVIDIA's extension object."""

    agent_hints: AgentHints | None = None


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints take. Unknown fields are accepted; null means absent.

    `max_tokens` and `max_completion_tokens` (which wins) count ids, 1 … 2^31 - 1; `priority` smaller is more urgent.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: bool | int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    priority: int | None = None
    nvext: Nvext | None = None
    return_token_ids: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream is to end with a usage frame."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The explicit limit, if there is one."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def engine_priority(self) -> int:
        """The scheduler's priority, smaller is more urgent: `priority`, else the negated hint, where larger is."""
        if self.priority is not None:
            return self.priority
        hints = self.nvext.agent_hints if self.nvext is not None else None
        return -hints.priority if hints is not None and hints.priority is not None else 0

    def check(self) -> None:
        """Refuse what cannot be honoured.

        Raises:
            ApiError: 400 `invalid_request` with the field's name.
        """
        if self.model is None:
            raise invalid_request("model: missing", "model")
        for field, limit in (
            ("max_tokens", self.max_tokens),
            ("max_completion_tokens", self.max_completion_tokens),
        ):
            if limit is not None and not 1 <= limit <= MAX_TOKENS_LIMIT:
                raise invalid_request(
                    f"{field}: is {show_number(limit)}, expected 1 to {MAX_TOKENS_LIMIT}", field
                )
        neutral = {
            "n": self.n in {None, 1},
            "best_of": self.best_of in {None, 1},
            "echo": not self.echo,
            "suffix": not self.suffix,
            "logprobs": not self.logprobs,
        }
        for field, is_neutral in neutral.items():
            if not is_neutral:
                raise invalid_request(f"{field}: cannot be honoured; leave it out", field)


class Unlike(Common, frozen=True, kw_only=True):
    """The body of an API that is unlike chat's, whose own members are taken and not looked at, as anything unknown."""

    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None
    logprobs: Any = None
    parallel_tool_calls: Any = None
    return_token_ids: Any = None

    def __post_init__(self) -> None:
        for name in _CHATS_ALONE:
            msgspec.structs.force_setattr(self, name, None)

    @property
    def include_usage(self) -> bool:
        """The counts are in every stream."""
        return True


def read_body(body: bytes, kind: type[_T]) -> _T:
    """The body as a request of `kind`.

    Raises:
        ApiError: 400 `invalid_request`: see `read_values`, or a field of a wrong type, with its path.
    """
    return convert(read_values(body), kind)


def read_values(body: bytes) -> dict[str, Any]:
    """The body's members as plain values; of a repeated one the last.

    Raises:
        ApiError: 400 `invalid_request`: not UTF-8, not JSON, no object.
    """
    try:
        values = msgspec.json.decode(body.decode())
    except UnicodeDecodeError as error:
        raise invalid_request(f"the body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise invalid_request("the body is nested too deeply") from None
    except msgspec.DecodeError as error:
        # msgspec calls a lone surrogate "truncated" too.
        reason = f"{error}: cut off, or a lone surrogate escape" if "truncated" in str(error) else str(error)
        raise invalid_request(f"the body is not JSON: {reason}") from None
    if not isinstance(values, dict):
        raise invalid_request("the body is no JSON object")
    return values


@cache
def fields_of(kind: type[Common]) -> frozenset[str]:
    """The fields that are read. Kept: msgspec evaluates the annotations each time it is asked, for a millisecond."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def unknown_field(values: Mapping[str, Any], kind: type[Common]) -> str | None:
    """The first top-level field that is neither known nor for sampling, None if there is none; null is absent."""
    known = fields_of(kind)
    unread = (name for name, value in values.items() if name not in known and value is not None)
    return next((name for name in unread if name not in _SAMPLING_FIELDS), None)


def unrecognized(name: str) -> ApiError:
    """400 for an unknown field, as a strict server refuses it."""
    shown = name if len(name) <= 60 else name[:60] + "…"
    return invalid_request(f"Unrecognized request argument supplied: {shown}", shown)


def convert(values: Mapping[str, Any], kind: type[_T]) -> _T:
    """Plain JSON values as `kind`.

    Raises:
        ApiError: 400 `invalid_request` with the path of the first field that does not fit.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        match = _PATH.fullmatch(str(error))
        reason, path = match.groups() if match else (str(error), "")
        # A struct's own check knows the member, msgspec the struct.
        if reason.startswith("."):
            member, _, reason = reason.partition(": ")
            path += member
        raise invalid_request(f"{path}: {reason}" if path else reason, path or None) from None


def show_number(value: int) -> str:
    """A client's integer, cut so that a message stays short (and `str` of 4,300 digits never runs)."""
    return str(value) if -(10**30) < value < 10**30 else "an integer of more than 30 digits"


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
