"""Frames of any dialect, made from its row. The `lab` dialect has shapes of its own, which say the same faster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.core.answer.shapes import Completion, Counts, call_fragment, call_opening, quote
from inference_lab.core.identity import call_id
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from inference_lab.core.answer.dialects import Dialect
    from inference_lab.core.answer.pieces import Channel, Piece

_PLACE: Final = re.compile(rb"\$[A-Z]+")
_ROLE: Final = b',"role":"assistant"'


class DialectShape:
    """See `shapes.Shape`. `usage_asked`: whether the request asked for usage; `prompt_ids`: tell token ids."""

    def __init__(
        self,
        dialect: Dialect,
        completion: Completion,
        *,
        is_chat: bool,
        usage_asked: bool = False,
        reasoning_key: str | None = None,
        prompt_ids: list[int] | None = None,
    ) -> None:
        self.dialect = dialect
        self.completion = completion
        self.kind = "chat.completion.chunk" if is_chat else "text_completion"
        self._frames = dialect.chat if is_chat else dialect.completions
        self._is_chat = is_chat
        self._reasoning_key = quote(reasoning_key or dialect.reasoning_key)
        self._prompt_ids = prompt_ids
        with_null = dialect.usage_null == "always" or (dialect.usage_null == "asked" and usage_asked)
        self._null = b',"usage":null' if with_null else b""
        self._head, self._tail = self._around(self._frames.envelope)
        self.opening = self._opening()

    def content(self, piece: Piece, *, first: bool = False) -> bytes:
        """See `Shape.content`."""
        return self._frame(self._choice(self._frames.content, piece, first=first))

    def around(self, channel: Channel) -> tuple[bytes, bytes] | None:  # noqa: ARG002 - a row says where the text stands
        """See `Shape.around`."""
        return None

    def finish_with(self, piece: Piece, reason: str, *, first: bool = False) -> bytes:
        """See `Shape.finish_with`."""
        return self._frame(self._choice(self._frames.closing, piece, reason, first=first))

    def empty(self) -> bytes:
        """See `Shape.empty`."""
        said = b'"content":""' if self._is_chat else b'""'
        return self._frame(_filled(self._frames.content, {b"$SAID": said}))

    def bare(self, choices: bytes) -> bytes:
        """See `Shape.bare`."""
        return self._head + choices + self._tail + self._null + b"}\n\n"

    def finish(self, reason: str) -> bytes:
        """See `Shape.finish`."""
        return self._frame(self._silent(reason))

    def usage(self, counts: Counts, reason: str | None = None) -> bytes:
        """See `Shape.usage`."""
        choice = b""
        if self.dialect.usage_closes and reason is not None:
            choice = self._silent(reason)
        elif self.dialect.usage_closes:
            choice = _filled(self._frames.content, {b"$SAID": self._frames.silence.encode()})
        json = counts.json(total_first=self.dialect.total_first)
        return b'%b[%b]%b,"usage":%b}\n\n' % (self._head, choice, self._tail, json)

    # -- parts

    def _frame(self, choice: bytes) -> bytes:
        return b"%b[%b]%b%b}\n\n" % (self._head, choice, self._tail, self._null)

    def _around(self, envelope: str) -> tuple[bytes, bytes]:
        """What stands in front of the choices and behind them, without the last brace."""
        head, _, tail = envelope.partition("$CHOICES")
        values = {
            b"$ID": quote(self.completion.id),
            b"$CREATED": b"%d" % self.completion.created,
            b"$MODEL": quote(self.completion.model),
        }
        return b"data: " + _filled(head, values), _filled(tail.removesuffix("}"), values)

    def _opening(self) -> bytes | None:
        if self._frames.role is None:
            return None
        choice = self._frames.role.encode()
        head, tail = self._around(self._frames.role_envelope or self._frames.envelope)
        if self._prompt_ids is not None:
            told = b',"prompt_token_ids":%b' % msgspec.json.encode(self._prompt_ids)
            if tail.endswith(b',"prompt_token_ids":null'):
                tail = tail.removesuffix(b',"prompt_token_ids":null') + told
            else:
                choice = choice.removesuffix(b"}") + told + b"}"
        return b"%b[%b]%b%b}\n\n" % (head, choice, tail, self._null)

    def _choice(self, template: str, piece: Piece, reason: str = "", *, first: bool) -> bytes:
        role = _ROLE if first else b""
        choice = _filled(template, {b"$SAID": self._said(piece), b"$ROLE": role, b"$REASON": quote(reason)})
        return choice if self._prompt_ids is None else self._telling(choice, piece, first=first)

    def _silent(self, reason: str) -> bytes:
        said = self._frames.silence.encode()
        return _filled(self._frames.closing, {b"$SAID": said, b"$ROLE": b"", b"$REASON": quote(reason)})

    def _said(self, piece: Piece) -> bytes:
        if not self._is_chat:
            return quote(piece.raw)
        if piece.channel == "text":
            return b'"content":' + quote(piece.delta)
        aside = self._frames.aside.encode()
        if piece.channel == "reasoning":
            return aside + self._reasoning_key + b":" + quote(piece.delta)
        if piece.name is None:
            return aside + call_fragment(piece.call, piece.delta)
        return aside + call_opening(piece.call, call_id(self.completion.id, piece.call), piece.name)

    def _telling(self, choice: bytes, piece: Piece, *, first: bool) -> bytes:
        """The choice with token ids, in place of its nulls where it has them."""
        choice = choice.removesuffix(b"}").removesuffix(b',"token_ids":null')
        told = b',"token_ids":%b}' % msgspec.json.encode(encode(piece.raw))
        if first and self.opening is None:
            choice = choice.removesuffix(b',"prompt_token_ids":null')
            told = b',"prompt_token_ids":%b%b' % (msgspec.json.encode(self._prompt_ids), told)
        return choice + told


def _filled(template: str, values: dict[bytes, bytes]) -> bytes:
    """The template with its places filled, once through: a value may hold a dollar sign."""
    return _PLACE.sub(lambda found: values.get(found[0], b""), template.encode())
