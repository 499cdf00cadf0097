"""`dsv4`, DeepSeek V4: the prompt opens or closes the reasoning block, arguments are tags.

Its trap is reproduced: the model was trained on text where a newline follows every closing parameter and
invoke tag, and stops at once where a prompt ends between the two.
"""

from types import MappingProxyType

from inference_lab.core.answer.templates.format import ChatTemplate

DSV4 = ChatTemplate(
    name="dsv4",
    begin="<\uff5cbegin▁of▁sentence\uff5c>",
    tools_open="<tools>\n",
    tools_close="\n</tools>\n\n",
    message_open="<\uff5c{role}\uff5c>",
    message_close="",
    generation="<\uff5cAssistant\uff5c>",
    reasoning_open="<think>",
    reasoning_close="</think>",
    calls_open="\n\n<\uff5cDSML\uff5ctool_calls>\n",
    call_open='<\uff5cDSML\uff5cinvoke name="',
    name_close='">\n',
    key_open='<\uff5cDSML\uff5cparameter name="',
    key_close='" string="true">',
    json_key_close='" string="false">',
    value_close="</\uff5cDSML\uff5cparameter>\n",
    call_between="",
    call_close="</\uff5cDSML\uff5cinvoke>\n",
    calls_close="</\uff5cDSML\uff5ctool_calls>",
    plain_mark="</think>",
    thinking_mark="<think>",
    traps=("</\uff5cDSML\uff5cparameter>", "</\uff5cDSML\uff5cinvoke>"),
    role_open=MappingProxyType(
        {"system": "", "user": "<\uff5cUser\uff5c>", "assistant": "<\uff5cAssistant\uff5c>"}
    ),
    role_close=MappingProxyType({"assistant": "<\uff5cend▁of▁sentence\uff5c>"}),
)
