"""Frames with a list of choices, as chat and completions have them, compiled from a dialect's row.

A row's templates are taken apart once. A writer joins what is the same in each frame of its response when it is made,
so that a content frame costs one concatenation, whatever the dialect.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.apis.contract import quote
from inference_lab.core.apis.dialects import LAB
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inference_lab.core.answer.pieces import Channel, Piece
    from inference_lab.core.apis.contract import Completion, Counts
    from inference_lab.core.apis.dialects import Dialect, Frames

_PLACE: Final = re.compile(r"(\$[A-Z]+)")
_ROLE: Final = b',"role":"assistant"'


@cache
def _split(template: str) -> tuple[bytes, ...]:
    """A template's texts and, between them, its places."""
    return tuple(part.encode() for part in _PLACE.split(template))


def _filled(parts: tuple[bytes, ...], values: Mapping[bytes, bytes]) -> bytes:
    """A template with its places filled, once through: a value may hold a dollar sign."""
    return b"".join([values.get(part, b"") if part[:1] == b"$" else part for part in parts])


class ChoicesWriter:
    """See `contract.StreamWriter`; an endpoint says what stands in a choice for a piece.

    `usage_asked`: whether the request asked for usage. With `prompt_ids` the frames tell token ids, as vLLM's do for
    `return_token_ids`: the first frame's choice `prompt_token_ids`, each content frame's `token_ids`, those of its raw
    text.
    """

    kind: str
    terminal = b"data: [DONE]\n\n"

    def __init__(
        self,
        completion: Completion,
        dialect: Dialect = LAB,
        *,
        usage_asked: bool = False,
        prompt_ids: list[int] | None = None,
    ) -> None:
        self.dialect = dialect
        self.completion = completion
        self._frames = frames = self._row(dialect)
        self._prompt_ids = prompt_ids
        with_null = dialect.usage_null == "always" or (dialect.usage_null == "asked" and usage_asked)
        self._close = b',"usage":null}\n\n' if with_null else b"}\n\n"
        self._head, self._tail = self._around(frames.envelope)
        self._before, after = self._content(b"")
        self._after = after + b"]" + self._tail + self._close
        self._before = self._head + b"[" + self._before
        self.is_first_alike = "$ROLE" not in frames.content
        self.opening = self._opening()

    @staticmethod
    def _row(dialect: Dialect) -> Frames:
        """The endpoint's part of a dialect's row."""
        raise NotImplementedError

    def _said(self, piece: Piece) -> bytes:
        """What stands in a choice for a piece."""
        raise NotImplementedError

    def _said_before(self, channel: Channel) -> bytes | None:
        """What of that stands before the quoted text; None where there is more around it."""
        raise NotImplementedError

    def _nothing(self) -> bytes:
        """What stands in a choice for text that is empty."""
        raise NotImplementedError

    def content(self, piece: Piece, *, first: bool = False) -> bytes:
        """See `StreamWriter.content`."""
        if self._prompt_ids is None and (self.is_first_alike or not first):
            return self._before + self._said(piece) + self._after
        before, after = self._content(_ROLE if first else b"")
        return self._frame(self._telling(before + self._said(piece) + after, piece, first=first))

    def template(self, channel: Channel) -> tuple[bytes, bytes] | None:
        """See `StreamWriter.template`."""
        before = self._said_before(channel)
        if before is None or self._prompt_ids is not None:
            return None
        return self._before + before, self._after

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:
        """See `StreamWriter.finish_with`."""
        choice = self._closing(self._said(piece), reason, _ROLE if first else b"")
        return self._frame(self._telling(choice, piece, first=first))

    def empty(self) -> bytes:
        """See `StreamWriter.empty`."""
        return self._before + self._nothing() + self._after

    def bare(self, choices: bytes) -> bytes:
        """See `StreamWriter.bare`."""
        return self._head + choices + self._tail + self._close

    def finish(self, reason: str) -> bytes:
        """See `StreamWriter.finish`."""
        return self._frame(self._closing(self._frames.silence.encode(), reason))

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:
        """See `StreamWriter.usage`."""
        choice, silence = b"", self._frames.silence.encode()
        if self.dialect.usage_closes:
            choice = silence.join(self._content(b"")) if reason is None else self._closing(silence, reason)
        json = counts.json(total_first=self.dialect.total_first)
        return b'%b[%b]%b,"usage":%b}\n\n' % (self._head, choice, self._tail, json)

    def _frame(self, choice: bytes) -> bytes:
        return b"%b[%b]%b%b" % (self._head, choice, self._tail, self._close)

    def _around(self, envelope: str) -> tuple[bytes, bytes]:
        """What stands before the choices and after them, without the last brace."""
        head, _, tail = envelope.partition("$CHOICES")
        values = {
            b"$ID": quote(self.completion.id),
            b"$CREATED": b"%d" % self.completion.created,
            b"$MODEL": quote(self.completion.model),
        }
        return b"data: " + _filled(_split(head), values), _filled(_split(tail.removesuffix("}")), values)

    def _content(self, role: bytes) -> tuple[bytes, bytes]:
        """What stands in a content frame's choice before what it says, and after it."""
        before, _, after = self._frames.content.partition("$SAID")
        return _filled(_split(before), {}), _filled(_split(after), {b"$ROLE": role})

    def _closing(self, said: bytes, reason: str, role: bytes = b"") -> bytes:
        values = {b"$SAID": said, b"$ROLE": role, b"$REASON": quote(reason)}
        return _filled(_split(self._frames.closing), values)

    def _opening(self) -> bytes | None:
        if self._frames.role is None:
            return None
        choice = self._frames.role.encode()
        head, tail = self._head, self._tail
        if self._frames.role_envelope:
            head, tail = self._around(self._frames.role_envelope)
        if self._prompt_ids is not None:
            told = b',"prompt_token_ids":%b' % msgspec.json.encode(self._prompt_ids)
            if tail.endswith(b',"prompt_token_ids":null'):
                tail = tail.removesuffix(b',"prompt_token_ids":null') + told
            else:
                choice = choice.removesuffix(b"}") + told + b"}"
        return b"%b[%b]%b%b" % (head, choice, tail, self._close)

    def _telling(self, choice: bytes, piece: Piece, *, first: bool) -> bytes:
        """The choice with token ids where they are told, in place of its nulls where it has them."""
        if self._prompt_ids is None:
            return choice
        choice = choice.removesuffix(b"}").removesuffix(b',"token_ids":null')
        told = b',"token_ids":%b}' % msgspec.json.encode(encode(piece.raw))
        if first and self.opening is None:
            choice = choice.removesuffix(b',"prompt_token_ids":null')
            told = b',"prompt_token_ids":%b%b' % (msgspec.json.encode(self._prompt_ids), told)
        return choice + told
