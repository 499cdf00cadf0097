"""`hermes`, ChatML as Qwen and Nous write it: `<think>` blocks and `<tool_call>` tags around JSON."""

from inference_lab.core.answer.templates.format import ChatTemplate

HERMES = ChatTemplate(
    name="hermes",
    begin="",
    tools_open="<|im_start|>system\n<tools>\n",
    tools_close="\n</tools><|im_end|>\n",
    message_open="<|im_start|>{role}\n",
    message_close="<|im_end|>\n",
    generation="<|im_start|>assistant\n",
    reasoning_open="<think>\n",
    reasoning_close="</think>\n\n",
    calls_open="",
    call_open='<tool_call>\n{"name": "',
    name_close='", "arguments": ',
    key_open='{"',
    key_close='": "',
    value_close='"}',
    call_between="\n",
    call_close="}\n</tool_call>",
    calls_close="",
)
