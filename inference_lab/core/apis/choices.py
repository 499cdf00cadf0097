"""Frames with a list of choices, as chat and completions have them, compiled from a dialect's row.

A row's templates are taken apart once. A writer joins what is the same in each frame of its response when it is made,
so that a content frame costs one concatenation, whatever the dialect.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.apis.contract import PLAIN, Counts, Form, StreamWriter, quote
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.stream.events import (
    NOTHING,
    SAID_DONE,
    TURN,
    UNREADABLE,
    Delivered,
    Frame,
    Part,
    Turn,
    finished,
    said_of,
)
from inference_lab.core.stream.read_back import said_by_error
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Prompt
    from inference_lab.core.apis.dialects import Dialect, Frames
    from inference_lab.core.apis.errors import ErrorFields
    from inference_lab.core.apis.request import Common

_PLACE: Final = re.compile(r"(\$[A-Z]+)")
_ROLE: Final = b',"role":"assistant"'
_TERMINAL: Final = (Frame(b"data: [DONE]\n\n", said=SAID_DONE, part=Part.TERMINAL),)
_ID: Final = b"\0"
"""Stands for the id while an envelope is taken apart: JSON has no such byte."""
_ZERO: Final = Counts(0, 0)


@cache
def _split(template: str) -> tuple[bytes, ...]:
    """A template's texts and, between them, its places."""
    return tuple(part.encode() for part in _PLACE.split(template))


def _filled(parts: tuple[bytes, ...], values: Mapping[bytes, bytes]) -> bytes:
    """A template with its places filled, once through: a value may hold a dollar sign."""
    return b"".join([values.get(part, b"") if part[:1] == b"$" else part for part in parts])


@lru_cache(maxsize=256)
def _around_choices(envelope: str, created: int, model: str) -> tuple[list[bytes], list[bytes]]:
    """An envelope before its choices and after them, without its closing brace, in pieces that the id goes between."""
    head, _, tail = envelope.partition("$CHOICES")
    values = {b"$ID": _ID, b"$CREATED": b"%d" % created, b"$MODEL": quote(model)}
    before, after = (_filled(_split(part), values) for part in (f"data: {head}", tail.removesuffix("}")))
    return before.split(_ID), after.split(_ID)


@cache
def _around_said(choice: str, role: bytes) -> tuple[bytes, bytes]:
    """A content frame's choice, before what it says and after it."""
    before, _, after = choice.partition("$SAID")
    return _filled(_split(before), {}), _filled(_split(after), {b"$ROLE": role})


class ChoicesWriter(StreamWriter):
    """See `contract.StreamWriter`; an endpoint says what stands in a choice for a piece.

    With ids asked for, the first frame's choice tells `prompt_token_ids`, each content frame's `token_ids`, those of
    its raw text.
    """

    row: str
    """The endpoint's part of a dialect's row."""

    def __init__(self, completion: Completion, dialect: Dialect = LAB, form: Form = PLAIN) -> None:
        super().__init__(completion, dialect, form)
        self._frames: Frames = getattr(dialect, self.row)
        frames = self._frames
        with_null = dialect.usage_null == "always" or (dialect.usage_null == "asked" and form.usage_asked)
        self._close = b',"usage":null}\n\n' if with_null or form.usage_in_each == "null" else b"}\n\n"
        self._head, self._tail = self._around(frames.envelope)
        content = self._with_finish(frames.content) if form.empty_finish else frames.content
        before, after = _around_said(content, b"")
        self._before = self._head + b"[" + before
        self._after = after + b"]" + self._tail + self._close
        self.has_opening = frames.role is not None
        self.is_first_alike = "$ROLE" not in frames.content
        self._is_plain = form.prompt_ids is None and form.usage_in_each not in {"zero", "so_far"}

    def _said(self, piece: Piece) -> bytes:
        """What stands in a choice for a piece."""
        raise NotImplementedError

    def _said_before(self, channel: Channel) -> bytes | None:
        """What of that stands before the quoted text; None where there is more around it."""
        raise NotImplementedError

    def _nothing(self) -> bytes:
        """What stands in a choice for text that is empty."""
        raise NotImplementedError

    # -- the frames

    def opening(self) -> Iterator[Frame]:
        """See `StreamWriter.opening`."""
        if self._frames.role is None:
            return
        choice = self._with_finish(self._frames.role).encode()
        head, tail = self._head, self._tail
        if self._frames.role_envelope:
            head, tail = self._around(self._frames.role_envelope)
        if self.form.prompt_ids is not None:
            told = b',"prompt_token_ids":%b' % msgspec.json.encode(self.form.prompt_ids)
            if tail.endswith(b',"prompt_token_ids":null'):
                tail = tail.removesuffix(b',"prompt_token_ids":null') + told
            else:
                choice = choice.removesuffix(b"}") + told + b"}"
        yield self._closed(b"%b[%b]%b" % (head, choice, tail), NOTHING, Part.OPENING)

    def content(self, piece: Piece) -> tuple[Frame, ...]:
        """See `StreamWriter.content`."""
        is_first, self.has_begun = not self.has_begun, True
        self.tokens += piece.token_count
        if self._is_plain and (self.is_first_alike or not is_first):
            data = self._before + self._said(piece) + self._after
            return (Frame(data, said=said_of(piece), part=Part.CONTENT),)
        before, after = self._content(_ROLE if is_first else b"")
        choice = self._telling(before + self._said(piece) + after, piece, is_first=is_first)
        return (self._frame(choice, said_of(piece), Part.CONTENT),)

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """See `StreamWriter.template`."""
        before = self._said_before(channel)
        return None if before is None or not self._is_plain else (self._before + before, self._after)

    def empty(self) -> Frame:
        """See `StreamWriter.empty`."""
        return self._frame(self._nothing().join(self._content(b"")), NOTHING, Part.PING)

    def bare(self, choices: bytes) -> Frame:
        """See `StreamWriter.bare`."""
        return self._closed(self._head + choices + self._tail, NOTHING, Part.OTHER)

    def finish(self, reason: str, counts: Counts | None = None) -> tuple[Frame, ...]:
        """See `StreamWriter.finish`."""
        choice = self._closing(self._frames.silence.encode(), reason)
        return (self._frame(choice, finished(reason), Part.FINISH, counts),)

    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        """See `StreamWriter.finish_with`."""
        is_first, self.has_begun = not self.has_begun, True
        self.tokens += piece.token_count
        choice = self._closing(self._said(piece), reason, _ROLE if is_first else b"")
        choice = self._telling(choice, piece, is_first=is_first)
        said = said_of(piece) + finished(reason)
        return self._frame(choice, said, Part.FINISH, None if counts is None else counts())

    def usage(self, counts: Counts, reason: str | None = None) -> tuple[Frame, ...]:
        """See `StreamWriter.usage`."""
        choice, silence = b"", self._frames.silence.encode()
        if self.dialect.usage_closes:
            open_choice = _filled(_split(self._frames.content), {b"$SAID": silence})
            choice = open_choice if reason is None else self._closing(silence, reason)
        json = counts.json(total_first=self.dialect.total_first)
        data = b'%b[%b]%b,"usage":%b}\n\n' % (self._head, choice, self._tail, json)
        return (Frame(data, said=Delivered(usage=counts.json()), part=Part.USAGE),)

    def terminal(self) -> tuple[Frame, ...]:
        """See `StreamWriter.terminal`."""
        return _TERMINAL

    def error(self, variant: str, fields: ErrorFields, *, is_first: bool) -> Iterator[Frame]:
        """See `StreamWriter.error`."""
        block = self.foreign_error(variant, fields)
        yield Frame(block, said=said_by_error(block, is_first=is_first), part=Part.ERROR)

    def malformed(self) -> Frame:
        """See `StreamWriter.malformed`."""
        data = b'data: {"id":%b,"choices":[{"delta":{"content":"\n\n' % quote(self.completion.id)
        return Frame(data, said=UNREADABLE)

    # -- what they are made of

    def _frame(self, choice: bytes, said: Delivered, part: Part, counts: Counts | None = None) -> Frame:
        return self._closed(b"%b[%b]%b" % (self._head, choice, self._tail), said, part, counts)

    def _closed(self, data: bytes, said: Delivered, part: Part, counts: Counts | None = None) -> Frame:
        """A frame with its last members: counts, where it is to have any."""
        if counts is None and self.form.usage_in_each == "so_far":
            counts = self.counts()
        elif counts is None and self.form.usage_in_each == "zero":
            counts = _ZERO
        if counts is None:
            return Frame(data + self._close, said=said, part=part)
        usage = counts.json(total_first=self.dialect.total_first)
        return Frame(b'%b,"usage":%b}\n\n' % (data, usage), said=said + Delivered(usage=usage), part=part)

    def _around(self, envelope: str) -> tuple[bytes, bytes]:
        """What stands before the choices and after them, without the last brace."""
        completion = self.completion
        head, tail = _around_choices(envelope, completion.created, completion.model)
        ident = quote(completion.id)
        return ident.join(head), ident.join(tail)

    def _content(self, role: bytes) -> tuple[bytes, bytes]:
        """What stands in a content frame's choice before what it says, and after it."""
        return _around_said(self._with_finish(self._frames.content), role)

    def _with_finish(self, template: str) -> str:
        """A choice's template with the finish reason that a frame has which has none."""
        if not self.form.empty_finish:
            return template
        return template.replace(self.dialect.open_finish, self.dialect.empty_finish)

    def _closing(self, said: bytes, reason: str, role: bytes = b"") -> bytes:
        values = {b"$SAID": said, b"$ROLE": role, b"$REASON": quote(reason)}
        return _filled(_split(self._frames.closing), values)

    def _telling(self, choice: bytes, piece: Piece, *, is_first: bool) -> bytes:
        """The choice with token ids where they are told, in place of its nulls where it has them."""
        if self.form.prompt_ids is None:
            return choice
        choice = choice.removesuffix(b"}").removesuffix(b',"token_ids":null')
        told = b',"token_ids":%b}' % msgspec.json.encode(encode(piece.raw))
        if is_first and not self.has_opening:
            choice = choice.removesuffix(b',"prompt_token_ids":null')
            told = b',"prompt_token_ids":%b%b' % (msgspec.json.encode(self.form.prompt_ids), told)
        return choice + told


def told_ids(body: Common, prompt: Prompt, plan: Plan) -> Generator[Turn, None, dict[str, list[int]]]:
    """What `return_token_ids` adds to the choice of an answer that is not streamed."""
    if not body.return_token_ids:
        return {}
    ids: list[int] = []
    for piece in plan.pieces.joined():
        if piece.words == JOINED_WORDS:
            yield TURN
        ids += encode(piece.raw)
    ids += encode(plan.unseen)
    return {"prompt_token_ids": prompt.ids, "token_ids": ids}


def whole_json(completion: Completion, kind: str, choice: dict[str, Any], counts: Counts) -> bytes:
    """The JSON of an answer that is not streamed."""
    return msgspec.json.encode(
        {
            "id": completion.id,
            "object": kind,
            "created": completion.created,
            "model": completion.model,
            "choices": [choice],
            "usage": msgspec.Raw(counts.json()),
        }
    )
