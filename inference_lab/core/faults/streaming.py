"""What needs a stream: the keys that only a stream can show, and the deaths that do without one."""

from __future__ import annotations

from typing import Final

from inference_lab.core.apis.dialects import LAB
from inference_lab.core.faults.death import HEALTHY, Death, at_defaults
from inference_lab.core.faults.leg_keys import CONTENT_KEYS, LEG_KEYS
from inference_lab.core.stream.sse import KEYS as SSE_KEYS

# What a stream that never gets to its content frames cannot show.
UNSEEN_KEYS: Final = (
    *CONTENT_KEYS,
    "usage",
    "usage_off_by",
    *(key for key in LEG_KEYS if key != "reject"),  # a rejection needs no content
)
# What a response that is no stream cannot show, and what cannot be seen where nothing is answered at all.
STREAM_KEYS_BUT_AT: Final = (
    *UNSEEN_KEYS,
    "reject",
    "error",
    "done",
    "content_type",
    "heartbeat",
    "heartbeat_ms",
    "beats",
    *SSE_KEYS,
    "segment",
    "gap_ms",
    "length",
    "chunk_error",
    "encoding",
)
STREAM_KEYS: Final = (*STREAM_KEYS_BUT_AT, "at")
# What a whole answer can show too, under the head of a stream.
OPENED_KEYS: Final = ("content_type", "heartbeat", "heartbeat_ms", "beats")
STREAM_ONLY_KEYS: Final = tuple(key for key in STREAM_KEYS if key not in OPENED_KEYS)
# What a request can meet that asked for no stream.
WHOLE_CLOSES: Final = ("terminator", "fin", "rst", "hang")


def acts_without_stream(death: Death) -> bool:
    """Whether a death has an effect on a request that asked for no stream."""
    if death.status != HEALTHY.status or death.at == "request":
        return True
    if death.answer_as not in {HEALTHY.answer_as, "json"}:
        return True
    acts = death.ttft_ms > 0 or death.strict_params
    if death.answer_as == "json":  # which is the answer that such a request gets anyway
        return acts or not at_defaults(death, OPENED_KEYS)
    is_plain = at_defaults(death, STREAM_KEYS)
    return acts and is_plain and death.dialect in {None, LAB.name} and death.close in WHOLE_CLOSES
