"""What needs a stream: the keys that only a stream can show, and the deaths that do without one."""

from __future__ import annotations

from typing import Final

from inference_lab.answers.dialects import LAB
from inference_lab.faults.death import HEALTHY, Death, at_defaults
from inference_lab.faults.leg_keys import CONTENT_KEYS, LEG_KEYS
from inference_lab.faults.sse import KEYS as SSE_KEYS

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
# What a request can meet that asked for no stream.
WHOLE_CLOSES: Final = ("terminator", "fin", "rst", "hang")


def acts_without_stream(death: Death) -> bool:
    """Whether a death has an effect on a request that asked for no stream."""
    if death.status != HEALTHY.status or death.at == "request":
        return True
    if death.answer_as != HEALTHY.answer_as:
        return death.answer_as != "json"  # which is the answer such a request gets anyway
    is_plain = at_defaults(death, STREAM_KEYS)
    is_plain = is_plain and death.dialect in {None, LAB.name} and death.close in WHOLE_CLOSES
    return is_plain and (death.ttft_ms > 0 or death.strict_params)
