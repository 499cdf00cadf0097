"""What content frames carry, as values: single pieces, runs of plain words, and both in a row."""

from collections.abc import Iterator
from itertools import chain, count
from math import inf
from typing import Literal

import msgspec

from inference_lab.core.tokens import ANY_WORD, decode, encode, parts_of, spell

JOINED_WORDS = 1024
"""So many words are written at once; their ids take milliseconds."""

Channel = Literal["text", "reasoning", "call"]


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What one content frame carries.

    `delta` is a chat delta's text (a call's announcement has none), `raw` a completions frame's, markup
    included. `token_count` is the ids of `raw`, `words` the whole words it ends, `name` what a call's
    announcement tells, `call` the number of the call it is of.
    """

    channel: Channel
    delta: str
    raw: str
    token_count: int
    words: int
    name: str | None = None
    call: int = 0

    def beginning(self, budget: int) -> "Piece":
        """Its first `budget` ids, at least 1 and fewer than it has; no delta shows what is markup alone."""
        raw = decode(encode(self.raw)[:budget])
        pairs = enumerate(zip(raw, self.delta, strict=False))
        same = next((place for place, (one, other) in pairs if one != other), min(len(raw), len(self.delta)))
        # A word ends in a digit or accent, and what closes a call after it has neither.
        word_end = max(map(self.raw.rfind, "0123456789éÉ")) + 1
        words = self.words if len(raw) >= word_end else 0
        return Piece(self.channel, raw[:same], raw, budget, words, call=self.call)


class Run(msgspec.Struct, frozen=True):
    """Plain words `start` … `stop` - 1 of one channel, one token each; without end if `stop` is None."""

    channel: Channel
    letters: str
    start: int
    stop: int | None
    call: int = 0

    def __iter__(self) -> Iterator[Piece]:
        channel, letters = self.channel, self.letters
        if self.call:
            for index in count(self.start) if self.stop is None else range(self.start, self.stop):
                text = spell(letters, index)
                yield Piece(channel, text, text, 1, 1, call=self.call)
            return
        for index in count(self.start) if self.stop is None else range(self.start, self.stop):
            # `spell` without the call for the seven words of eight that need nothing else
            text = f" {letters}{index:04d}" if index and index % 8 != 7 else spell(letters, index)
            yield Piece(channel, text, text, 1, 1)

    @property
    def end(self) -> int:
        """The word after the last.

        Raises:
            ValueError: they have no end.
        """
        if self.stop is None:
            raise ValueError("words without end are no piece")
        return self.stop

    def joined(self) -> Piece:
        """All of the words in one piece.

        Raises:
            ValueError: they have no end.
        """
        # Eight words by eight, the last of which has the accent: an eighth of what a piece for each costs.
        first = min(self.end, (self.start + 7) // 8 * 8 or 8)
        last = max(first, self.end // 8 * 8)
        eight = "".join(f" {self.letters}%04d" for _ in range(8)) + spell(self.letters, 7)[-1]
        text = "".join(spell(self.letters, index) for index in range(self.start, first))
        text += eight * ((last - first) // 8) % tuple(range(first, last))
        text += "".join(spell(self.letters, index) for index in range(last, self.end))
        words = self.end - self.start
        return Piece(self.channel, text, text, words, words, call=self.call)

    def framed(self, start: int, stop: int, before: bytes, after: bytes) -> list[bytes]:
        """Words `start` … `stop` - 1, each as a JSON string between `before` and `after`."""
        opening, closing = before + b'" ' + self.letters.encode(), b'"' + after
        frames = [b"%b%04d%b" % (opening, index, closing) for index in range(start, stop)]
        accented = range(start + (7 - start) % 8, stop, 8)
        for index in accented if start else (0, *accented):
            frames[index - start] = b'%b"%b%b' % (before, spell(self.letters, index).encode(), closing)
        return frames


class Pieces(msgspec.Struct, frozen=True):
    """An answer's pieces, made as they are asked for, as often as they are asked for."""

    segments: tuple[Piece | Run, ...]

    def __iter__(self) -> Iterator[Piece]:
        return chain.from_iterable(part if isinstance(part, Run) else (part,) for part in self.segments)

    def joined(self) -> Iterator[Piece]:
        """The same with many words of a run in one piece: what an answer that is no stream is made of."""
        for part in self.segments:
            if isinstance(part, Piece):
                yield part
                continue
            stop = part.end
            for start in range(part.start, stop, JOINED_WORDS) or (stop,):
                yield msgspec.structs.replace(
                    part, start=start, stop=min(stop, start + JOINED_WORDS)
                ).joined()

    @property
    def words(self) -> int:
        """How many words they end.

        Raises:
            ValueError: they have no end.
        """
        total = 0
        for part in self.segments:
            if isinstance(part, Piece):
                total += part.words
            elif part.stop is None:
                raise ValueError("an answer without end has no number of words")
            else:
                total += part.stop - part.start
        return total

    def token_count(self, pieces: int) -> int:
        """The ids of the first so many pieces; at once."""
        total = 0
        for part in self.segments:
            if pieces <= 0:
                break
            size = 1
            if isinstance(part, Run):
                size = pieces if part.stop is None else min(pieces, part.stop - part.start)
            total += part.token_count if isinstance(part, Piece) else size
            pieces -= size
        return total

    def starting_at(self, place: int) -> "Pieces":
        """The pieces from the `place`-th on; what lies before is not made."""
        for number, part in enumerate(self.segments):
            rest = self.segments[number + 1 :]
            if isinstance(part, Piece):
                if not place:
                    return Pieces((part, *rest))
                place -= 1
            elif part.stop is None or place < part.stop - part.start:
                return Pieces((msgspec.structs.replace(part, start=part.start + place), *rest))
            else:
                place -= part.stop - part.start
        return Pieces(())

    def without_last(self) -> tuple["Pieces", Piece | None]:
        """All but the last piece, and the last, None where there is none.

        Raises:
            ValueError: they have no end.
        """
        *before, last = self.segments or (None,)
        if last is None or isinstance(last, Piece):
            return Pieces(tuple(before)), last
        if last.stop is None:
            raise ValueError("an answer without end has no last piece")
        if last.stop == last.start:
            return Pieces(tuple(before)).without_last()
        rest = msgspec.structs.replace(last, stop=last.stop - 1)
        return Pieces((*before, rest)), next(iter(msgspec.structs.replace(last, start=last.stop - 1)))

    def reach(self, index: int, frames: int | None = None) -> bool:
        """Whether the first `frames` pieces (None: all) hold word `index` of a channel or a later one; at once."""
        left = inf if frames is None else frames
        for part in self.segments:
            if left <= 0:
                return False
            if isinstance(part, Run):
                size = min(left, inf if part.stop is None else part.stop - part.start)
                if size > 0 and part.start + size > index:
                    return True
            else:
                size = 1
                if any(parts_of(word)[1] >= index for word in ANY_WORD.findall(part.raw)):
                    return True
            left -= size
        return False


class Cut(msgspec.Struct, frozen=True):
    """The segments that fit into a number of tokens, the tokens they take, and whether any is missing."""

    segments: tuple[Piece | Run, ...]
    tokens: int
    is_short: bool


def fit(segments: tuple[Piece | Run, ...], budget: int | None) -> Cut:
    """Keep what fits into `budget` tokens, no piece split. Costs no more for a long run than for a short one.

    Raises:
        ValueError: neither the budget nor the segments have an end.
    """
    kept: list[Piece | Run] = []
    used = 0
    for part in segments:
        left = None if budget is None else budget - used
        if isinstance(part, Piece):
            if left is not None and part.token_count > left:
                return Cut(tuple(kept), used, is_short=True)
            kept.append(part)
            used += part.token_count
            continue
        stop = part.stop
        if left is not None and (stop is None or stop - part.start > left):
            stop = part.start + left
        if stop is None:
            raise ValueError("an answer needs a limit")
        kept.append(msgspec.structs.replace(part, stop=stop))
        used += stop - part.start
        if stop != part.stop:
            return Cut(tuple(kept), used, is_short=True)
    return Cut(tuple(kept), used, is_short=False)
