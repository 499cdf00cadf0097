"""Split a rendered prompt into the prompt proper and the region, the answer so far."""

import re
from typing import Final

import msgspec

from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.answer.words import is_reasoning, next_word
from inference_lab.core.json_text import string_end
from inference_lab.core.tokens import ANY_WORD, parts_of

_ANSWER_CLOSES: Final = tuple(family.answer_close for family in FORMATS.values())

# What may stand after a tag that opens a block, where no whole word does: nothing, or reasoning's torn first word.
_BLOCK_BEGUN: Final = re.compile(r"\s*(?:[A-Z]{2}0{1,4})?")


class PartialAnswer(msgspec.Struct, frozen=True):
    """A prompt's two parts, and whether the prompt proper has opened or closed the reasoning block.

    `markup` is how many characters of markup the text begins with where no generation marker says that it is an answer.
    """

    proper: str
    text: str
    block_open: bool = False
    block_closed: bool = False
    marked: bool = True
    markup: int = 0

    @property
    def words_alone(self) -> "PartialAnswer":
        """Without the markup before it; without a text where there is none."""
        start = len(self.proper) + self.markup if self.markup else len(self.proper) + len(self.text)
        prompt = self.proper + self.text
        return PartialAnswer(prompt[:start], prompt[start:], marked=False)


def region_of(template: ChatTemplate, prompt: str) -> PartialAnswer:
    """The region is what follows the last generation marker of any format, however the prompt was rendered.

    An answer that is closed there lies after the conversation: then there is none.
    With no marker it is the last run of consecutive words of one tag, with the format's markup between
    reasoning, content and call, and what follows; whether that reads as an answer is for the reader to say.
    """
    start = -1
    mark_open = mark_closed = False
    for family in FORMATS.values():
        at = prompt.rfind(family.generation)
        if at < 0 or at < start:
            continue
        start = at + len(family.generation)
        mark_open = bool(family.thinking_mark) and prompt.startswith(family.thinking_mark, start)
        mark_closed = bool(family.plain_mark) and prompt.startswith(family.plain_mark, start)
        start += len(family.thinking_mark) if mark_open else len(family.plain_mark) if mark_closed else 0
    if start >= 0:
        if start < len(prompt) and any(prompt.find(mark, start) >= 0 for mark in _ANSWER_CLOSES):
            return PartialAnswer(prompt, "")
        return PartialAnswer(prompt[:start], prompt[start:], mark_open, mark_closed)
    start, words, block_open = _last_run(template, prompt)
    return PartialAnswer(prompt[:start], prompt[start:], block_open, marked=False, markup=words - start)


def without_region(template: ChatTemplate, prompt: str) -> PartialAnswer:
    """A prompt with no answer in it. A tag that more text follows is spoken of: it opens nothing."""
    _, opened, after = prompt.rpartition(template.reasoning_open.rstrip("\n"))
    return PartialAnswer(prompt, "", bool(opened and _BLOCK_BEGUN.fullmatch(after)), marked=False)


def _last_run(template: ChatTemplate, prompt: str) -> tuple[int, int, bool]:
    """Where the last run of words begins, with its markup and without, and whether that is in a reasoning block."""
    start = end = len(prompt)
    first = before = ""
    for found in ANY_WORD.finditer(prompt):
        word = found[0]
        if before and _follows(template, before, prompt[end : found.start()], word):
            before, end = word, found.end()
            continue
        torn = before and end == found.start() and found.end() == len(prompt)
        if torn and next_word(before).startswith(word):
            break
        start, end, first, before = found.start(), found.end(), word, word
    words = start
    if first and is_reasoning(first):
        opened = prompt.endswith(template.reasoning_open, 0, start)
        return start - len(template.reasoning_open) * opened, words, not opened
    if prompt.endswith(template.key_close, 0, start):
        call = prompt.rfind(template.calls_open + template.call_open, 0, start)
        start = (
            call if call >= 0 and _is_opening(template, prompt[call:start], template.calls_open) else start
        )
    block = template.reasoning_open + template.reasoning_close
    return start - len(block) * prompt.endswith(block, 0, start), words, False


def _follows(template: ChatTemplate, before: str, gap: str, word: str) -> bool:
    """Whether a word, after this gap, continues the answer that `before` belongs to."""
    if not gap:
        return word == next_word(before)
    (old, _), (new, index) = parts_of(before), parts_of(word)
    if index or old.lower() != new:
        return False
    if is_reasoning(before):
        closing = template.reasoning_close
        return gap == closing or (
            gap.startswith(closing) and _is_opening(template, gap[len(closing) :], template.calls_open)
        )
    closing = template.value_close + template.call_close + template.call_between
    if gap.startswith(closing) and _is_opening(template, gap[len(closing) :], ""):
        return True
    return _is_opening(template, gap, template.calls_open)


def _is_opening(template: ChatTemplate, text: str, before: str) -> bool:
    """Whether a text is what stands `before` a call and the call's markup up to its argument's first word."""
    opening = before + template.call_open
    if not (text.startswith(opening) and text.endswith(template.key_close)):
        return False
    named = string_end(text, len(opening))
    return named > 0 and text.startswith(template.name_close, named - 1)
