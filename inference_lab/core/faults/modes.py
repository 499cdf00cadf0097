"""The table of modes: each is the healthy row with something changed, so a new death costs one row.

`ok` alone is no death but the engine; `ok` with any setting is the healthy row on the fault path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from inference_lab.core.faults.death import HEALTHY, NONE, Death
from inference_lab.core.faults.values import NumberedWord, Value

OK: Final = "ok"


class Mode(msgspec.Struct, frozen=True):
    """A row: what differs from the healthy stream, and which real systems die so."""

    changes: Mapping[str, Value]
    seen_in: str

    @property
    def death(self) -> Death:
        """The row with the healthy stream's values everywhere else."""
        return msgspec.structs.replace(HEALTHY, **self.changes)


def _cut(**changes: Value) -> dict[str, Value]:
    """A death that never reaches the healthy tail."""
    return {"after_chunks": 3, "finish": NONE, "done": "false", **changes}


BASIC_MODES: Final[Mapping[str, Mode]] = {
    "cut_between_frames": Mode(_cut(close="fin"), "a server process that is killed"),
    "cut_mid_frame": Mode(
        _cut(tear=NumberedWord("half"), close="fin"), "a proxy that copies bytes, when its upstream dies"
    ),
    "reset": Mode(_cut(close="rst"), "a crash with unread data, a load balancer's timeout"),
    "stall": Mode(_cut(close="hang"), "a lost node behind a connection that stays open"),
    "error_envelope_200": Mode(_cut(error="openrouter_envelope", done="true"), "OpenRouter"),
    "error_400_in_sse": Mode(_cut(error="vllm_flat"), "vLLM"),
    "no_done": Mode({"after_chunks": 3, "done": "false"}, "servers that end on the finish frame"),
    "no_usage": Mode({"after_chunks": 3, "usage": "never"}, "servers that ignore stream_options"),
    "cancelled_499": Mode(_cut(error="dynamo_499"), "dynamo"),
    "mid_reasoning": Mode(_cut(content="reasoning", close="fin"), "a reasoning model whose server dies"),
    "mid_tool_call": Mode(_cut(content="tool_call", close="fin"), "a server that dies inside a tool call"),
}
"""The eleven."""

MODES: Final[Mapping[str, Mode]] = {
    **BASIC_MODES,
    # The healthy row, and presets over it.
    OK: Mode({}, "a healthy server"),
    "clean_eof": Mode({"after_chunks": 3, "finish": NONE, "done": "false"}, "dynamo, Ollama, Portkey"),
    "done_without_finish": Mode(
        {"after_chunks": 3, "finish": NONE}, "Bifrost, CLIProxyAPI, vLLM after an abort"
    ),
    "fake_stop": Mode({"after_chunks": 3, "finish": "stop"}, "LiteLLM after a reset"),
    "abort_finish": Mode({"after_chunks": 3, "finish": "abort"}, "vLLM, SGLang"),
    "heartbeat_stall": Mode(_cut(close="hang", heartbeat="ping"), "proxies that keep connections warm"),
    "slow_but_alive": Mode(
        {"after_chunks": 3, "then": "rest", "heartbeat": "ping", "beats": 5}, "a server in a long prefill"
    ),
    "crawl": Mode(
        {"after_chunks": 8, "delay_ms": 10, "then": "rest", "rest_delay_ms": 1000},
        "an overcommitted GPU, at whose word a second no idle timer fires",
    ),
    "tool_call_eof": Mode(
        {"after_chunks": 4, "content": "tool_call", "finish": NONE, "done": "false"}, "opencode's reports"
    ),
    "cut_conn_close": Mode(_cut(close="fin_close"), "HTTP/1.0-style proxies; Node 20 calls it success"),
    "torn_frame_clean": Mode(_cut(tear=NumberedWord("half")), "proxies that copy bytes and end cleanly"),
    "rst_after_done": Mode({"close": "rst"}, "OpenSandbox, pi, codex: late deaths"),
    "rst_after_complete": Mode({"close": "terminator_rst"}, "late deaths"),
    "cut_after_done": Mode({"close": "fin"}, "late deaths"),
    "hang_after_done": Mode({"close": "hang"}, "late deaths"),
    "cut_after_finish": Mode({"usage": "never", "done": "false", "close": "fin"}, "late deaths"),
    "overloaded_429": Mode({"status": 429, "retry_after": 1}, "every provider"),
    "overloaded_503": Mode({"status": 503, "retry_after": 1}, "every provider"),
    "bad_gateway_html": Mode({"status": 502, "body": "html"}, "nginx and load balancers"),
    "empty_200": Mode({"answer_as": "empty"}, "proxies whose upstream answered nothing"),
    "json_200": Mode({"answer_as": "json"}, "servers that ignore `stream`"),
    "first_frame_error": Mode({"at": "head", "error": "sglang"}, "SGLang with a full queue"),
    "echo_restart": Mode({"restart": True}, "layers whose upstream ignores what it is to continue"),
    "echo_overlap": Mode({"overlap": 3}, "models that repeat the last words they are given"),
    "stale_connection": Mode({"close": "stale"}, "keep-alive races of uvicorn and Node"),
}
