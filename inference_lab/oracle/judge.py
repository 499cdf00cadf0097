"""Was the splice right? Judge what a gateway's client received, byte for byte as it came."""

import codecs
import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from inference_lab.answers.end import NORMAL_FINISHES
from inference_lab.json_text import Ends, scan
from inference_lab.oracle.frames import Answer
from inference_lab.oracle.sse import LINE_LIMIT, Events, may_be_sse
from inference_lab.oracle.verdict import COUNT_FINDINGS, Kind, Note, Outcome, Report, Verdict
from inference_lab.oracle.words import Said, WordChecker

Ended = Literal["unknown", "clean", "broken"]

_HEAD_BYTES: Final = 64
_BOM: Final = codecs.BOM_UTF8
_BLANKS: Final = b" \t\r\n"
_PAGE: Final = re.compile(rb"<!doctype\s+html|<html[^<>]*>\s*<(?:head|body)", re.IGNORECASE)


def verify(
    stream: bytes | Iterable[bytes],
    *,
    tokens: int | None = None,
    ended: Ended = "unknown",
    start: int = 0,
    tag: str | None = None,
    hidden_tokens: int = 0,
) -> Verdict:
    """Judge a stream of server-sent events, a JSON answer or plain text, in constant memory. Never raises.

    Args:
        stream: the bytes of the response body, in any blocks.
        tokens: the words that the answer must have, over all channels.
        ended: what the transport said: `clean` (curl 0), `broken` (18, 56, 28).
        start: the index of the first word, for a leg on its own.
        tag: the answer's tag, if another one is to be refused; else that of the first word.
        hidden_tokens: tokens of markup that usage counts and no delta shows: a text answer's `</think>`
            for the block that its prompt opened.
    """
    judge = _Judge(tokens, ended, Said(tag, start), hidden_tokens)
    for block in (stream,) if isinstance(stream, bytes) else stream:
        judge.feed(block)
    return judge.verdict()


class _Judge:
    """Takes blocks, tells what they are from the first bytes, and has the last word."""

    def __init__(self, tokens: int | None, ended: Ended, said: Said, hidden_tokens: int) -> None:
        self._tokens, self._ended, self._said, self._hidden = tokens, ended, said, hidden_tokens
        self._report = Report()
        self._answer = Answer(self._report, said)
        self._count = 0
        self._head = b""
        self._form: _Sse | _Json | _Page | _Plain | None = None

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        self._count += len(block)
        if self._form is not None:
            self._form.feed(block)
            return
        self._head += block
        if len(self._head) >= _HEAD_BYTES:
            self._choose()

    def _choose(self) -> None:
        """Decide by the first bytes: events unless they rule that out, a JSON answer for a brace, an HTML page."""
        head = self._head.removeprefix(_BOM)
        first = head.lstrip(_BLANKS)
        if not first or may_be_sse(first[:_HEAD_BYTES]) or _BOM.startswith(self._head):
            self._form = _Sse(self._report, self._answer, len(self._head) - len(head))
        elif first.startswith(b"{"):
            self._form = _Json(self._report, self._answer)
        elif _PAGE.match(first):
            self._form = _Page(self._answer)
        else:
            self._form = _Plain(self._report, self._said)
        self._form.feed(head)

    def verdict(self) -> Verdict:
        """The judgement, when all bytes have come."""
        if self._form is None:
            self._choose()
        answer, report = self._answer, self._report
        report.offset = self._count
        if isinstance(self._form, _Plain):
            died = not self._form.end(self._tokens)
        else:
            if isinstance(self._form, _Json):
                self._form.end()
            died = answer.error or not self._is_normal_end()
            answer.end(dead=died)
            self._judge_counts(died=died)
        if died and self._ended == "clean" and not answer.error:
            report.find(Kind.SILENT_TRUNCATION, "the stream ended cleanly without the end of the answer")
        outcome: Outcome = "wrong" if report.finding_count else "honest prefix" if died else "whole"
        return Verdict(
            outcome,
            tuple(report.findings),
            report.finding_count,
            report.notes,
            self._said.tag,
            self._said.words,
            answer.finish,
            answer.done,
            answer.error,
            answer.completion_tokens,
            self._count,
        )

    def _is_normal_end(self) -> bool:
        """Whether the answer says its end: `[DONE]` alone does where all words are known to be there."""
        answer, tokens = self._answer, self._tokens
        if answer.finish is None and answer.done:
            return tokens is not None and answer.words_so_far() >= tokens
        return answer.finish in NORMAL_FINISHES

    def _judge_counts(self, *, died: bool) -> None:
        """Words against `tokens` and usage, unless a word is known to be missing or twice."""
        answer, report, words = self._answer, self._report, self._said.total
        completion, tokens = answer.completion_tokens, self._tokens
        if completion is None:
            report.note(Note.NO_USAGE)
        if report.kinds & COUNT_FINDINGS:
            return
        if tokens is not None and words > tokens:
            report.find(Kind.TOO_MANY_WORDS, f"{words} words where {tokens} were asked for", None, tokens)
        missing = None
        if not died:
            if tokens is not None and words < tokens:
                missing = f"{words} of {tokens} words, and a normal end"
            elif answer.finish in {"stop", "tool_calls"} and answer.has_open_call:
                missing = f"finish {answer.finish!r} inside an open call"
        counted = words + self._hidden
        if (
            completion is not None
            and completion != counted
            and not (answer.has_markup and completion > counted)
        ):
            if not died and completion > counted and (tokens is None or words < tokens):
                missing = missing or f"{words} words where usage counts {completion} tokens, and a normal end"
            else:
                report.find(Kind.USAGE_WORDS, f"usage counts {completion} tokens where {words} words came")
        if missing:
            report.find(Kind.SILENT_TRUNCATION, missing, None, words)


class _Sse:
    """Events, each a frame."""

    def __init__(self, report: Report, answer: Answer, skipped: int) -> None:
        self._report, self._answer = report, answer
        self._events = Events(report, skipped)

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        for event in self._events.feed(block):
            self._report.offset = event.offset
            data = event.data.strip()
            if event.is_error:
                self._answer.failed()
            elif data == b"[DONE]":
                self._answer.done_marker()
            elif data:
                self._frame(data)

    def _frame(self, data: bytes) -> None:
        try:
            frame = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            frame = None
        if isinstance(frame, dict):
            self._answer.frame(frame)
        else:
            self._answer.unreadable(f"a frame is no JSON object: {data[:60]!r}")


class _Json:
    """One JSON answer; one that breaks off is a death like any other."""

    def __init__(self, report: Report, answer: Answer) -> None:
        self._report, self._answer = report, answer
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        before, self._size = self._size, self._size + len(block)
        if self._size <= LINE_LIMIT:
            self._parts.append(block)
        elif before <= LINE_LIMIT:
            self._parts = []
            self._report.find(Kind.TOO_LONG, f"the answer is longer than {LINE_LIMIT} bytes")

    def end(self) -> None:
        """All bytes have come."""
        data = b"".join(self._parts)
        self._parts = []
        self._report.offset = 0
        try:
            frame = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            if self._is_error_line(data):
                self._answer.failed()
            elif scan(data.decode("utf-8", "replace")).ends in {Ends.WHOLE, Ends.BROKEN}:
                self._report.find(Kind.NOT_JSON, f"the answer is no JSON: {data[:60]!r}")
            return
        self._answer.frame(frame)

    @staticmethod
    def _is_error_line(data: bytes) -> bool:
        """Whether the first line is an error on its own: a proxy's, in front of what is left of the stream."""
        try:
            first = msgspec.json.decode(data.partition(b"\n")[0].partition(b"\r")[0])
        except (msgspec.DecodeError, RecursionError):
            return False
        return isinstance(first, dict) and first.get("error") is not None


class _Page:
    """An error page in place of an answer: nothing was said, and nobody can take it for an answer."""

    def __init__(self, answer: Answer) -> None:
        answer.failed()

    def feed(self, block: bytes) -> None:
        """The next bytes, whatever they say."""


class _Plain:
    """Nothing but the answer's words."""

    def __init__(self, report: Report, said: Said) -> None:
        self._report, self._said = report, said
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._words = WordChecker(report, said, "text")
        self._line_feeds = ""
        self._at = 0

    def feed(self, block: bytes) -> None:
        """The next bytes. Line feeds at the end are the terminal's, or of the tool that cut the text out."""
        self._report.offset = self._at
        self._at += len(block)
        text = self._line_feeds + self._decoder.decode(block)
        kept = text.rstrip("\r\n")
        self._line_feeds = text[len(kept) :][:_HEAD_BYTES]
        self._words.feed(kept)

    def end(self, tokens: int | None) -> bool:
        """All bytes have come; whether the answer is whole: its words are, and there are enough of them."""
        torn = bool(self._decoder.getstate()[0]) or self._words.is_torn
        self._words.end(dead=True)
        words = self._said.total
        if tokens is not None and words > tokens and not self._report.kinds & COUNT_FINDINGS:
            self._report.find(
                Kind.TOO_MANY_WORDS, f"{words} words where {tokens} were asked for", None, tokens
            )
        return not torn and (tokens is None or words >= tokens)
