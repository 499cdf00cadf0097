"""What only a later leg of an answer can do wrong: the keys, and what they come to on the leg at hand.

From a header on the first leg such a key is refused; in lists and in TOML it acts where words have been passed on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.faults.axis import Phase
from inference_lab.core.faults.death import HEALTHY, LABELS, LEG_KEYS, NONE, Death, changed, keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from inference_lab.core.faults.values import Value

# What a death's own content and tail give way to where a leg has neither.
_CONTENT_AND_TAIL: Final = (
    *keys_of(Phase.CONTENT, Phase.ERROR, Phase.TERMINAL, Phase.END),
    "chunk_error",
    "heartbeat",
    "usage_off_by",
)

REJECTIONS: Final[Mapping[str, Mapping[str, Value]]] = {
    "prefill": {
        "status": 400,
        "type": "invalid_request_error",
        "message": "This model does not support assistant message prefill. "
        "The conversation must end with a user message.",
        "code": "invalid_value",
    },
    "unsupported_param": {
        "status": 400,
        "type": "invalid_request_error",
        "message": "Unsupported parameter: 'continue_final_message' is not supported with this model.",
        "code": "unsupported_parameter",
    },
    "context_length": {
        "status": 400,
        "type": "BadRequestError",
        "message": "This model's maximum context length was exceeded",
        "code": 400,
    },
    "context_length_in_stream": {"after_chunks": 0, "finish": NONE, "done": "false", "error": "vllm_flat"},
}
"""Each as a death of its own: three answers in place of the stream, one error in an open stream."""

_INSTANT_STOP: Final[Mapping[str, Value]] = {"after_chunks": 0, "finish": "stop"}


def leg_key(death: Death) -> str | None:
    """The first leg-only key that a death has, if any."""
    return next(iter(changed(death, LEG_KEYS)), None)


@lru_cache(maxsize=256)  # of a header's fault it is asked for each request
def on_leg(death: Death, *, is_later: bool) -> Death | None:
    """What a death is on the first leg of an answer, or on a later one; None: nothing is left of it."""
    if leg_key(death) is None:
        return death
    plain = msgspec.structs.replace(death, **{key: getattr(HEALTHY, key) for key in LEG_KEYS})
    if not is_later:
        bare = msgspec.structs.replace(plain, delay_ms=HEALTHY.delay_ms, **dict.fromkeys(LABELS))
        return None if bare == HEALTHY else plain
    if death.reject != HEALTHY.reject:
        row = REJECTIONS[death.reject]
        if "status" in row:  # not a stream: nothing of one is left
            labels = {key: getattr(death, key) for key in LABELS}
            return msgspec.structs.replace(HEALTHY, ttft_ms=death.ttft_ms, **labels, **row)
        return _emptied(plain, row)
    return _emptied(death, _INSTANT_STOP) if death.instant_stop else death


def replaced_key(death: Death, given: Iterable[tuple[str, Value]]) -> str | None:
    """The first given key that a later leg's own `instant_stop` or `reject` takes the place of, if any."""
    leg = on_leg(death, is_later=True)
    if leg is None or not (death.instant_stop or death.reject != HEALTHY.reject):
        return None
    for key, value in given:
        is_change = key not in {*LEG_KEYS, "delay_ms"} and value != getattr(HEALTHY, key)
        if is_change and getattr(leg, key) != value:
            return key
    return None


def _emptied(death: Death, row: Mapping[str, Value]) -> Death:
    """The death's head, spelling and framing, with the content and tail of a row."""
    return msgspec.structs.replace(
        death, **{**{key: getattr(HEALTHY, key) for key in _CONTENT_AND_TAIL}, **row}
    )
