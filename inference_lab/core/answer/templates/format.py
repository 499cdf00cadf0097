"""A model family's chat template and raw markup as data, and the one renderer that reads it."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from inference_lab.core.answer.templates.members import Member, members_of, open_members_of
from inference_lab.core.json_text import compact, is_whole, quoted
from inference_lab.core.prompts.messages import Call, Message, calls_of, text_of


class ChatTemplate(msgspec.Struct, frozen=True):
    """A family's template and markup. `{role}` in `message_open` is the message's role.

    An answer's raw text is, each part optional: `reasoning_open` reasoning `reasoning_close`, content, and
    calls, each `call_open` name `name_close` arguments `call_close`. Arguments are JSON as the client wrote
    it; those that an answer makes are `key_open` key `key_close` words `value_close`. Where `json_key_close`
    is set, all arguments are written so, one tag each, and it closes the key of a value that is no string.
    `plain_mark` and `thinking_mark` are what the template puts after the generation marker itself, where the
    family opens or closes the reasoning block in the prompt. A prompt that ends in one of the `traps` makes
    the model stop at once.
    """

    name: str
    begin: str
    tools_open: str
    tools_close: str
    message_open: str
    message_close: str
    generation: str
    reasoning_open: str
    reasoning_close: str
    calls_open: str
    call_open: str
    name_close: str
    key_open: str
    key_close: str
    value_close: str
    call_between: str
    call_close: str
    calls_close: str
    json_key_close: str = ""
    plain_mark: str = ""
    thinking_mark: str = ""
    traps: tuple[str, ...] = ()
    role_open: Mapping[str, str] = msgspec.field(default_factory=dict)
    role_close: Mapping[str, str] = msgspec.field(default_factory=dict)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[object] | None = None,
        *,
        thinking: bool = False,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
    ) -> str:
        """The prompt of a chat. A last message of role `assistant` is a prefill: its last piece stays open.

        It is none where `continue_final_message` is false or `add_generation_prompt` true. Past reasoning is
        kept.

        Raises:
            ValueError: both flags true; `continue_final_message` without an assistant message at the end;
                arguments that this format cannot leave open; JSON nested too deeply.
        """
        ends_in_assistant = bool(messages) and messages[-1].role == "assistant"
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        if continue_final_message and not ends_in_assistant:
            raise ValueError("continue_final_message needs an assistant message at the end")
        prefill = ends_in_assistant and continue_final_message is not False and not add_generation_prompt
        parts = [self.begin]
        if tools:
            parts += (self.tools_open, compact(tools), self.tools_close)
        for message in messages[:-1] if prefill else messages:
            parts += (self._opening(message.role), self._past(message), self._closing(message.role))
        if prefill:
            parts += (self.generation, self._prefill(messages[-1], thinking=thinking))
        elif add_generation_prompt is not False:
            parts += (self.generation, self.thinking_mark if thinking else self.plain_mark)
        return "".join(parts)

    def call(self, call: Call) -> str:
        """A whole call's raw text, without the markup around all calls.

        Raises:
            ValueError: arguments that are no JSON object, where the format writes them as tags.
        """
        return f"{self._call_up_to_arguments(call)}{self._written(call.arguments)}{self.call_close}"

    def open_call(self, call: Call) -> str:
        """A call whose arguments break off, raw, up to that place.

        Raises:
            ValueError: arguments that break off where the format cannot leave them open.
        """
        before = self._call_up_to_arguments(call)
        if not self.json_key_close:
            return before + call.arguments
        whole, broken = open_members_of(call.arguments)
        left = f"{self.key_open}{quoted(broken.key)}{self.key_close}{broken.text}" if broken else ""
        return before + self._tags(whole) + left

    def _call_up_to_arguments(self, call: Call) -> str:
        return f"{self.call_open}{quoted(call.name)}{self.name_close}"

    def _written(self, arguments: str) -> str:
        return self._tags(members_of(arguments)) if self.json_key_close else arguments.strip() or "{}"

    def _tags(self, members: Iterable[Member]) -> str:
        return "".join(map(self._tag, members))

    def _tag(self, member: Member) -> str:
        key_close = self.key_close if member.is_string else self.json_key_close
        return f"{self.key_open}{quoted(member.key)}{key_close}{member.text}{self.value_close}"

    def open_argument(self, name: str, key: str) -> str:
        """The raw text of a call up to the place where word 0 of its argument goes."""
        return f"{self.call_open}{quoted(name)}{self.name_close}{self.key_open}{quoted(key)}{self.key_close}"

    @property
    def answer_close(self) -> str:
        """What closes an assistant message in the history."""
        return self._closing("assistant").rstrip("\n")

    def _opening(self, role: str) -> str:
        return self.role_open.get(role, self.message_open.replace("{role}", role))

    def _closing(self, role: str) -> str:
        return self.role_close.get(role, self.message_close)

    def _past(self, message: Message) -> str:
        content = text_of(message.content)
        if message.role != "assistant":
            return content
        reasoning = message.past_reasoning
        block = f"{self.reasoning_open}{reasoning}{self.reasoning_close}" if reasoning else self.plain_mark
        calls = self.call_between.join(map(self.call, calls_of(message.tool_calls)))
        return f"{block}{content}{self.calls_open}{calls}{self.calls_close}" if calls else block + content

    def _prefill(self, message: Message, *, thinking: bool) -> str:
        reasoning, content = message.past_reasoning, text_of(message.content)
        calls = calls_of(message.tool_calls)
        if not (reasoning or content or calls):
            return self.thinking_mark if thinking else self.plain_mark
        if reasoning and not (content or calls):
            return self.reasoning_open + reasoning
        closed = f"{self.reasoning_open}{reasoning}{self.reasoning_close}"
        before = (closed if reasoning or thinking else self.plain_mark) + content
        if not calls:
            return before
        if is_whole(calls[-1].arguments):
            return (
                f"{before}{self.calls_open}{self.call_between.join(map(self.call, calls))}{self.calls_close}"
            )
        written = self.call_between.join([*map(self.call, calls[:-1]), self.open_call(calls[-1])])
        return f"{before}{self.calls_open}{written}"
