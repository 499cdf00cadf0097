"""The dialects: how other servers write the same healthy stream, each a row of one table.

In a row JSON is written out, key by key and with its nulls. `$ID`, `$CREATED` and `$MODEL` stand for what every frame
repeats, `$CHOICES` for the list of choices, `$SAID` for what a frame says (on chat a member of the delta, on
completions the raw text as a JSON string), `$REASON` for the finish reason, `$ROLE` for the role where it rides on the
first content frame. Tool calls and reasoning are the same members in every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

CHARSET: Final = b"text/event-stream; charset=utf-8"
BARE: Final = b"text/event-stream"
_NO_CACHE: Final = (b"cache-control", b"no-cache")


class Frames(msgspec.Struct, frozen=True, cache_hash=True):
    """One endpoint's frames.

    `envelope` is around every frame and `role_envelope`, if another, around the role frame, whose choice is `role`
    (None: there is no such frame). `content` is the choice of a content frame and `closing` of one with a finish
    reason, which says `silence` where it says nothing. `aside` stands before what a delta says beside content.
    """

    envelope: str
    content: str
    closing: str
    silence: str
    role: str | None = None
    role_envelope: str = ""
    aside: str = ""


class Dialect(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """A server's way of writing a stream.

    `usage_null` says on which streams every frame carries `"usage":null`: those that asked for usage, all, or none.
    `finish_rides` puts the finish on the last content frame, `usage_closes` the counts on a second finish frame,
    `total_first` the total before the completion's. A `comment` precedes each content frame. `open_finish` is how
    a frame says that nothing is finished, `empty_finish` what stands there for an empty reason.
    """

    name: str
    seen_in: str
    chat: Frames
    completions: Frames
    content_type: bytes = CHARSET
    headers: tuple[tuple[bytes, bytes], ...] = (_NO_CACHE,)
    id_prefix: str | None = None
    reasoning_key: str = "reasoning_content"
    usage_null: Literal["never", "asked", "always"] = "never"
    finish_rides: bool = False
    usage_closes: bool = False
    total_first: bool = False
    comment: bytes = b""
    open_finish: str = '"finish_reason":null'
    empty_finish: str = '"finish_reason":""'


LAB: Final = Dialect(
    name="lab",
    seen_in="this server",
    headers=(_NO_CACHE, (b"x-accel-buffering", b"no")),
    chat=Frames(
        envelope='{"id":$ID,"object":"chat.completion.chunk","created":$CREATED,"model":$MODEL,"choices":$CHOICES}',
        role='{"index":0,"delta":{"role":"assistant"},"finish_reason":null}',
        content='{"index":0,"delta":{$SAID},"finish_reason":null}',
        closing='{"index":0,"delta":{$SAID},"finish_reason":$REASON}',
        silence="",
    ),
    completions=Frames(
        envelope='{"id":$ID,"object":"text_completion","created":$CREATED,"model":$MODEL,"choices":$CHOICES}',
        content='{"index":0,"text":$SAID,"logprobs":null,"finish_reason":null}',
        closing='{"index":0,"text":$SAID,"logprobs":null,"finish_reason":$REASON}',
        silence='""',
    ),
)

_OPENAI: Final = Dialect(
    name="openai",
    seen_in="OpenAI",
    usage_null="asked",
    chat=Frames(
        envelope='{"id":$ID,"object":"chat.completion.chunk","created":$CREATED,"model":$MODEL,'
        '"service_tier":"default","system_fingerprint":"fp_lab","choices":$CHOICES}',
        role='{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}',
        content='{"index":0,"delta":{$SAID},"logprobs":null,"finish_reason":null}',
        closing='{"index":0,"delta":{$SAID},"logprobs":null,"finish_reason":$REASON}',
        silence="",
    ),
    completions=Frames(
        envelope='{"id":$ID,"object":"text_completion","created":$CREATED,"choices":$CHOICES,"model":$MODEL}',
        content='{"text":$SAID,"index":0,"logprobs":null,"finish_reason":null}',
        closing='{"text":$SAID,"index":0,"logprobs":null,"finish_reason":$REASON}',
        silence='""',
    ),
)

_VLLM: Final = Dialect(
    name="vllm",
    seen_in="vLLM",
    headers=(),
    finish_rides=True,
    total_first=True,
    chat=Frames(
        envelope='{"id":$ID,"object":"chat.completion.chunk","created":$CREATED,"model":$MODEL,"choices":$CHOICES}',
        role='{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null},'
        '"logprobs":null,"finish_reason":null}',
        role_envelope='{"id":$ID,"object":"chat.completion.chunk","created":$CREATED,"model":$MODEL,'
        '"choices":$CHOICES,"prompt_token_ids":null}',
        content='{"index":0,"delta":{$SAID},"logprobs":null,"finish_reason":null,"token_ids":null}',
        closing='{"index":0,"delta":{$SAID},"logprobs":null,"finish_reason":$REASON,"stop_reason":null,"token_ids":null}',
        silence='"content":""',
    ),
    completions=Frames(
        envelope='{"id":$ID,"object":"text_completion","created":$CREATED,"model":$MODEL,"choices":$CHOICES}',
        content='{"index":0,"text":$SAID,"logprobs":null,"finish_reason":null,"stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}',
        closing='{"index":0,"text":$SAID,"logprobs":null,"finish_reason":$REASON,"stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}',
        silence='""',
    ),
)

_DYNAMO: Final = Dialect(
    name="dynamo",
    seen_in="NVIDIA dynamo",
    content_type=BARE,
    usage_null="always",
    finish_rides=True,
    chat=Frames(
        envelope='{"id":$ID,"choices":$CHOICES,"created":$CREATED,"model":$MODEL,"service_tier":null,'
        '"system_fingerprint":null,"object":"chat.completion.chunk"}',
        content='{"index":0,"delta":{$SAID$ROLE},"finish_reason":null}',
        closing='{"index":0,"delta":{$SAID$ROLE},"finish_reason":$REASON}',
        silence="",
    ),
    completions=Frames(
        envelope='{"id":$ID,"choices":$CHOICES,"created":$CREATED,"model":$MODEL,"system_fingerprint":null,'
        '"object":"text_completion"}',
        content='{"text":$SAID,"index":0,"logprobs":null,"finish_reason":null}',
        closing='{"text":$SAID,"index":0,"logprobs":null,"finish_reason":$REASON}',
        silence='""',
    ),
)

_OPENROUTER: Final = Dialect(
    name="openrouter",
    seen_in="OpenRouter",
    content_type=BARE,
    id_prefix="gen-",
    reasoning_key="reasoning",
    usage_closes=True,
    comment=b": OPENROUTER PROCESSING\n\n",
    open_finish='"native_finish_reason":null',
    empty_finish='"finish_reason":"","native_finish_reason":null',
    chat=Frames(
        envelope='{"id":$ID,"provider":"inference-lab","model":$MODEL,"object":"chat.completion.chunk",'
        '"created":$CREATED,"choices":$CHOICES}',
        content='{"index":0,"delta":{"role":"assistant",$SAID},"native_finish_reason":null}',
        closing='{"index":0,"delta":{"role":"assistant",$SAID},"finish_reason":$REASON,"native_finish_reason":$REASON}',
        silence='"content":""',
        aside='"content":"",',
    ),
    completions=Frames(
        envelope='{"id":$ID,"provider":"inference-lab","model":$MODEL,"object":"text_completion",'
        '"created":$CREATED,"choices":$CHOICES}',
        content='{"index":0,"text":$SAID,"native_finish_reason":null}',
        closing='{"index":0,"text":$SAID,"finish_reason":$REASON,"native_finish_reason":$REASON}',
        silence='""',
    ),
)

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect for dialect in (LAB, _OPENAI, _VLLM, _DYNAMO, _OPENROUTER)
}
