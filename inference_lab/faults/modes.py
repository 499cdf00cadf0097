"""The table of modes: every death is the healthy stream with something changed.

A mode is a row over orthogonal axes. The script generator reads the axes and knows no mode by name, so a new
death costs one row, or one value on one axis.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class Content(Enum):
    """What the content frames carry."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "call"


class Tear(Enum):
    """How much of one more frame follows the last whole one."""

    NONE = "none"
    HALF = "half"
    """The first half of its bytes, moved back to a character boundary."""
    UTF8 = "utf8"
    """Up to and including the first byte of an é in its text."""


class Usage(Enum):
    """When the usage frame is sent."""

    ASKED = "asked"
    """When the request has stream_options.include_usage, and there is a finish frame to follow."""
    NEVER = "never"


class Close(Enum):
    """How the response ends on the wire: the one ending of every script."""

    TERMINATOR = "terminator"
    """The chunked terminator; the connection is reusable."""
    FIN = "fin"
    """A FIN without the terminator."""
    RST = "rst"
    """A TCP reset without the terminator."""
    HANG = "hang"
    """Nothing: open until the client leaves."""


class Mode(msgspec.Struct, frozen=True):
    """One row: what follows the last whole content frame, and how the connection ends; the defaults are healthy.

    `error` is the JSON of an error frame; `finish` the finish frame's reason.
    """

    content: Content = Content.TEXT
    tear: Tear = Tear.NONE
    error: bytes | None = None
    finish: str | None = "stop"
    usage: Usage = Usage.ASKED
    done: bool = True
    close: Close = Close.TERMINATOR


def _death(**changed: object) -> Mode:
    """A row without the healthy tail, which most deaths never reach."""
    return msgspec.structs.replace(Mode(finish=None, usage=Usage.NEVER, done=False), **changed)


HEALTHY: Final = Mode()

# OpenRouter's envelope for an upstream failure after the 200 was sent.
_OPENROUTER_ENVELOPE: Final = (
    b'{"error":{"message":"Provider returned error","code":502,"metadata":'
    b'{"provider_name":"inference-lab","raw":"simulated upstream failure"}}}'
)
# vLLM's flat error object, sent into the open stream.
_VLLM_FLAT: Final = (
    b'{"object":"error","message":"This model\'s maximum context length was exceeded",'
    b'"type":"BadRequestError","param":null,"code":400}'
)
# What dynamo's frontend sends when it cancels a request.
_DYNAMO_499: Final = b'{"error":{"code":499,"message":"CancelledError: ","type":"request_cancelled"}}'

MODES: Final[Mapping[str, Mode]] = {
    "cut_between_frames": _death(close=Close.FIN),
    "cut_mid_frame": _death(tear=Tear.HALF, close=Close.FIN),
    "reset": _death(close=Close.RST),
    "stall": _death(close=Close.HANG),
    "error_envelope_200": _death(error=_OPENROUTER_ENVELOPE, done=True),
    "error_400_in_sse": _death(error=_VLLM_FLAT),
    "no_done": msgspec.structs.replace(HEALTHY, done=False),
    "no_usage": msgspec.structs.replace(HEALTHY, usage=Usage.NEVER),
    "cancelled_499": _death(error=_DYNAMO_499),
    "mid_reasoning": _death(content=Content.REASONING, close=Close.FIN),
    "mid_tool_call": _death(content=Content.TOOL_CALL, close=Close.FIN),
}
