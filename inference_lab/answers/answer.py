"""The answer: words that say which prompt they answer and where they stand, cut into frames' worth.

Word i is the tag, i in decimal with at least four digits, `é` where i mod 8 = 7, and for i > 0 one blank in
front. Reasoning is in capitals, a call's argument in lower case. Markup rides in front of the word behind it.

An answer is one function of tag and shape, and a leg is the rest of it, to the character, from where its
prompt ends: first what completes a torn word or tag, then plain words.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from inference_lab.answers.pieces import Channel, Piece, Pieces, Run, fit
from inference_lab.formats import Format
from inference_lab.json_text import quoted
from inference_lab.progress.position import Position
from inference_lab.prompts.calls import CallTarget
from inference_lab.tokens import encode, spell

DEFAULT_WORDS: Final = 256
"""Content words of an answer that nothing else limits."""

CALL_WORDS: Final = 16
"""Words in the argument of a call that comes to its end."""


def word(tag: str, index: int, *, reasoning: bool = False) -> str:
    """Word `index` of the answer tagged `tag`: `qu0000`, ` qu0007é`; in capitals for reasoning."""
    return spell(tag.upper() if reasoning else tag, index)


Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


class Plan(msgspec.Struct, frozen=True):
    """A healthy answer: its pieces, its finish reason and the ids of all its raw text."""

    pieces: Pieces
    finish: Finish
    completion_tokens: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer ends: see `healthy`."""

    reasoning_words: int = 0
    answer_words: int | None = None
    max_tokens: int | None = None
    context_left: int | None = None


def fault_pieces(
    style: Format,
    position: Position,
    channel: Channel,
    *,
    chat: bool,
    call: CallTarget | None = None,
    shift: int = 0,
) -> Pieces:
    """The endless answer of a fault, from the position on, all in one channel but for what has to be closed.

    `shift` is how many words further on than it should the channel begins; below 0 it repeats some, from word 0
    on at most. A call's first piece announces it: its delta is empty, its raw text reaches to the quote in front
    of word 0. On completions a half-written opening is completed in front of word 0 instead.

    Raises:
        ValueError: the answer so far has left this channel behind, or has no word of it to repeat.
    """
    writer = _Writer(style, position)
    place = writer.place
    if channel == "call":
        writer.enter_call(call or CallTarget(), chat=chat)
    elif channel == "text":
        if place.channel in {"call", "end"}:
            raise ValueError("the answer is already in its tool call")
        writer.close_reasoning(place.index)
    else:
        writer.enter_reasoning()
    writer.shift(shift)
    writer.words(channel, None)
    return Pieces(tuple(writer.segments))


def call_pieces(
    style: Format, position: Position, frames: int, *, chat: bool, call: CallTarget, parallel: bool
) -> Pieces:
    """A call of so many pieces, announced and closed; `parallel`: of the first half, a second one without end behind.

    Raises:
        ValueError: the answer so far has left its call behind, or so few pieces cannot hold what it lacks.
    """
    writer = _Writer(style, position)
    writer.enter_call(call, chat=chat)
    words = ((frames + 1) // 2 if parallel else frames) - writer.piece_count
    if words < 1:
        raise ValueError(f"{frames} frames do not hold what the answer lacks up to its call")
    writer.words("call", writer.index + words)
    closing = style.value_close + style.call_close
    writer.close_with_last(closing if parallel else closing + style.calls_close)
    if parallel:
        writer.call_number = 1
        writer.announce(call, behind=style.call_between)
        writer.words("call", None)
    return Pieces(tuple(writer.segments))


def healthy(
    style: Format,
    position: Position,
    *,
    chat: bool,
    reasoning_words: int = 0,
    answer_words: int | None = None,
    max_tokens: int | None = None,
    context_left: int | None = None,
) -> Plan:
    """The rest of the whole answer: reasoning on top of the content words, a call only where one is begun.

    It ends at the first of `max_tokens` (ids of this leg, markup included), `answer_words` (`[answer]
    tokens`, content only, counted from word 0 on every leg) and `context_left` (ids); with the first two
    absent at 256 content words. Markup is never split. Finish is `stop` where `answer_words` is reached, else
    `length` (docs/wire.md, Lengths). No limit costs time or memory.
    """
    if position.trapped:
        return Plan(Pieces(()), "stop", 1)
    writer = _Writer(style, position)
    if not reasoning_words:
        writer.place = position.call_place(style) or writer.place
        writer.load()
    finish: Finish = "length" if answer_words is None else "stop"
    if writer.place.channel in {"call", "end"}:
        finish = "tool_calls" if chat else "stop"
        writer.announce_unnamed(chat=chat)
        writer.finish_call()
    else:
        if writer.place.channel == "start" and reasoning_words:
            writer.open_reasoning()
        writer.close_reasoning(reasoning_words)
        writer.content(answer_words, max_tokens)
    return writer.plan(finish, max_tokens, context_left)


def thinking_on(style: Format, position: Position, words: int, limits: Limits, *, shift: int = 0) -> Plan:
    """The rest of the whole answer of a fault that says so many `words` of reasoning and then goes on.

    They are those of `fault_pieces`. Behind them is what a leg would be given that begins there: reasoning up to
    their limit, closed at once where that is passed, then the content.

    Raises:
        ValueError: see `fault_pieces`.
    """
    writer = _Writer(style, position)
    writer.enter_reasoning()
    writer.shift(shift)
    writer.close_reasoning(max(limits.reasoning_words, writer.index + words))
    writer.content(limits.answer_words, limits.max_tokens)
    finish: Finish = "length" if limits.answer_words is None else "stop"
    return writer.plan(finish, limits.max_tokens, limits.context_left)


class _Writer:
    """Writes segments from a place on; `markup` and `arguments` wait to ride in front of a word."""

    def __init__(self, style: Format, position: Position) -> None:
        self.style, self.tag, self.place = style, position.tag, position.place
        self._position = position
        self.segments: list[Piece | Run] = []
        self.call_number = 0
        self.load()

    @property
    def piece_count(self) -> int:
        """How many pieces there are so far."""
        sizes = (1 if isinstance(part, Piece) else (part.stop or 0) - part.start for part in self.segments)
        return sum(sizes)

    def load(self) -> None:
        """Begin with what the place lacks."""
        place = self.place
        self.markup, self.arguments = place.markup, place.arguments
        self.completion, self.index, self.channel = place.completion, place.index, place.channel

    def words(self, channel: Channel, stop: int | None) -> None:
        """Words of a channel up to `stop`: the torn one, one with the waiting markup, plain ones."""
        letters = self.tag.upper() if channel == "reasoning" else self.tag
        if stop is not None and self.index >= stop:
            return
        if self.completion or self.markup or self.arguments:
            text = self.completion or spell(letters, self.index)
            tokens = len(encode(self.markup + text)) if self.completion else len(encode(self.markup)) + 1
            delta = self.arguments + text
            self.segments.append(Piece(channel, delta, self.markup + text, tokens, 1, call=self.call_number))
            self.completion = self.markup = self.arguments = ""
            self.index += 1
        self.segments.append(Run(channel, letters, self.index, stop, self.call_number))
        self.index = self.index if stop is None else stop

    def shift(self, words: int) -> None:
        """Go on at another word than the one that is due; a torn one is left so.

        Raises:
            ValueError: there is no word to go back to.
        """
        if words < 0 and not (self.index or self.completion):
            raise ValueError("overlap needs a word that it can repeat: there is none in this channel")
        if words:
            self.completion = ""
            self.index = max(0, self.index + words)

    def content(self, answer_words: int | None, max_tokens: int | None) -> None:
        """Words of text up to the answer's end; one that is begun is brought to its own, even past that."""
        default = DEFAULT_WORDS if max_tokens is None else None
        stop = default if answer_words is None else answer_words
        self.words("text", None if stop is None else max(stop, self.index + bool(self.completion)))

    def plan(self, finish: Finish, max_tokens: int | None, context_left: int | None) -> Plan:
        """What is written, as far as the limits go."""
        limits = [limit for limit in (max_tokens, context_left) if limit is not None]
        cut = fit(tuple(self.segments), min(limits, default=None))
        return Plan(Pieces(cut.segments), "length" if cut.is_short else finish, cut.tokens)

    def enter_reasoning(self) -> None:
        """Go on in the block that is open, or open it.

        Raises:
            ValueError: the answer has left it behind.
        """
        if self.channel != "reasoning" and self._position.region:
            raise ValueError("the answer has already left its reasoning")
        self.open_reasoning()

    def open_reasoning(self) -> None:
        """Open the block, unless the place is inside one."""
        if self.channel != "reasoning":
            self.markup += self.style.reasoning_open
            self._enter("reasoning")

    def close_reasoning(self, stop: int) -> None:
        """Bring an open block to `stop` words, a torn one past it included, and close it."""
        if self.channel == "reasoning":
            self.words("reasoning", max(stop, self.index + bool(self.completion)))
            self.markup += self.style.reasoning_close
            self._enter("text")

    def close_text(self) -> None:
        """Complete a torn content word."""
        if self.completion:
            self.words("text", self.index + 1)

    def enter_call(self, call: CallTarget, *, chat: bool) -> None:
        """Go on in the call that is open, or close what is and announce one.

        Raises:
            ValueError: the call is complete.
        """
        self.place = self._position.call_place(self.style) or self.place
        if self.place.channel == "end":
            raise ValueError("the tool call is already complete")
        self.load()
        if self.place.channel == "call":
            self.announce_unnamed(chat=chat)
        else:
            self.close_reasoning(self.place.index)
            self.close_text()
            self.announce(call)

    def announce(self, call: CallTarget, behind: str | None = None) -> None:
        """Open a call in a piece of its own, behind another one with what stands between the two."""
        self.markup += self.style.calls_open if behind is None else behind
        self.markup += self.style.open_argument(call.name, call.key)
        self._announcement(call.name)
        self.arguments = f'{{"{quoted(call.key)}": "'
        self._enter("call")

    def announce_unnamed(self, *, chat: bool) -> None:
        """Complete an opening in a piece of its own where chat clients have yet to hear the call's name."""
        if chat and self.channel == "call" and self.place.name is not None:
            self._announcement(self.place.name)

    def finish_call(self) -> None:
        """Bring the argument to its length and close everything; the closing rides with the last word."""
        style = self.style
        if self.channel == "call":
            stop = max(CALL_WORDS, self.index + bool(self.completion))
            closing = style.value_close + style.call_close + style.calls_close
            if self.index < stop:
                self.words("call", stop)
                self.close_with_last(closing)
                return
            self.markup, self.arguments = self.markup + closing, self.arguments + '"}'
        if self.markup or self.arguments:
            self.segments.append(Piece("call", self.arguments, self.markup, len(encode(self.markup)), 0))

    def close_with_last(self, closing: str) -> None:
        """Let the closing ride with the last word."""
        last = self.segments.pop()
        while isinstance(last, Run):
            if last.stop is not None and last.start < last.stop:
                self.segments.append(Run(last.channel, last.letters, last.start, last.stop - 1))
                text = spell(last.letters, last.stop - 1)
                last = Piece("call", text, text, 1, 1)
            else:
                last = self.segments.pop()
        raw = last.raw + closing
        self.segments.append(Piece("call", f'{last.delta}"}}', raw, len(encode(raw)), 1))

    def _announcement(self, name: str) -> None:
        self.segments.append(
            Piece("call", "", self.markup, len(encode(self.markup)), 0, name, self.call_number)
        )
        self.markup = ""

    def _enter(self, channel: Literal["reasoning", "text", "call"]) -> None:
        self.channel, self.index = channel, 0
