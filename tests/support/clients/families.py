"""What a gateway knows of model families' raw markup: an answer's text from its deltas, and deltas from a leg's text.

Written from the documents, on purpose without the program's code.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, replace

BAR = "\uff5c"
_OPEN_NAME = '{"name": "'
_OPEN_ARGUMENTS = '", "arguments": '
_DSML_NAME = f'\n\n<{BAR}DSML{BAR}tool_calls>\n<{BAR}DSML{BAR}invoke name="'
_PARAMETER = f'<{BAR}DSML{BAR}parameter name="{{}}" string="{{}}">'
_PARAMETER_END = f"</{BAR}DSML{BAR}parameter>\n"
_INVOKE_END = f"</{BAR}DSML{BAR}invoke>\n"
_PARAMETERS = re.compile(
    f'<{BAR}DSML{BAR}parameter name="([^"]*)" string="(true|false)">(.*?)(?:(</{BAR}DSML{BAR}parameter>\n)|\\Z)',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Delivered:
    """An answer so far as chat deltas tell it; `arguments` is None where no call has been announced."""

    reasoning: str = ""
    content: str = ""
    name: str = ""
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `prompt_opens` says that its template opens or closes the reasoning block in the prompt."""

    name: str
    think: str
    end_think: str
    call: str
    end_call: str
    prompt_opens: bool = False

    def raw(self, said: Delivered, *, thinking: bool) -> str:
        """The text that the model must have written for a client to have seen this."""
        text = ""
        if said.reasoning:
            text = ("" if self.prompt_opens and thinking else self.think) + said.reasoning
        if said.content or said.arguments is not None:
            opened = said.reasoning or (self.prompt_opens and thinking)
            text += (self.end_think if opened else "") + said.content
        return text if said.arguments is None else text + self._raw_call(said.name, said.arguments)

    def said(self, raw: str, *, thinking: bool) -> Delivered:
        """What a client is to see of a text that ends at no place inside markup but in a call."""
        said = Delivered()
        if self.prompt_opens and thinking:
            raw = self.think + raw
        if raw.startswith(self.think):
            reasoning, closed, raw = raw.removeprefix(self.think).partition(self.end_think)
            said = Delivered(reasoning)
            if not closed:
                return said
        content, opened, call = raw.partition(self.call)
        said = replace(said, content=content)
        return self._with_call(said, call) if opened else said

    def _raw_call(self, name: str, arguments: str) -> str:
        if not self.prompt_opens:
            return f"{self.call}{name}{_OPEN_ARGUMENTS}{arguments}{self.end_call if _is_whole(arguments) else ''}"
        opening = f'{self.call}{name}">\n'
        if not arguments:
            return opening
        if _is_whole(arguments):
            members = json.loads(arguments)
            return opening + "".join(map(_tag, members.items())) + self.end_call
        # Only a string can be open, and the answers of this server have no other member.
        key, _, text = arguments.removeprefix('{"').partition('": "')
        return opening + _PARAMETER.format(key, "true") + json.loads(f'"{text}"')

    def _with_call(self, said: Delivered, call: str) -> Delivered:
        if not self.prompt_opens:
            name, opened, arguments = call.partition(_OPEN_ARGUMENTS)
            if opened:
                with contextlib.suppress(ValueError):
                    arguments = arguments[: json.JSONDecoder().raw_decode(arguments)[1]]
                return replace(said, name=name, arguments=arguments)
            return said
        name, opened, tags = call.partition('">\n')
        if not opened:
            return said
        members = []
        for key, is_string, text, closed in _PARAMETERS.findall(tags):
            value = json.dumps(text, ensure_ascii=False) if is_string == "true" else text
            members.append(f'"{key}": {value if closed else value.removesuffix(chr(34))}')
        arguments = ("{" if members else "") + ", ".join(members)
        if _INVOKE_END in tags:
            arguments = (arguments or "{") + "}"
        return replace(said, name=name, arguments=arguments)


def _tag(member: tuple[str, object]) -> str:
    key, value = member
    is_string = isinstance(value, str)
    text = value if is_string else json.dumps(value)
    return f"{_PARAMETER.format(key, str(is_string).lower())}{text}{_PARAMETER_END}"


def _is_whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


FAMILIES = {
    family.name: family
    for family in (
        Family("lab", "<think>", "</think>", _OPEN_NAME, "}"),
        Family("hermes", "<think>\n", "</think>\n\n", "<tool_call>\n" + _OPEN_NAME, "}\n</tool_call>"),
        Family(
            "dsv4",
            "<think>",
            "</think>",
            _DSML_NAME,
            f"{_INVOKE_END}</{BAR}DSML{BAR}tool_calls>",
            prompt_opens=True,
        ),
    )
}
