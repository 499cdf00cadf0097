"""Bytes that this server did not make from its own frames, read back: what they say to whoever receives them."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inference_lab.core.answer.end import SILENCE, Spoken
from inference_lab.core.apis.choices_reader import CHOICES
from inference_lab.core.oracle.reader import Facts, Reader
from inference_lab.core.oracle.sse import Events
from inference_lab.core.oracle.verdict import Report
from inference_lab.core.stream.events import NOTHING, Delivered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_LINE_END: Final = b"\r\n"
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?")


class Heard(msgspec.Struct, frozen=True):
    """What is read in a body: what each block of it `said`, and how far that can be known.

    `letters` are those of the words that it holds itself, None where it has none of its own, and `start` the first
    one's index. `are_words`: all its text is words of one answer, one after the other. `is_readable`: somebody can tell
    how it ends.
    """

    said: tuple[Delivered, ...]
    letters: str | None = None
    start: int = 0
    are_words: bool = True
    is_readable: bool = True

    def are_words_of(self, tag: str, start: int) -> bool:
        """Whether its text is words of the answer with this tag, from this one on."""
        return self.are_words and (self.letters is None or (self.letters, self.start) == (tag, start))


def heard_in(blocks: Sequence[bytes], blanks: int, sample: str) -> Heard:
    """Read a body in blocks, of which each says what it completes.

    So many words of it were `blanks`, filled in from the answer whose tag is `sample`.
    """
    reader, said = _read(blocks)
    if blanks:
        is_sample = reader.said.tag == sample and reader.facts.words == blanks
        letters, start, are_words = None, 0, is_sample and reader.has_own_words
    else:
        letters, start, are_words = reader.said.tag, 0, reader.has_own_words
        if letters is not None and not are_words:
            start = _first_index(b"".join(blocks), letters)
            reader, said = _read(blocks, start)
            are_words = reader.has_own_words
    is_readable = reader.form in {"json", "page"} or (reader.form == "events" and _is_ours(blocks))
    return Heard(said, letters, start, are_words and is_readable, is_readable)


def said_in(blocks: Iterable[bytes]) -> tuple[Delivered, ...]:
    """What each block of a body says."""
    return _read(blocks)[1]


@lru_cache(maxsize=256)  # most deaths have the same few
def said_by_error(block: bytes, *, is_first: bool) -> Delivered:
    """What an error says; `is_first`: in its body, so that a raw one is what the body seems to be."""
    before = () if is_first else (b":\n\n",)
    return said_in((*before, block))[-1]


def _read(blocks: Iterable[bytes], start: int = 0) -> tuple[Reader, tuple[Delivered, ...]]:
    reader = Reader(start=start)
    states = [_Standing(reader.facts, reader.answer.error)]
    for block in blocks:
        reader.feed(block)
        states.append(_Standing(reader.facts, reader.answer.error))
    reader.end(dead=True)  # a JSON answer says all it says with its last byte
    states[-1:] = [_Standing(reader.facts, reader.answer.error)] if len(states) > 1 else []
    # An error that was there once and is not any more was a frame that text has followed.
    healed = max((place for place, state in enumerate(states) if not state.error), default=0)
    return reader, tuple(
        now.since(before, is_lasting=place > healed)
        for place, (before, now) in enumerate(pairwise(states), 1)
    )


class _Standing(msgspec.Struct, frozen=True):
    """What has been said up to a block; `error` may be a frame that nobody can read, until text follows."""

    facts: Facts
    error: bool

    def since(self, before: _Standing, *, is_lasting: bool) -> Delivered:
        """What has been said after what was said before."""
        now, then = self.facts, before.facts
        is_new_error = self.error and not before.error
        spoken = Spoken(
            now.spoken.finish if then.spoken.finish is None else None,
            is_new_error and is_lasting,
            now.spoken.text and not then.spoken.text,
            now.spoken.reasoning and not then.spoken.reasoning,
            now.spoken.calls_begun - then.spoken.calls_begun,
            now.spoken.calls_closed - then.spoken.calls_closed,
            now.spoken.calls_empty - then.spoken.calls_empty,
        )
        has_usage = now.usage is not None and now.usage != then.usage
        said = Delivered(
            now.content_frames - then.content_frames,
            now.words - then.words,
            now.done and not then.done,
            SILENCE if spoken == SILENCE else spoken,
            msgspec.json.encode(now.usage) if has_usage else None,
            is_new_error and not is_lasting,
        )
        return NOTHING if said == NOTHING else said


def _first_index(body: bytes, letters: str) -> int:
    """The index of the first word with these letters, 0 where there is none."""
    found = re.search(f"(?i)(?<![0-9a-z]){letters}([0-9]{{4,10}})", body.decode("utf-8", "replace"))
    return 0 if found is None else int(found[1])


def _is_ours(blocks: Iterable[bytes]) -> bool:
    """Whether no frame is of another API, whose finish is not understood."""
    events = Events(Report(), 0)
    return not any(_is_foreign(event.data) for block in blocks for event in events.feed(block))


def _is_foreign(data: bytes) -> bool:
    try:
        frame: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(frame, dict) and CHOICES.is_foreign(frame)


class Unchunked:
    """The data of a chunked body, as its pieces come; after framing that breaks nothing more is read."""

    def __init__(self) -> None:
        self.is_broken = False
        self._held = b""
        self._left = 0  # of a chunk's data
        self._is_after_data = self._has_ended = False

    def feed(self, piece: bytes) -> bytes:
        """The data in the next bytes."""
        data = b""
        self._held += piece
        while self._held and not (self.is_broken or self._has_ended):
            if self._left:
                part, self._held = self._held[: self._left], self._held[self._left :]
                data += part
                self._left -= len(part)
                self._is_after_data = not self._left
            elif self._is_after_data:
                if len(self._held) < len(_LINE_END) and _LINE_END.startswith(self._held):
                    break
                self.is_broken = not self._held.startswith(_LINE_END)
                self._held, self._is_after_data = self._held[len(_LINE_END) :], False
            else:
                line, has_end, rest = self._held.partition(_LINE_END)
                if not has_end:
                    break
                size = _CHUNK_SIZE.fullmatch(line)
                self.is_broken = size is None
                self._left = 0 if size is None else int(size[1], 16)
                self._has_ended = not self._left
                self._held = rest
        return data
