"""The answer: words that say which prompt they answer and where they stand, cut into frames' worth.

Word i is the tag, i in decimal with at least four digits, `é` where i mod 8 = 7, and for i > 0 one blank in
front. Reasoning is in capitals, a call's argument in lower case. Markup rides in front of the word behind it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Final, Literal

import msgspec

from inference_lab.calls import CallTarget
from inference_lab.formats import Format
from inference_lab.json_text import quoted
from inference_lab.position import Position
from inference_lab.tokens import encode, spell

Channel = Literal["text", "reasoning", "call"]

DEFAULT_WORDS: Final = 256
"""Content words of an answer that nothing else limits."""


def word(tag: str, index: int, *, reasoning: bool = False) -> str:
    """Word `index` of the answer tagged `tag`: `qu0000`, ` qu0007é`; in capitals for reasoning."""
    return spell(tag.upper() if reasoning else tag, index)


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What one content frame carries.

    `delta` is a chat delta's text (a call's announcement has none), `raw` a completions frame's, markup
    included. `token_count` is the ids of `raw`, `words` the whole words it ends.
    """

    channel: Channel
    delta: str
    raw: str
    token_count: int
    words: int


@dataclass(frozen=True, slots=True)
class Run:
    """Plain words `start` … `stop` - 1 of one channel, one token each; without end if `stop` is None."""

    channel: Channel
    letters: str
    start: int
    stop: int | None

    def __iter__(self) -> Iterator[Piece]:
        channel, letters = self.channel, self.letters
        for index in count(self.start) if self.stop is None else range(self.start, self.stop):
            text = spell(letters, index)
            yield Piece(channel, text, text, 1, 1)


@dataclass(frozen=True, slots=True)
class Pieces:
    """An answer's pieces, made as they are asked for, as often as they are asked for."""

    segments: tuple[Piece | Run, ...]

    def __iter__(self) -> Iterator[Piece]:
        return chain.from_iterable(part if isinstance(part, Run) else (part,) for part in self.segments)


@dataclass(frozen=True, slots=True)
class Plan:
    """A healthy answer: its pieces, its finish reason and the ids of all its raw text."""

    pieces: Pieces
    finish: Literal["stop", "length"]
    completion_tokens: int


def fault_pieces(
    style: Format, position: Position, channel: Channel, *, call: CallTarget | None = None
) -> Iterator[Piece]:
    """The endless answer of a fault, all in one channel.

    A call's first piece announces it: its delta is empty, its raw text reaches to the quote in front of word
    0.
    """
    return iter(Pieces(_endless(style, position, channel, call or CallTarget())))


def _endless(
    style: Format, position: Position, channel: Channel, call: CallTarget
) -> tuple[Piece | Run, ...]:
    tag = position.tag
    if channel == "reasoning":
        opening = "" if position.block_open else style.reasoning_open
        return _first(channel, opening, tag.upper()), Run(channel, tag.upper(), 1, None)
    closing = style.reasoning_close if position.block_open else ""
    if channel == "text":
        return _first(channel, closing, tag), Run(channel, tag, 1, None)
    key = quoted(call.key)
    opening = style.open_argument(call.name, call.key)
    raw = f"{closing}{style.calls_open}{opening}"
    first = spell(tag, 0)
    return (
        Piece(channel, "", raw, len(encode(raw)), 0),
        Piece(channel, f'{{"{key}": "{first}', first, 1, 1),
        Run(channel, tag, 1, None),
    )


def _first(channel: Channel, markup: str, letters: str) -> Piece:
    """Word 0 with the markup that rides in front of it."""
    first = spell(letters, 0)
    return Piece(channel, first, markup + first, len(encode(markup)) + 1, 1)


def healthy(  # the limits of a request and a model, each by its name
    style: Format,
    position: Position,
    *,
    reasoning_words: int = 0,
    answer_words: int | None = None,
    max_tokens: int | None = None,
    context_left: int | None = None,
) -> Plan:
    """The whole answer: reasoning first, on top of the content words.

    It ends at the first of `max_tokens` (ids, markup included), `answer_words` (`[answer] tokens`, content
    only) and `context_left` (ids); with the first two absent at 256 content words. Markup is never split.
    Finish is `stop` where `answer_words` is reached, else `length` (docs/wire.md, Lengths). No limit
    costs time or memory.
    """
    tag = position.tag
    default = DEFAULT_WORDS if max_tokens is None else None
    segments: list[Piece | Run] = []
    markup = ""
    if reasoning_words:
        segments.append(_first("reasoning", "" if position.block_open else style.reasoning_open, tag.upper()))
        segments.append(Run("reasoning", tag.upper(), 1, reasoning_words))
    if reasoning_words or position.block_open:
        markup = style.reasoning_close
    segments.append(_first("text", markup, tag))
    segments.append(Run("text", tag, 1, default if answer_words is None else answer_words))
    budget = min((limit for limit in (max_tokens, context_left) if limit is not None), default=None)
    kept, used, cut = _within(budget, segments)
    return Plan(Pieces(kept), "length" if cut or answer_words is None else "stop", used)


def _within(budget: int | None, segments: list[Piece | Run]) -> tuple[tuple[Piece | Run, ...], int, bool]:
    """The segments that fit into so many tokens, the tokens they take, and whether any were cut."""
    kept: list[Piece | Run] = []
    used = 0
    for part in segments:
        left = None if budget is None else budget - used
        if isinstance(part, Piece):
            if left is not None and part.token_count > left:
                return tuple(kept), used, True
            kept.append(part)
            used += part.token_count
            continue
        stop = part.stop
        if left is not None and (stop is None or stop - part.start > left):
            stop = part.start + left
        if stop is None:
            raise ValueError("an answer needs a limit")
        kept.append(Run(part.channel, part.letters, part.start, stop))
        used += stop - part.start
        if stop != part.stop:
            return tuple(kept), used, True
    return tuple(kept), used, False
