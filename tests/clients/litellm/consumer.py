"""Ask through LiteLLM's Router, in an environment of its own (requirements.txt beside this file).

Reads a JSON array of cases from standard input and writes one of what its caller received to standard output:

    {"url", "content", "continues", "max_tokens"}   ->   {"chunks": [...], "end": "ends" or an exception's name}

The Router is used as its documentation shows: a group of models that falls back on two more, retries off. Each case
has a Router of its own, since one that has seen a failure leaves the deployment alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import litellm

litellm.telemetry = False
litellm.suppress_debug_info = True
SILENCE_S = 1.0
DRAWN_WITH = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["\n\nUser:"]}
"""What all legs of an answer must share."""


def deployment(group: str, url: str) -> dict[str, Any]:
    """Our model under the name of a group; a model that LiteLLM does not know must say that it takes a prefill."""
    return {
        "model_name": group,
        "litellm_params": {
            "model": "openai/lab",
            "api_base": f"{url}/v1",
            "api_key": "none",
            "stream_timeout": SILENCE_S,
        },
        "model_info": {"supports_assistant_prefill": True},
    }


async def ask(case: dict[str, Any]) -> dict[str, Any]:
    """One streaming chat request, read to its end."""
    router = litellm.Router(
        model_list=[deployment(group, case["url"]) for group in ("first", "second", "third")],
        fallbacks=[{"first": ["second", "third"]}],
        num_retries=0,
        enable_mid_stream_fallback_continuation=case["continues"],
    )
    more = {} if case["max_tokens"] is None else {"max_tokens": case["max_tokens"]}
    chunks: list[Any] = []
    try:
        stream = await router.acompletion(
            model="first",
            messages=[{"role": "user", "content": case["content"]}],
            stream=True,
            stream_options={"include_usage": True},
            **DRAWN_WITH,
            **more,
        )
        async for chunk in stream:
            chunks.append(chunk.model_dump(exclude_none=True))  # noqa: PERF401 - what came before an error counts
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is to be seen
        kind = type(error)
        return {"chunks": chunks, "end": f"{kind.__module__.partition('.')[0]}.{kind.__name__}"}
    return {"chunks": chunks, "end": "ends"}


async def main() -> None:
    """All cases, one after the other."""
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [await ask(case) for case in cases]
    json.dump(answers, sys.stdout)


asyncio.run(main())
