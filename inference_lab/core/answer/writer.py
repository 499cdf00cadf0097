"""An answer as it is written: from a place on, segment by segment, the markup before the words after it."""

from collections.abc import Sequence
from itertools import count as count_from
from typing import Final, Literal, TypeAlias

import msgspec

from inference_lab.core.answer.pieces import Channel, Piece, Pieces, Run, fit
from inference_lab.core.answer.resume_point import ResumePoint
from inference_lab.core.answer.templates import ChatTemplate
from inference_lab.core.json_text import quoted
from inference_lab.core.prompts.messages import CallTarget
from inference_lab.core.tokens import decode, encode, spell

DEFAULT_WORDS: Final = 256
"""Content words of an answer that nothing else limits."""

CALL_WORDS: Final = 16
"""Words in the argument of a call that comes to its end."""

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


class Calls(msgspec.Struct, frozen=True):
    """The calls of an answer: how many there are where it calls at all, and the tools that it may call if it must.

    It calls the first of them; an answer that need not call goes on with a call that is begun, and begins none.
    """

    count: int = 1
    required: tuple[CallTarget, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """A healthy answer: its pieces, its finish reason and the ids of all its raw text.

    `unseen` is the raw text that no piece tells and `unseen_tokens` what it counts: a chat's answer that ends in the
    markup it begins with, or a model that stops at once.
    """

    pieces: Pieces
    finish: Finish
    completion_tokens: int
    unseen: str = ""
    unseen_tokens: int = 0


class Writer:
    """Writes segments from a place on; `markup` and `arguments` wait to ride before a word."""

    def __init__(self, template: ChatTemplate, position: ResumePoint) -> None:
        self.template, self.tag, self.place = template, position.tag, position.place
        self._position = position
        self.segments: list[Piece | Run] = []
        self.call_number = 0
        self.load()

    def enter_answer(self, required: Sequence[CallTarget], reasoning_words: int) -> None:
        """Take the place as that of an answer that calls one of the `required` tools, if there are any, or none."""
        if required:
            self.place = self._position.place_for(self.template, required)
        # With reasoning still to come, a torn opening may be that of its block.
        if not reasoning_words or (required and self.place.channel not in {"start", "reasoning"}):
            self.place = self._position.call_place(self.template, required) or self.place
        self.call_number = self.place.number
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

    def think(self, words: int) -> None:
        """Reasoning of so many words, where it may still be opened, and its end."""
        if self.channel == "start" and words:
            self.open_reasoning()
        self.close_reasoning(words)

    def open_reasoning(self) -> None:
        """Open the block, unless the place is inside one."""
        if self.channel != "reasoning":
            self.markup += self.template.reasoning_open
            self._enter("reasoning")

    def close_reasoning(self, stop: int) -> None:
        """Bring an open block to `stop` words, a torn one past it included, and close it."""
        if self.channel == "reasoning":
            self.words("reasoning", max(stop, self.index + bool(self.completion)))
            self.markup += self.template.reasoning_close
            self._enter("text")

    def close_text(self) -> None:
        """Complete a torn content word."""
        if self.completion:
            self.words("text", self.index + 1)

    def enter_call(self, call: CallTarget) -> None:
        """Go on in the call that is open, or close what is and announce one.

        Raises:
            ValueError: the call is complete.
        """
        self.place = self._position.call_place(self.template) or self.place
        if self.place.channel == "end":
            raise ValueError("the tool call is already complete")
        self.load()
        if self.place.channel == "call":
            self.announce_unnamed()
        else:
            self.close_reasoning(self.place.index)
            self.close_text()
            self.announce(call, self.template.calls_open)

    def announce(self, call: CallTarget, before: str, typed: int = 0) -> None:
        """Open a call in a piece of its own, with what stands before it, less the characters that are there already.

        What the arguments of the call before it still lack is told by a piece that ends where an id of both does.
        """
        opening = (before + self.template.open_argument(call.name, call.key))[typed:]
        if self.arguments:
            ids = encode(self.markup + opening)
            count = next(count for count in count_from(1) if len(decode(ids[:count])) >= len(self.markup))
            raw, opening = decode(ids[:count]), decode(ids[count:])
            self.segments.append(Piece("call", self.arguments, raw, count, 0, call=self.call_number - 1))
            self.markup = ""
        self.markup += opening
        self._announcement(call.name)
        self.arguments = f'{{"{quoted(call.key)}": "'
        self._enter("call")

    def announce_unnamed(self) -> None:
        """Complete an opening in a piece of its own where chat clients have yet to hear the call's name."""
        name = self.place.name if self.channel == "call" else None
        if name is not None and not self._position.is_raw:
            self._announcement(name)

    def make_calls(self, calls: Calls, reasoning_words: int) -> None:
        """All that is left of the calls, from wherever the answer stands.

        What stands between two calls rides before the second one's announcement, so that pieces end where ids do.
        """
        template, place = self.template, self.place
        called = place.called or next(iter(calls.required), CallTarget())
        before, typed = template.call_between, 0
        is_last = self.call_number + 1 >= calls.count
        if self.channel == "end":
            left = self._leave_call(is_last=is_last)
            if left is None:
                return
            before, typed = left
        else:
            if self.channel == "call":
                self.announce_unnamed()
            else:
                self.think(reasoning_words)
                self.close_text()
                self.announce(called, template.calls_open)
            self._finish_call(is_last=is_last)
        while self.call_number + 1 < calls.count:
            self.call_number += 1
            self.announce(called, before, typed)
            self._finish_call(is_last=self.call_number + 1 >= calls.count)
            before, typed = template.call_between, 0

    def _leave_call(self, *, is_last: bool) -> tuple[str, int] | None:
        """Write what the call lacks after its argument; what stands before the next one, and how much of it is there.

        None where no other call may follow. A chat's prefill does not show whether the calls have been closed after a
        whole one, so there one may.
        """
        template, after = self.template, self.place.after
        closed = bool(after) and after == template.calls_close
        goes_on = after is not None and (template.call_between + template.call_open).startswith(after)
        if (goes_on or (closed and not self._position.is_raw)) and not is_last:
            return (template.calls_open, 0) if closed else (template.call_between, len(after or ""))
        if after is not None:
            self.markup += template.calls_close[len(after) :]
        if self.markup or self.arguments:
            self._close()
        return None

    def _finish_call(self, *, is_last: bool) -> None:
        """Bring the argument to its length and close it; the closing of the last call rides with its last word."""
        template = self.template
        stop = max(CALL_WORDS, self.index + bool(self.completion))
        closing = template.value_close + template.call_close + (template.calls_close if is_last else "")
        if self.index < stop:
            self.words("call", stop)
            self.close_with_last(closing if is_last else "")
            self.markup = "" if is_last else closing
            return
        self.markup, self.arguments = self.markup + closing, self.arguments + '"}'
        if is_last:
            self._close()

    def _close(self) -> None:
        """A piece of what closes a call, without a word."""
        tokens = len(encode(self.markup))
        self.segments.append(Piece("call", self.arguments, self.markup, tokens, 0, call=self.call_number))

    def close_with_last(self, closing: str) -> None:
        """Let the closing ride with the last word."""
        last = self.segments.pop()
        while isinstance(last, Run):
            if last.stop is not None and last.start < last.stop:
                self.segments.append(Run(last.channel, last.letters, last.start, last.stop - 1, last.call))
                text = spell(last.letters, last.stop - 1)
                last = Piece("call", text, text, 1, 1, call=last.call)
            else:
                last = self.segments.pop()
        raw = last.raw + closing
        self.segments.append(Piece("call", f'{last.delta}"}}', raw, len(encode(raw)), 1, call=last.call))

    def _announcement(self, name: str) -> None:
        self.segments.append(
            Piece("call", "", self.markup, len(encode(self.markup)), 0, name, self.call_number)
        )
        self.markup = ""

    def _enter(self, channel: Literal["reasoning", "text", "call"]) -> None:
        self.channel, self.index = channel, 0
