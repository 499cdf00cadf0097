"""What the bytes of a body say, frame by frame, without a judgement."""

import codecs
import re
from typing import Any, Final, Literal

import msgspec

from inference_lab.core.answer.end import Spoken
from inference_lab.core.apis.choices_reader import CHOICES
from inference_lab.core.apis.readers import READERS, reader_of
from inference_lab.core.apis.reading import FrameReader, Structure
from inference_lab.core.json_text import Ends, scan
from inference_lab.core.oracle.frames import Answer
from inference_lab.core.oracle.sse import LINE_LIMIT, Events, SseEvent, may_be_sse
from inference_lab.core.oracle.verdict import WORD_FINDINGS, Kind, Report
from inference_lab.core.oracle.words import WordChecker, WordsRead

Form = Literal["events", "json", "page", "plain", "foreign"]
"""What a body is: server-sent events, a JSON answer, an error page, plain text, or no body as it was sent at all."""

MEMBER_LIMIT: Final = 1_200_000
"""Members of one frame's JSON; more are one finding, as the values would take many times the room of their text."""

_HEAD_BYTES: Final = 64
_FIELD_BYTES: Final = 6
"""As many tell events and JSON from all else."""
_BOM: Final = codecs.BOM_UTF8
_BLANKS: Final = b" \t\r\n"
_PAGE: Final = re.compile(rb"<!doctype\s+html|<html[^<>]*>\s*<(?:head|body)", re.IGNORECASE)
_GZIP: Final = b"\x1f\x8b"
_STATUS_LINE: Final = re.compile(rb"HTTP/[0-9]")


def foreign(head: bytes) -> str | None:
    """What bytes that begin so are instead of a body as it was sent, and what would be one; None if they may be one."""
    if head.startswith(_GZIP):
        return "the body is compressed (gzip), and no header was there to say so (curl: --compressed)"
    if _STATUS_LINE.match(head):
        return "a response's head comes before its body (curl: without -i)"
    return None


class Facts(msgspec.Struct, frozen=True):
    """What has been said so far.

    `content_frames` counts frames with text or a call in them, `words` the whole words of all channels; `usage` is the
    last usage object as it was sent, `spoken` what decides how the answer ended.
    """

    content_frames: int
    words: int
    done: bool
    finish: str | None
    usage: dict[str, Any] | None
    spoken: Spoken


class Reader:
    """Reads a body in any blocks: `feed` each, ask for `facts` at any time, `end` when all bytes have come.

    An event counts as soon as its blank line has come, a JSON answer at `end`. What is said is added up: the facts
    after a block less those before it are what this block said. `form` tells what the body is, once that is known;
    `has_own_words` whether its text is one answer's words, one after the other from word `start` on (asked after
    `end`, as a word is judged when more text or the end shows that it is complete). Never raises; memory is constant.

    Args:
        start: the index of the first word.
        tag: the answer's two letters; else the first word's count.
        hidden_tokens: tokens that usage counts for markup which no frame shows.
        report: takes the findings on the way.
        frames: reads the frames of the API; None: the first frame that can be of one alone says which that is.
    """

    def __init__(
        self,
        *,
        start: int = 0,
        tag: str | None = None,
        hidden_tokens: int = 0,
        report: Report | None = None,
        frames: FrameReader | None = CHOICES,
    ) -> None:
        self._frames = frames
        self._is_resumed = start > 0
        self.report = Report() if report is None else report
        self.said = WordsRead(tag, start)
        self.answer = Answer(self.report, self.said, hidden_tokens)
        self.byte_count = 0
        self._head = b""
        self._body: _Events | _Json | _Page | _Plain | None = None

    @property
    def form(self) -> Form | None:
        """What the body is; None while its first bytes do not tell."""
        return self._body.form if self._body else None

    @property
    def facts(self) -> Facts:
        """What has been said so far."""
        answer = self.answer
        return Facts(
            answer.content_frames,
            answer.words_so_far(),
            answer.done,
            answer.finish,
            answer.usage.last,
            answer.spoken,
        )

    @property
    def has_own_words(self) -> bool:
        """Whether the text is words of one answer, one after the other."""
        return not WORD_FINDINGS & self.report.kinds.keys()

    @property
    def is_torn_text(self) -> bool:
        """Whether it is plain text that breaks off inside a word."""
        return isinstance(self._body, _Plain) and self._body.is_torn

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        self.byte_count += len(block)
        if self._body is not None:
            self._body.feed(block)
            return
        self._head += block
        head = self._head.removeprefix(_BOM).lstrip(_BLANKS)
        is_known = len(head) >= _FIELD_BYTES and (may_be_sse(head) or head.startswith(b"{"))
        if is_known or len(self._head) >= _HEAD_BYTES:
            self._choose()

    def end(self, *, dead: bool) -> None:
        """All bytes have come; where the answer is `dead`, its last word may be torn."""
        self.finish()
        self.answer.end(dead=dead)

    def check_end(self) -> None:
        """Judge the order of a stream's events at what is a normal end."""
        if isinstance(self._body, _Events):
            self._body.check_end(self.answer.finish)

    def finish(self) -> None:
        """All bytes have come; the last words are still to be judged."""
        if self._body is None:
            self._choose()
        if isinstance(self._body, _Json | _Plain):
            self._body.end()
        self.report.offset = self.byte_count

    def _choose(self) -> None:
        """Decide by the first bytes: events unless they rule that out, a JSON answer for a brace, an HTML page."""
        head = self._head.removeprefix(_BOM)
        first = head.lstrip(_BLANKS)
        if not first or may_be_sse(first[:_HEAD_BYTES]) or _BOM.startswith(self._head):
            self._body = _Events(
                self.report,
                self.answer,
                self._frames,
                len(self._head) - len(head),
                is_resumed=self._is_resumed,
            )
        elif first.startswith(b"{"):
            self._body = _Json(self.report, self.answer, self._frames)
        elif _PAGE.match(first):
            self._body = _Page("page")
            self.answer.failed()
        elif sentence := foreign(first):
            self._body = _Page("foreign")
            self.report.find(Kind.NOT_A_STREAM, sentence)
        else:
            self._body = _Plain(self.report, self.said)
        self._body.feed(head)


class _Events:
    """Events, each a frame."""

    form: Final = "events"

    def __init__(
        self, report: Report, answer: Answer, frames: FrameReader | None, skipped: int, *, is_resumed: bool
    ) -> None:
        self._report, self._answer, self._frames = report, answer, frames
        self._is_resumed = is_resumed
        self._events = Events(report, skipped)
        self._structure: Structure | None = None
        if frames is not None:
            self._structure = frames.structure(is_resumed=is_resumed)

    def feed(self, block: bytes) -> None:
        """The next bytes."""
        for event in self._events.feed(block):
            self._report.offset = event.offset
            data = event.data.strip()
            readers = (self._frames,) if self._frames else READERS
            is_end = any(reader.is_end(data) for reader in readers)
            if event.is_error:
                self._answer.failed()
                self._follow(event, data)
            elif is_end:
                self._answer.done_marker()
                self._follow(event, data)
            elif data:
                self._frame(event, data)

    def _follow(self, event: SseEvent, data: bytes) -> None:
        """The order of an event that says no more than that; what is no JSON stands in none."""
        if self._structure is None:
            return
        try:
            frame = _decoded(data)
        except (msgspec.DecodeError, OverflowError):
            return
        for found in self._structure.take(event.name, frame):
            self._report.find(Kind(found.finding), found.sentence)

    def _frame(self, event: SseEvent, data: bytes) -> None:
        try:
            frame = _decoded(data)
        except msgspec.DecodeError:
            self._answer.unreadable(f"a frame is no JSON object: {data[:60]!r}")
        except OverflowError as error:
            self._report.find(Kind.TOO_LONG, f"a frame has {error}")
        else:
            if self._frames is None and (found := reader_of(frame)) is not None:
                self._frames, self._structure = found, found.structure(is_resumed=self._is_resumed)
            if self._structure is not None:
                for fault in self._structure.take(event.name, frame):
                    self._report.find(Kind(fault.finding), fault.sentence)
            self._answer.take((self._frames or CHOICES).read(frame))

    def check_end(self, finish: str | None) -> None:
        """A normal end has come."""
        for found in self._structure.end(finish) if self._structure is not None else ():
            self._report.find(Kind(found.finding), found.sentence)


class _Json:
    """One JSON answer; one that breaks off is a death like any other."""

    form: Final = "json"

    def __init__(self, report: Report, answer: Answer, frames: FrameReader | None) -> None:
        self._report, self._answer, self._frames = report, answer, frames
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
            body = _decoded(data)
            frames = self._frames or reader_of(body) or CHOICES
            if (structure := frames.structure()) is not None:
                for found in structure.whole(body):
                    self._report.find(Kind(found.finding), found.sentence)
            self._answer.take(frames.read_whole(body))
        except msgspec.DecodeError:
            if self._is_error_line(data):
                self._answer.failed()
            elif scan(data.decode("utf-8", "replace")).ends in {Ends.WHOLE, Ends.BROKEN}:
                self._report.find(Kind.NOT_JSON, f"the answer is no JSON: {data[:60]!r}")
        except OverflowError as error:
            self._report.find(Kind.TOO_LONG, f"the answer has {error}")

    @staticmethod
    def _is_error_line(data: bytes) -> bool:
        """Whether the first line is an error on its own: a proxy's, before what is left of the stream."""
        try:
            first = _decoded(data.partition(b"\n")[0].partition(b"\r")[0])
        except (msgspec.DecodeError, OverflowError):
            return False
        return first.get("error") is not None


class _Page:
    """What nobody can take for an answer, whatever it says: an error page, or no body at all."""

    def __init__(self, form: Literal["page", "foreign"]) -> None:
        self.form = form

    def feed(self, block: bytes) -> None:
        """The next bytes, whatever they say."""


class _Plain:
    """Nothing but the answer's words."""

    form: Final = "plain"

    def __init__(self, report: Report, said: WordsRead) -> None:
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._words = WordChecker(report, said, "text")
        self._line_feeds = ""
        self._at = 0
        self.is_torn = False

    def feed(self, block: bytes) -> None:
        """The next bytes. Line feeds at the end are the terminal's, or of the tool that cut the text out."""
        self._report.offset = self._at
        self._at += len(block)
        text = self._line_feeds + self._decoder.decode(block)
        kept = text.rstrip("\r\n")
        self._line_feeds = text[len(kept) :][:_HEAD_BYTES]
        self._words.feed(kept)

    def end(self) -> None:
        """All bytes have come."""
        self.is_torn = bool(self._decoder.getstate()[0]) or self._words.is_torn
        self._words.end(dead=True)


def _decoded(data: bytes) -> dict[str, Any]:
    """The JSON object of a frame.

    Raises:
        msgspec.DecodeError: it is none.
        OverflowError: it has too many members.
    """
    if len(data) > MEMBER_LIMIT and sum(map(data.count, (b",", b"{", b"["))) > MEMBER_LIMIT:
        raise OverflowError(f"more than {MEMBER_LIMIT} members")
    try:
        frame = msgspec.json.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    if not isinstance(frame, dict):
        raise msgspec.DecodeError("no object")
    return frame
