"""`lab`, the default of every shipped config: markers in bars, the tools as a bare JSON array before it."""

from inference_lab.core.answer.templates.format import ChatTemplate

LAB = ChatTemplate(
    name="lab",
    begin="",
    tools_open="",
    tools_close="",
    message_open="<|{role}|>",
    message_close="<|end|>",
    generation="<|assistant|>",
    reasoning_open="<think>",
    reasoning_close="</think>",
    calls_open="",
    call_open='{"name": "',
    name_close='", "arguments": ',
    key_open='{"',
    key_close='": "',
    value_close='"}',
    call_between="",
    call_close="}",
    calls_close="",
)
