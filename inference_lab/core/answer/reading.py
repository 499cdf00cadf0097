"""Read an answer so far in a format's markup, cut off at any character."""

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from inference_lab.core.answer.call_reading import read_calls, torn_opening
from inference_lab.core.answer.cursor import Cursor
from inference_lab.core.answer.partial_answer import PartialAnswer
from inference_lab.core.answer.templates import ChatTemplate
from inference_lab.core.answer.words import Tail, completion_of, tail_of, torn_letters
from inference_lab.core.prompts.messages import CallTarget
from inference_lab.core.tokens import spell

# An answer that begins so was opened by its prompt, even where another template has rendered the prompt anew.
_REASONING_WORD: Final = re.compile("\n*[A-Z]{2}0")

Targets = Callable[[], Sequence[CallTarget]]
"""The tools that a torn call may be completed to; asked for only where there is one."""


def read(template: ChatTemplate, region: PartialAnswer, tag: str, targets: Targets) -> Cursor:
    """The place where an answer so far ends.

    `tag` is the prompt's, for an answer that shows none. What is no beginning of an answer is continued after
    its last whole word.
    """
    opening, closing = template.reasoning_open.rstrip("\n"), template.reasoning_close.rstrip("\n")
    text = region.text
    block_open = region.block_open or bool(_REASONING_WORD.match(text))
    if not block_open and not text.startswith(opening):
        if not text:
            return Cursor("text" if region.block_closed else "start")
        return _content(template, text, tag, targets, opened=False)
    start = 0 if block_open else len(opening)
    close = text.find(closing, start)
    if close < 0:
        return _reasoning(template, text[start:], tag, block_open=block_open)
    before = tail_of(text[start:close], reasoning=True)
    behind = template.reasoning_close[len(closing) :]
    content = text[close + len(closing) :]
    if len(content) < len(behind) and behind.startswith(content):
        place = Cursor("text", markup=behind[len(content) :])
    elif before.next_index and (call := read_as_call(template, content.removeprefix(behind), targets)):
        place = call
    else:
        shown = before.letters.lower() or tag
        place = _content(template, content.removeprefix(behind), shown, targets, opened=True)
    return msgspec.structs.replace(
        place,
        progress=place.progress + before.next_index,
        tag=place.tag or before.letters.lower(),
        readable=place.readable and not before.rest,
    )


def _reasoning(template: ChatTemplate, text: str, tag: str, *, block_open: bool) -> Cursor:
    """An open block, from after its opening tag."""
    if not text:
        behind = "" if block_open else template.reasoning_open[len(template.reasoning_open.rstrip("\n")) :]
        return Cursor("reasoning", markup=behind)
    tail = tail_of(text, reasoning=True)
    place = _at_word("reasoning", tail, tag.upper())
    if not place.completion and tail.rest and template.reasoning_close.startswith(tail.rest):
        missing = template.reasoning_close[len(tail.rest) :]
        return Cursor("text", markup=missing, tag=place.tag, progress=place.progress)
    return place


def _content(template: ChatTemplate, text: str, tag: str, targets: Targets, *, opened: bool) -> Cursor:
    """Content, and the calls after it. `opened` says that the answer itself has closed its reasoning."""
    opening = template.calls_open + template.call_open
    call = text.find(opening)
    if call >= 0:
        before = tail_of(text[:call])
        place = read_calls(template, text[call + len(opening) :], targets(), before.letters or tag)
        if place.channel != "text":
            return msgspec.structs.replace(
                place,
                progress=place.progress + before.next_index,
                tag=place.tag or before.letters,
                readable=place.readable and not before.rest,
            )
    tail = tail_of(text)
    place = _at_word("text", tail, tag)
    if place.completion or not tail.rest:
        return place
    if not opened and not place.progress and template.reasoning_open.startswith(text):
        return Cursor("reasoning", markup=template.reasoning_open[len(text) :])
    # The text itself, not its tail: line feeds at the front belong to the opening here.
    rest = text if not place.progress else tail.rest
    if opening.startswith(rest):
        missing = torn_opening(template, opening[len(rest) :], targets())
        return msgspec.structs.replace(missing, progress=place.progress, tag=place.tag)
    return place


def _at_word(channel: Literal["reasoning", "text"], tail: Tail, tag: str) -> Cursor:
    """The place after the last whole word of a channel's text, a torn next word completed."""
    letters = tail.letters or torn_letters(tail.rest, tag)
    if tag.isupper():
        letters = letters.upper()
    completion = completion_of(tail.rest, spell(letters, tail.next_index)) if letters else ""
    shown = letters.lower() if tail.letters or completion else ""
    readable = bool(completion) or not tail.rest
    return Cursor(
        channel, tail.next_index, completion, tag=shown, progress=tail.next_index, readable=readable
    )


def read_as_call(template: ChatTemplate, answer: str, targets: Targets) -> Cursor | None:
    """The place of an answer that ends in a call's torn opening, None where it ends in something else.

    For those who know that a call is meant: line feeds or a `<` may begin other things as well.
    """
    opening = template.calls_open + template.call_open
    begun = answer.rpartition(template.reasoning_close.rstrip("\n"))[2]
    return (
        torn_opening(template, opening[len(begun) :], targets())
        if begun and opening.startswith(begun)
        else None
    )
