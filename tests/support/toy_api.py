"""An API that nobody speaks, with two opening frames, blocks and numbers; as a program, `inference-lab` with it."""
# ruff: noqa: ARG002 - the arguments are the contract's

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from inference_lab import cli
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.apis.completions.request import CompletionsRequest
from inference_lab.core.apis.contract import Api, Counts, Prompt, StreamWriter, quote
from inference_lab.core.apis.dialects import LAB, Dialect
from inference_lab.core.apis.errors import VARIANTS, ErrorFields
from inference_lab.core.apis.reading import FrameReader, ReadCall, ReadCounts, ReadFrame, ReadText
from inference_lab.core.stream import events
from inference_lab.core.stream.events import NOTHING, Frame, Part
from inference_lab.core.tokens import encode
from inference_lab.web.app import add_api

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from inference_lab.core.answer.pieces import Piece
    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Form

_NUMBER = b'"n":#'
USAGE_IN_EACH = ("every_chunk", "null_every_chunk", "zero_every_chunk", "with_choices")


class ToyWriter(StreamWriter):
    numbers = True
    channel: str | None = None
    sent = 0

    def _frame(self, kind: str, more: bytes, part: Part, said: events.Delivered = NOTHING) -> Frame:
        return Frame(b'data: {"t":"%b",%b%b}\n\n' % (kind.encode(), _NUMBER, more), said=said, part=part)

    def opening(self) -> Iterator[Frame]:
        yield self._frame("hello", b',"id":%b' % quote(self.completion.id), Part.OPENING)
        yield self._frame("ready", b"", Part.OPENING)

    def content(self, piece: Piece) -> Iterator[Frame]:
        self.tokens += piece.token_count
        if self.channel != piece.channel:
            yield from self.closings()
            self.channel = piece.channel
            yield self._frame("begin", b"", Part.BLOCK_START)
        yield self._frame("say", self._said(piece), Part.CONTENT, events.said_of(piece))

    def _said(self, piece: Piece) -> bytes:
        name = b',"name":%b' % quote(piece.name) if piece.name is not None else b""
        where = b',"in":"%b","call":%d' % (piece.channel.encode(), piece.call)
        return where + b',"text":' + quote(piece.delta) + name

    def empty(self) -> Frame:
        return self._frame("here", b"", Part.PING)

    def closings(self, reason: str | None = None) -> Iterator[Frame]:
        if self.channel is not None:
            self.channel = None
            yield self._frame("end", b"", Part.BLOCK_END)

    def finish(self, reason: str, counts: Counts | None = None) -> Iterator[Frame]:
        yield self._frame("stop", self._why(reason, counts), Part.FINISH, events.finished(reason))

    def finish_with(self, piece: Piece, reason: str, counts: Callable[[], Counts] | None = None) -> Frame:
        self.tokens += piece.token_count
        why = self._why(reason, None if counts is None else counts())
        said = events.said_of(piece) + events.finished(reason)
        return self._frame("stop", self._said(piece) + why, Part.FINISH, said)

    def _why(self, reason: str, counts: Counts | None) -> bytes:
        return b',"why":%b' % quote(reason) + (b"" if counts is None else b',"cost":%b' % counts.json())

    def usage(self, counts: Counts, reason: str | None = None) -> Iterator[Frame]:
        cost = counts.json()
        yield self._frame("cost", b',"cost":' + cost, Part.USAGE, events.Delivered(usage=cost))

    def terminal(self) -> Iterator[Frame]:
        yield self._frame("over", b"", Part.TERMINAL, events.SAID_DONE)

    def error(self, variant: str, fields: ErrorFields, *, is_first: bool) -> Iterator[Frame]:
        yield self._frame("bad", b',"why":%b' % quote(fields.message), Part.ERROR, events.AN_ERROR)

    def malformed(self) -> Frame:
        return self._frame("say", b',"text":"\n\n', Part.OTHER, events.UNREADABLE)

    def stamp(self, frame: Frame) -> Frame:
        self.sent += 1
        return replace(frame, data=frame.data.replace(_NUMBER, b'"n":%d' % self.sent, 1))


class ToyReader(FrameReader):
    def is_end(self, data: bytes) -> bool:
        return b'"over"' in data[:11]

    def read(self, frame: dict[str, Any]) -> ReadFrame:
        text, channel, cost = frame.get("text", ""), frame.get("in"), frame.get("cost")
        call = ReadCall(frame.get("call", 0), None, frame.get("name"), ReadText("call", text))
        return ReadFrame(
            is_answer=cost is None or "why" in frame,
            is_error=frame["t"] == "bad",
            texts=(ReadText(channel, text),) if text and channel in {"text", "reasoning"} else (),
            calls=(call,) if channel == "call" else (),
            finish=frame.get("why") if frame["t"] == "stop" else None,
            counts=ReadCounts(cost, *list(cost.values())[:3]) if cost else None,
        )

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        return self.read(body) if "why" in body else ReadFrame(is_error=True)

    def is_foreign(self, frame: dict[str, Any]) -> bool:
        return "t" not in frame


class Toy(Api[CompletionsRequest]):
    name, path, prompt_field, id_prefix = "toy", "/toy", "prompt", "toy-"
    body, reader = CompletionsRequest, ToyReader()
    dialects, errors = {"lab": LAB}, {"openai": VARIANTS["openai"]}
    lacks = {("sequence", f"choices_{word}"): "an API with choices" for word in ("null", "empty")} | {
        ("usage", word): "an API with usage in each frame" for word in USAGE_IN_EACH
    }

    def prompt(self, body: CompletionsRequest, template: ChatTemplate, *, reasons: bool) -> Prompt:
        ids = encode(body.prompt)
        return Prompt(ids, locate(template, body.prompt, ids), reasons)

    def whole(
        self, body: CompletionsRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[events.Turn, None, bytes]:
        text = quote("".join(piece.delta for piece in plan.pieces))
        yield from ()
        data = b'{"t":"stop","in":"text","text":%b,"why":%b,"cost":%b}'
        return data % (text, quote(plan.finish), counts.json())

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> ToyWriter:
        return ToyWriter(completion, dialect, form)


TOY = Toy()
if __name__ == "__main__":
    add_api(TOY)
    cli.main()
