"""The modes, presets, error variants and heartbeats as the specification has them, written out by hand."""

from __future__ import annotations

from tests.reference_model.contract import ENVELOPE

BROKEN = {"after_chunks": "3", "finish": "none", "done": "false"}
MODES: dict[str, dict[str, str]] = {
    "ok": {},
    "cut_between_frames": {**BROKEN, "close": "fin"},
    "cut_mid_frame": {**BROKEN, "tear": "half", "close": "fin"},
    "reset": {**BROKEN, "close": "rst"},
    "stall": {**BROKEN, "close": "hang"},
    "error_envelope_200": {**BROKEN, "error": "openrouter_envelope", "done": "true"},
    "error_400_in_sse": {**BROKEN, "error": "vllm_flat"},
    "no_done": {"after_chunks": "3", "done": "false"},
    "no_usage": {"after_chunks": "3", "usage": "never"},
    "cancelled_499": {**BROKEN, "error": "dynamo_499"},
    "mid_reasoning": {**BROKEN, "content": "reasoning", "close": "fin"},
    "mid_tool_call": {**BROKEN, "content": "tool_call", "close": "fin"},
}
PRESETS = {
    "clean_eof": "ok;after_chunks=3;finish=none;done=false",
    "done_without_finish": "ok;after_chunks=3;finish=none",
    "fake_stop": "ok;after_chunks=3;finish=stop",
    "abort_finish": "ok;after_chunks=3;finish=abort",
    "heartbeat_stall": "stall;heartbeat=ping;heartbeat_ms=1000",
    "slow_but_alive": "ok;after_chunks=3;then=rest;heartbeat=ping;heartbeat_ms=1000;beats=5",
    "crawl": "ok;after_chunks=8;delay_ms=10;then=rest;rest_delay_ms=1000",
    "tool_call_eof": "ok;after_chunks=4;content=tool_call;finish=none;done=false",
    "cut_conn_close": "cut_between_frames;close=fin_close",
    "torn_frame_clean": "cut_mid_frame;close=terminator",
    "rst_after_done": "ok;close=rst",
    "rst_after_complete": "ok;close=terminator_rst",
    "cut_after_done": "ok;close=fin",
    "hang_after_done": "ok;close=hang",
    "cut_after_finish": "ok;usage=never;done=false;close=fin",
    "overloaded_429": "ok;status=429;retry_after=1",
    "overloaded_503": "ok;status=503;retry_after=1",
    "bad_gateway_html": "ok;status=502;body=html",
    "empty_200": "ok;answer_as=empty",
    "json_200": "ok;answer_as=json",
    "first_frame_error": "ok;at=head;error=sglang",
    "stale_connection": "ok;close=stale",
}

TEXT, CODE = "simulated upstream failure", "500"
# M and N are the message and the code as JSON, m the bare message; the blank line is left out, but for the raw ones.
ERRORS: dict[str, tuple[str, bool]] = {
    "openai": ('data: {"error":{"message":M,"type":"internal_server_error","code":N}}', False),
    "vllm": (
        'data: {"error": {"message": M, "type": "InternalServerError", "param": null, "code": N}}',
        True,
    ),
    "vllm_old": (
        'data: {"error": {"object": "error", "message": M, "type": "BadRequestError", "param": null, "code": 400}}',
        True,
    ),
    "vllm_flat": (
        (
            'data: {"object":"error","message":"This model\'s maximum context length was exceeded",'
            '"type":"BadRequestError","param":null,"code":400}'
        ),
        False,
    ),
    "sglang": (
        'data: {"error":{"object":"error","message":M,"type":"SERVICE_UNAVAILABLE","param":null,"code":503}}',
        True,
    ),
    "dynamo_499": (
        'data: {"error":{"code":499,"message":"CancelledError: ","type":"request_cancelled"}}',
        False,
    ),
    "dynamo": ('data: {"error":{"message":M,"type":"internal_server_error","code":500}}', True),
    "dynamo_comment": ("event: error\n: m", False),
    "openrouter": (
        (
            'data: {HEAD,"provider":"inference-lab","error":{"code":"server_error","message":M},'
            '"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}'
        ),
        False,
    ),
    "openrouter_choice": (
        (
            'data: {HEAD,"provider":"inference-lab","choices":[{"index":0,"delta":{"content":""},'
            '"finish_reason":"error","error":{"code":"server_error","message":M}}]}'
        ),
        False,
    ),
    "openrouter_empty": (
        'data: {HEAD,"provider":"inference-lab","error":{"code":"server_error","message":M},"choices":[]}',
        False,
    ),
    "openrouter_envelope": (ENVELOPE.decode().strip(), True),
    "string": ('data: {"error":M}', False),
    "tgi": ('data: {"error":M,"error_type":"generation"}', False),
    "anthropic": (
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
        False,
    ),
    "field": ('error: {"code":N,"message":M,"type":"server_error"}', True),
    "raw_json": ('{"error":{"message":M,"code":N}}', False),
    "raw_html": (
        (
            "<html><head><title>502 Bad Gateway</title></head>"
            "<body><center><h1>502 Bad Gateway</h1></center></body></html>"
        ),
        False,
    ),
    "plain": ("data: m", False),
}
BEATS = {
    "ping": b": ping\n\n",
    "bare": b":\n\n",
    "keep_alive": b": keep-alive\n\n",
    "openrouter": b": OPENROUTER PROCESSING\n\n",
    "event": b"event: ping\ndata: {}\n\n",
    "empty_data": b"data:\n\n",
}

# Legs that are refused: an answer in place of a stream, or an error in it; and one that says nothing.
REFUSED = {"status": "400", "type": "invalid_request_error"}
REJECTED = {
    "prefill": {
        **REFUSED,
        "message": "This model does not support assistant message prefill. "
        "The conversation must end with a user message.",
        "code": "invalid_value",
    },
    "unsupported_param": {
        **REFUSED,
        "message": "Unsupported parameter: 'continue_final_message' is not supported with this model.",
        "code": "unsupported_parameter",
    },
    "context_length": {
        "status": "400",
        "type": "BadRequestError",
        "message": "This model's maximum context length was exceeded",
        "code": "400",
    },
    "context_length_in_stream": {
        "after_chunks": "0",
        "finish": "none",
        "done": "false",
        "error": "vllm_flat",
    },
}
SAYS_NOTHING = {"after_chunks": "0", "finish": "stop", "usage_off_by": "+1"}
OF_CONTENT_AND_TAIL = {
    *("after_chunks", "content", "reasoning_key", "tokens_per_frame", "frame_bytes", "tear", "malformed"),
    *("sequence", "then", "pause_ms", "text_in_finish", "finish", "error", "code", "message", "type", "done"),
    *("rest_delay_ms", "close", "idle_ms", "chunk_error", "heartbeat", "empty_finish", "usage_off_by"),
}
