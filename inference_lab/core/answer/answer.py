"""The answer: words that say which prompt they answer and where they stand, cut into frames' worth.

Word i is the tag, i in decimal with at least four digits, `é` where i mod 8 = 7, and for i > 0 one blank in
front. Reasoning is in capitals, a call's argument in lower case. Markup rides before the word after it.

An answer is one function of tag and shape, and a leg is the rest of it, to the character, from where its
prompt ends: first what completes a torn word or tag, then plain words.
"""

import msgspec

from inference_lab.core.answer.pieces import Channel, Pieces
from inference_lab.core.answer.resume_point import ResumePoint
from inference_lab.core.answer.templates import ChatTemplate
from inference_lab.core.answer.writer import Calls, Finish, Plan, Writer
from inference_lab.core.prompts.messages import CallTarget
from inference_lab.core.tokens import spell


def word(tag: str, index: int, *, reasoning: bool = False) -> str:
    """Word `index` of the answer tagged `tag`: `qu0000`, ` qu0007é`; in capitals for reasoning."""
    return spell(tag.upper() if reasoning else tag, index)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer ends: see `healthy`."""

    reasoning_words: int = 0
    answer_words: int | None = None
    max_tokens: int | None = None
    context_left: int | None = None


def fault_pieces(
    template: ChatTemplate,
    position: ResumePoint,
    channel: Channel,
    *,
    call: CallTarget | None = None,
    shift: int = 0,
) -> Pieces:
    """The endless answer of a fault, from the position on, all in one channel but for what has to be closed.

    `shift` is how many words further on than it should the channel begins; below 0 it repeats some, from word 0
    on at most. A call's first piece announces it: its delta is empty, its raw text reaches to the quote before it
    of word 0. On completions a half-written opening is completed before word 0 instead.

    Raises:
        ValueError: the answer so far has left this channel behind, or has no word of it to repeat.
    """
    writer = Writer(template, position)
    place = writer.place
    if channel == "call":
        writer.enter_call(call or CallTarget())
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
    template: ChatTemplate, position: ResumePoint, frames: int, *, call: CallTarget, parallel: bool
) -> Pieces:
    """A call of so many pieces, announced and closed; `parallel`: of the first half, a second one without end after.

    Raises:
        ValueError: the answer so far has left its call behind, or so few pieces cannot hold what it lacks.
    """
    writer = Writer(template, position)
    writer.enter_call(call)
    words = ((frames + 1) // 2 if parallel else frames) - writer.piece_count
    if words < 1:
        raise ValueError(f"{frames} frames do not hold what the answer lacks up to its call")
    writer.words("call", writer.index + words)
    closing = template.value_close + template.call_close
    writer.close_with_last(closing if parallel else closing + template.calls_close)
    if parallel:
        writer.call_number = 1
        writer.announce(call, template.call_between)
        writer.words("call", None)
    return Pieces(tuple(writer.segments))


def healthy(
    template: ChatTemplate,
    position: ResumePoint,
    *,
    reasoning_words: int = 0,
    answer_words: int | None = None,
    max_tokens: int | None = None,
    context_left: int | None = None,
    calls: Calls = Calls(),  # noqa: B008 - frozen
) -> Plan:
    """The rest of the whole answer: reasoning on top of the content words, or of the calls that it must make.

    It ends at the first of `max_tokens` (ids of this leg, markup included), `answer_words` (`[answer]
    tokens`, content only, counted from word 0 on every leg) and `context_left` (ids); with the first two
    absent at 256 content words. Markup is split only where the leg would say nothing else. Finish is `stop` where
    `answer_words` is reached, `tool_calls` where its calls are whole, and no raw
    text, else `length` (docs/wire.md, Lengths). No limit costs time or memory.
    """
    if position.trapped:
        return Plan(Pieces(()), "stop", 1, unseen_tokens=1)
    writer = Writer(template, position)
    writer.enter_answer(calls.required, reasoning_words)
    finish: Finish = "length" if answer_words is None else "stop"
    if calls.required or writer.place.channel in {"call", "end"}:
        finish = "stop" if position.is_raw else "tool_calls"
        writer.make_calls(calls, reasoning_words)
    else:
        writer.think(reasoning_words)
        writer.content(answer_words, max_tokens)
    plan = writer.plan(finish, max_tokens, context_left)
    budget = min((limit for limit in (max_tokens, context_left) if limit is not None), default=None)
    first = next(iter(Pieces(tuple(writer.segments))), None)
    if plan.completion_tokens or budget is None or first is None:
        return plan
    piece = first.beginning(budget)
    if not (piece.delta or position.is_raw):
        return Plan(Pieces(()), "length", budget, piece.raw, budget)
    return Plan(Pieces((piece,)), "length", budget)


def thinking_on(
    template: ChatTemplate, position: ResumePoint, words: int, limits: Limits, *, shift: int = 0
) -> Plan:
    """The rest of the whole answer of a fault that says so many `words` of reasoning and then goes on.

    They are those of `fault_pieces`. After them is what a leg would be given that begins there: reasoning up to
    their limit, closed at once where that is passed, then the content.

    Raises:
        ValueError: see `fault_pieces`.
    """
    writer = Writer(template, position)
    writer.enter_reasoning()
    writer.shift(shift)
    writer.close_reasoning(max(limits.reasoning_words, writer.index + words))
    writer.content(limits.answer_words, limits.max_tokens)
    finish: Finish = "length" if limits.answer_words is None else "stop"
    return writer.plan(finish, limits.max_tokens, limits.context_left)
