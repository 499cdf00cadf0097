"""Error variants: what real servers put into an open stream when they fail, to the byte.

In a row, `%M` stands for the message as JSON, `%m` for it as plain text, `%N` for the code as JSON; `done` is whether
that server sends `[DONE]` after it. Every block ends with a blank line but the raw ones, which end with one line feed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


DEFAULT_MESSAGE: Final = "simulated upstream failure"
DEFAULT_CODE: Final = 500


class ErrorFields(msgspec.Struct, frozen=True):
    """What an error says, where its variant has a place for it; `has_code` false leaves the code's member out."""

    message: str = DEFAULT_MESSAGE
    code: int | str | None = DEFAULT_CODE
    has_code: bool = True
    type: str | None = None


class Variant(msgspec.Struct, frozen=True):
    """One server's way to say that a stream has failed; `seen_in` names it."""

    text: str
    seen_in: str
    done: bool = False

    @property
    def takes_message(self) -> bool:
        """Whether the message can be set."""
        return "%M" in self.text or "%m" in self.text

    @property
    def takes_code(self) -> bool:
        """Whether the code can be set."""
        return "%N" in self.text

    @property
    def takes_type(self) -> bool:
        """Whether the type can be set."""
        return '"type":' in self.text

    def block(self, fields: ErrorFields, *, id_: str, kind: str, created: int, model: str) -> bytes:
        """Its bytes, with what every frame of the stream repeats; `kind` is their `object`."""
        text = self.text if fields.has_code else _without_code(self.text)
        if fields.type is not None:
            text = _with_type(text, fields.type)
        replaced = {
            "%M": _json(fields.message),
            "%m": fields.message,
            "%N": _json(fields.code),
            "%I": _json(id_),
            "%O": _json(kind),
            "%C": _json(created),
            "%S": _json(model),
            "%%": "%",
        }
        pieces = []
        place = 0
        while (
            found := text.find("%", place)
        ) >= 0:  # once through, so that a message may hold a percent sign
            pieces += [text[place:found], replaced[text[found : found + 2]]]
            place = found + 2
        return ("".join(pieces) + text[place:]).encode()


_FLAT: Final = (
    'data: {"object":"error","message":"This model\'s maximum context length was exceeded",'
    '"type":"BadRequestError","param":null,"code":400}\n\n'
)
_ENVELOPE: Final = (
    'data: {"error":{"message":"Provider returned error","code":502,"metadata":'
    '{"provider_name":"inference-lab","raw":"simulated upstream failure"}}}\n\n'
)
_CANCELLED: Final = 'data: {"error":{"code":499,"message":"CancelledError: ","type":"request_cancelled"}}\n\n'
_HTML: Final = (
    "<html><head><title>502 Bad Gateway</title></head>"
    "<body><center><h1>502 Bad Gateway</h1></center></body></html>\n"
)

VARIANTS: Final[Mapping[str, Variant]] = {
    "openai": Variant(
        'data: {"error":{"message":%M,"type":"internal_server_error","code":%N}}\n\n', "OpenAI"
    ),
    "vllm": Variant(
        'data: {"error": {"message": %M, "type": "InternalServerError", "param": null, "code": %N}}\n\n',
        "vLLM",
        done=True,
    ),
    "vllm_old": Variant(
        'data: {"error": {"object": "error", "message": %M, "type": "BadRequestError", "param": null, '
        '"code": 400}}\n\n',
        "older vLLM",
        done=True,
    ),
    "vllm_flat": Variant(_FLAT, "vLLM, as a flat object"),
    "sglang": Variant(
        'data: {"error":{"object":"error","message":%M,"type":"SERVICE_UNAVAILABLE","param":null,"code":503}}\n\n',
        "SGLang",
        done=True,
    ),
    "dynamo_499": Variant(_CANCELLED, "dynamo, a cancelled request"),
    "dynamo": Variant(
        'data: {"error":{"message":%M,"type":"internal_server_error","code":500}}\n\n', "dynamo", done=True
    ),
    "dynamo_comment": Variant("event: error\n: %m\n\n", "dynamo, in a comment"),
    "openrouter": Variant(
        'data: {"id":%I,"object":%O,"created":%C,"model":%S,"provider":"inference-lab",'
        '"error":{"code":"server_error","message":%M},'
        '"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}\n\n',
        "OpenRouter",
    ),
    "openrouter_choice": Variant(
        'data: {"id":%I,"object":%O,"created":%C,"model":%S,"provider":"inference-lab",'
        '"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error",'
        '"error":{"code":"server_error","message":%M}}]}\n\n',
        "OpenRouter, inside the choice",
    ),
    "openrouter_empty": Variant(
        'data: {"id":%I,"object":%O,"created":%C,"model":%S,"provider":"inference-lab",'
        '"error":{"code":"server_error","message":%M},"choices":[]}\n\n',
        "OpenRouter, without choices",
    ),
    "openrouter_envelope": Variant(_ENVELOPE, "OpenRouter, a failed provider", done=True),
    "string": Variant('data: {"error":%M}\n\n', "small servers"),
    "tgi": Variant('data: {"error":%M,"error_type":"generation"}\n\n', "TGI"),
    "anthropic": Variant(
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        "Anthropic",
    ),
    "field": Variant(
        'error: {"code":%N,"message":%M,"type":"server_error"}\n\n', "an `error:` field", done=True
    ),
    "raw_json": Variant('{"error":{"message":%M,"code":%N}}\n', "a proxy that writes its own JSON"),
    "raw_html": Variant(_HTML, "a proxy's error page"),
    "plain": Variant("data: %m\n\n", "text where JSON belongs"),
}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _without_code(text: str) -> str:
    for written in (',"code":%N', ', "code": %N', '"code":%N,'):
        text = text.replace(written, "")
    return text


def _with_type(text: str, kind: str) -> str:
    """The variant's own `"type"` value replaced; the last one, which is the error's."""
    head, _, tail = text.rpartition('"type":')
    blank = " " if tail.startswith(" ") else ""
    rest = tail.lstrip()[1:].partition('"')[2]
    return f'{head}"type":{blank}{_json(kind).replace("%", "%%")}{rest}'
