"""Was the splice right? Judge what a gateway's client received, byte for byte as it came.

Theory of operation. There are two passes, and only the second one judges the whole.

While bytes come, a `Reader` (`reader.py`) reads them. The first bytes decide the form: events, one JSON answer, a page,
plain text. An API's frame reader turns each event into a `ReadFrame`; `Answer` (`frames.py`) hands its parts on: names
and roles to `Identity`, text to a `WordChecker` for each channel (through `RawText` where markup comes with the text),
calls to `Calls`, counts to `Usage`. Each reports what contradicts an earlier frame as a finding, with the offset of the
frame that shows it. What decides how the answer ended is added up apart from that, as `Spoken`.

When all bytes have come, `_Judge` decides in this order:

1. Does a client read this as an answer? Below a status from 400 on nothing is read: it is a death. So is an error page.
   A body that was not sent so (gzip, a head before it) is a finding. Plain text has no end of its own: it died if its
   last word is torn or `tokens` are missing.
2. How did it end? `end_of(spoken)`, the function that the journal asks too. `ERROR`, `UNUSUAL_FINISH` and `CUT` are
   deaths that show; every other end claims a complete answer. (A `[DONE]` without a finish does so only where `tokens`
   proves that all words came.)
3. The channels are closed. Only on a dead stream may the last word be torn.
4. Counts, but not where a finding already shows that words are missing or repeated: that would report it twice. A
   complete answer with words missing, or with an end that it cannot have, is a silent truncation. Then usage.
5. A complete answer has the finish and the usage that the caller knows of. A cut that the transport calls clean is a
   silent truncation.

Any finding that is not ignored makes the answer `wrong`. Otherwise a death is an `honest prefix`, the rest is `whole`.

An honest stream is never called wrong, because nothing is judged before it is complete (a word waits for the text after
it, a second role for the next text, a frame that is not JSON for text after it), and because where the bytes leave two
readings the one without a finding holds: usage is compared with a range, from the words alone to all that their markup
may cost in any format. A broken stream is never called whole, because every end but `WHOLE` is a death or a finding,
and a word counts in its place only. One defect is one finding: foreign words in a row extend the first, and a gap whose
words come later becomes a reorder.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from inference_lab.core.answer.end import NORMAL_FINISHES, End, end_of
from inference_lab.core.apis.reading import FrameReader
from inference_lab.core.oracle.markup import OPENING_TOKENS, least_tokens, most_tokens
from inference_lab.core.oracle.reader import Reader
from inference_lab.core.oracle.verdict import (
    COUNT_FINDINGS,
    Kind,
    Note,
    Outcome,
    Report,
    Verdict,
    kinds_named,
)

Ended = Literal["unknown", "clean", "broken"]
Usage = Literal["asked", "not"]

_DEATHS: Final = frozenset({End.ERROR, End.UNUSUAL_FINISH, End.CUT})
"""The ends that show that the answer died."""
_FAILURE: Final = 400
"""The first status that a client cannot take for an answer."""


class Known(msgspec.Struct, frozen=True):
    """What is known beside the bytes; see `verify`."""

    tokens: int | None = None
    max_tokens: int | None = None
    ended: Ended = "unknown"
    start: int = 0
    tag: str | None = None
    hidden_tokens: int = 0
    status: int | None = None
    stream: bool = False
    finish: str | None = None
    usage: Usage = "not"
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens is not None and self.max_tokens is not None:
            raise ValueError("tokens and max_tokens exclude each other: words, or tokens with their markup")
        kinds_named(self.ignore)


def verify(  # noqa: PLR0913 - all that can be known beside the bytes, each by its name
    body: bytes | Iterable[bytes],
    /,
    *,
    tokens: int | None = None,
    max_tokens: int | None = None,
    ended: Ended = "unknown",
    start: int = 0,
    tag: str | None = None,
    hidden_tokens: int = 0,
    status: int | None = None,
    stream: bool = False,
    finish: str | None = None,
    usage: Usage = "not",
    ignore: Iterable[str] = (),
    reader: FrameReader | None = None,
) -> Verdict:
    """Judge server-sent events, a JSON answer or plain text, in constant memory. No body makes it raise.

    Args:
        body: the bytes of the response body, in any blocks.
        tokens: the words that the answer must have, over all channels.
        max_tokens: the tokens that the answer may have, its markup included.
        ended: what the transport said: `clean` (curl 0), `broken` (18, 56, 28).
        start: the index of the first word, for a leg on its own.
        tag: the answer's tag, if another one is to be refused; else that of the first word.
        hidden_tokens: tokens of markup that usage counts and no delta shows: a text answer's `</think>`
            for the block that its prompt opened.
        status: the status of the response; from 400 on any body is an honest prefix.
        stream: whether the client asked for a stream.
        finish: the finish reason that the upstream said, as chat spells it.
        usage: whether the client asked for usage.
        ignore: findings, or weights of findings, that are not to count.
        reader: what reads the frames of its API: chat and completions have the same. None: the first frame says it.

    Raises:
        ValueError: both `tokens` and `max_tokens`; a name in `ignore` that is neither a finding's nor a weight's.
    """
    known = Known(
        tokens, max_tokens, ended, start, tag, hidden_tokens, status, stream, finish, usage, tuple(ignore)
    )
    judge = _Judge(known, reader)
    for block in (body,) if isinstance(body, bytes) else body:
        judge.feed(block)
    return judge.verdict()


class _Judge:
    """Has the last word over what a reader has read."""

    def __init__(self, known: Known, frames: FrameReader | None) -> None:
        self._known = known
        self._report = Report(kinds_named(known.ignore))
        self._reader = Reader(
            start=known.start,
            tag=known.tag,
            hidden_tokens=known.hidden_tokens,
            report=self._report,
            frames=frames,
        )
        self._answer = self._reader.answer
        self._is_failure = known.status is not None and known.status >= _FAILURE
        self._unread = 0

    def feed(self, block: bytes) -> None:
        """The next bytes; nobody reads an answer after the status of a failure."""
        if self._is_failure:
            self._unread += len(block)
        else:
            self._reader.feed(block)

    def verdict(self) -> Verdict:
        """The judgement, when all bytes have come."""
        answer, report, reader = self._answer, self._report, self._reader
        reader.finish()
        if self._is_failure:
            answer.failed()
            died = True
        elif reader.form == "foreign":
            died = True
        elif reader.form == "plain":
            died = self._judge_text()
        else:
            died = self._judge_answer()
        self._check_form()
        counts = report.finding_counts
        outcome: Outcome = "wrong" if counts else "honest prefix" if died else "whole"
        return Verdict(
            outcome,
            report.kept(ignored=False),
            report.kept(ignored=True),
            counts,
            report.notes,
            reader.said.tag,
            reader.said.words,
            answer.finish,
            answer.done,
            answer.error,
            answer.usage.completion_tokens,
            reader.byte_count + self._unread,
        )

    def _judge_answer(self) -> bool:
        """Frames, or a JSON answer; whether it died."""
        answer, known, report = self._answer, self._known, self._report
        end = end_of(answer.spoken, may_be_empty=known.start > 0)
        if end is End.CUT and answer.done and known.tokens is not None:
            end = End.WHOLE if answer.words_so_far() >= known.tokens else end
        died = end in _DEATHS
        answer.end(dead=died)
        if end is End.UNUSUAL_FINISH:
            report.note(Note.UNUSUAL_FINISH)
        if end is End.PHANTOM_CALL:
            what = (
                "with a call whose arguments say nothing"
                if answer.spoken.calls_empty
                else "without a whole call"
            )
            report.find(Kind.PHANTOM_CALL, f"finish {answer.finish!r} {what}")
        self._judge_counts(end)
        if not died:
            self._reader.check_end()
            self._check_tail()
        if end is End.CUT and known.ended == "clean":
            report.find(Kind.SILENT_TRUNCATION, "the stream ended cleanly without the end of the answer")
        return died

    def _judge_text(self) -> bool:
        """Plain text: whether its words break off, or are too few."""
        known, report, words = self._known, self._report, self._reader.said.total
        if not COUNT_FINDINGS & report.kinds.keys():
            self._check_limits(words)
        died = self._reader.is_torn_text or (known.tokens is not None and words < known.tokens)
        if died and known.ended == "clean":
            report.find(Kind.SILENT_TRUNCATION, "the text ended cleanly without the end of the answer")
        return died

    def _judge_counts(self, end: End) -> None:
        """Words against what is known and against usage, unless a word is known to be missing or twice."""
        answer, report, words = self._answer, self._report, self._reader.said.total
        completion = answer.usage.completion_tokens
        if completion is None:
            report.note(Note.NO_USAGE)
        if COUNT_FINDINGS & report.kinds.keys():
            return
        self._check_limits(words)
        died = end in _DEATHS
        missing = None if died else self._missing(end, words)
        miscount = answer.usage.miscount(died=died)
        least, most = answer.countable()
        if miscount is not None:
            sentence = f"usage counts {miscount.completion} tokens where {miscount.words} words came"
            report.find(Kind.USAGE_WORDS, sentence, None, miscount.words, offset=miscount.offset)
        elif (
            not died
            and completion is not None
            and not least <= completion <= (completion if missing else most)
        ):
            report.find(Kind.USAGE_WORDS, f"usage counts {completion} tokens where {words} words came")
        if missing:
            report.find(Kind.SILENT_TRUNCATION, missing, None, words)

    def _check_limits(self, words: int) -> None:
        """As many words or tokens as there may be."""
        known, report = self._known, self._report
        if known.tokens is not None and words > known.tokens:
            sentence = f"{words} words where {known.tokens} were asked for"
            report.find(Kind.TOO_MANY_WORDS, sentence, None, known.tokens)
        if known.max_tokens is not None:
            # A leg's own first frames may go on in markup that an earlier one has opened.
            markup = 0 if known.start else least_tokens(self._answer.markup)
            least = words + (known.hidden_tokens if words else 0) + markup
            if least > known.max_tokens:
                sentence = f"{least} tokens and more where {known.max_tokens} were asked for"
                report.find(Kind.TOO_MANY_WORDS, sentence, None, words)

    def _missing(self, end: End, words: int) -> str | None:
        """What a normal end says that there is, and there is not."""
        answer, known = self._answer, self._known
        if known.tokens is not None and words < known.tokens:
            return f"{words} of {known.tokens} words, and a normal end"
        if end is End.EMPTY:
            return f"finish {answer.finish!r} and not a single word"
        if end is End.REASONING_ONLY:
            return f"finish {answer.finish!r} after reasoning alone"
        if end is End.OPEN_CALL:
            return f"finish {answer.finish!r} inside an open call"
        if known.max_tokens is not None and answer.finish == "length":
            unfitting = 0 if answer.spoken.text else OPENING_TOKENS
            most = words + known.hidden_tokens + most_tokens(answer.markup) + unfitting
            if most < known.max_tokens:
                return f"{most} of {known.max_tokens} tokens at most, and finish 'length'"
        return None

    def _check_tail(self) -> None:
        """A normal end against what the upstream said, and what the client asked for."""
        answer, known = self._answer, self._known
        if known.finish is not None and answer.finish in NORMAL_FINISHES:
            said = (
                {known.finish, "stop"} if answer.is_raw and known.finish == "tool_calls" else {known.finish}
            )
            if answer.finish not in said:
                change = f"finish {answer.finish!r} where the upstream said {known.finish!r}"
                self._report.find(Kind.FINISH_CHANGED, change)
        if known.usage == "asked" and not answer.usage.is_seen:
            self._report.find(Kind.USAGE_LOST, "usage was asked for, and none came")

    def _check_form(self) -> None:
        """Events, where the client asked for a stream; an error whose status is not known may be no answer at all."""
        form, known = self._reader.form, self._known
        if not known.stream or self._is_failure or form in {"events", "foreign"}:
            return
        if known.status is not None or not self._answer.error:
            what = {"json": "a JSON object", "page": "a page"}.get(str(form), "plain text")
            self._report.find(Kind.NOT_A_STREAM, f"{what} where a stream was asked for")
