"""Check one channel's words as they come: each in its place, spelled right, none twice, none missing."""

import re
from typing import Final

import msgspec

from inference_lab.core.oracle.verdict import Kind, Report
from inference_lab.core.tokens import spell

_WORD_LIKE: Final = re.compile(" ?(?:([a-z]{2})|([A-Z]{2}))([0-9]+)([éÉ]*)")
_BEGINNING: Final = re.compile(r" ?(?:[a-z]{0,2}|[A-Z]{0,2})\Z")
_LETTERS: Final = re.compile(" ?([A-Za-z]{0,2})")
_HELD_CHARACTERS: Final = 64
_INDEX_DIGITS: Final = 10
_REORDER_WINDOW: Final = 1024
"""A gap of at most so many words is remembered, so that words of it that come later show as reordered."""


class WordsRead(msgspec.Struct):
    """What all channels of one answer share: the tag, the words so far, the first channel's start."""

    tag: str | None = None
    start: int = 0
    begun: bool = False
    words: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """Whole words of all channels."""
        return sum(self.words.values())


class WordChecker:
    """The words of one channel, in any pieces; a word is judged when the text after it shows its end."""

    def __init__(self, report: Report, said: WordsRead, channel: str) -> None:
        self._report, self._said, self._channel = report, said, channel
        self._upper = channel == "reasoning"
        self._pending = ""
        self._expected: int | None = None
        self._due = self._following = ""
        self._run: tuple[Kind, int] | None = None
        self._gap: set[int] = set()
        self._gap_finding = -1
        self._gap_reordered = False
        self._detour: tuple[int, int, Kind] | None = None
        self._is_after_torn = False

    def feed(self, text: str) -> None:
        """Take more text."""
        if self._pending and self._pending == self._due and text == self._following:
            self._accept()
            self._pending = text
            return
        text = self._pending + text
        self._pending = ""
        self._read(text, is_end=False)

    @property
    def is_torn(self) -> bool:
        """Whether the text so far ends inside the word that is due."""
        due = self._due_for(self._pending)
        return bool(self._pending) and self._pending != due and due.startswith(self._pending)

    @property
    def holds_word(self) -> bool:
        """Whether a whole word waits to be judged, as more of it may come."""
        return bool(self._pending) and self._pending == self._due_for(self._pending)

    def end(self, *, dead: bool) -> None:
        """The channel ends; on a dead stream the last word may be torn."""
        rest = "" if dead and self.is_torn else self._pending
        self._pending = ""
        self._read(rest, is_end=True)
        if self._gap and self._gap_reordered:
            self._report.find(
                Kind.GAP, f"words missing for good: {len(self._gap)}", self._channel, min(self._gap)
            )
            self._gap = set()

    def _read(self, text: str, *, is_end: bool) -> None:
        place = 0
        while place < len(text):
            found = _WORD_LIKE.match(text, place)
            if found:
                if found.end() == len(text) and not is_end and len(found[0]) < _HELD_CHARACTERS:
                    break
                self._word(found)
                place = found.end()
                continue
            later = _WORD_LIKE.search(text, place)
            end = later.start() if later else len(text)
            if not later and not is_end:
                beginning = _BEGINNING.search(text, max(place, len(text) - 3))
                end = beginning.start() if beginning else end
                if end == place:
                    break
            self._other(text[place:end])
            place = end
        self._pending = text[place:]

    def _due_for(self, text: str) -> str:
        """The word that is due; before the first word, in the letters that the text shows."""
        if self._due:
            return self._due
        if self._said.tag is not None:
            return spell(self._letters(self._said.tag), self._place())
        shown = _LETTERS.match(text)
        return spell(self._letters(((shown[1] if shown else "") + "aa")[:2].lower()), self._place())

    def _letters(self, tag: str) -> str:
        """A tag as this channel writes it."""
        return tag.upper() if self._upper else tag

    def _place(self) -> int:
        """The index that is due."""
        if self._expected is None:
            return 0 if self._said.begun else self._said.start
        return self._expected

    def _expect(self, index: int) -> None:
        is_next = self._due and index == self._place() + 1
        self._expected = index
        if self._said.tag is not None:
            letters = self._letters(self._said.tag)
            self._due = self._following if is_next else spell(letters, index)
            self._following = spell(letters, index + 1)

    def _accept(self) -> None:
        """The word that was due has come."""
        self._run = self._detour = None
        self._is_after_torn = False
        self._said.begun = True
        self._said.words[self._channel] = self._said.words.get(self._channel, 0) + 1
        self._expect(self._place() + 1)

    def _word(self, found: re.Match[str]) -> None:
        text = found[0]
        if text == self._due:
            self._accept()
            return
        letters, digits = found[1] or found[2], found[3]
        if (found[2] is not None) is not self._upper:
            self._find(Kind.OTHER_TEXT, f"{text!r} belongs into another channel")
            return
        if self._said.tag is not None and letters.lower() != self._said.tag:
            self._find(Kind.FOREIGN_WORD, f"{text!r} is of another answer than {self._said.tag!r}")
            return
        if len(digits) > _INDEX_DIGITS or (len(digits) > 4 and digits[0] == "0"):
            self._find(Kind.OTHER_TEXT, f"{text[:_HELD_CHARACTERS]!r} is no word")
            return
        if len(digits) < 4:
            self._find(Kind.TORN_WORD, f"{text!r} is torn")
            return
        self._said.tag = letters.lower()
        self._expect(self._place())
        index = int(digits)
        whole = spell(letters, index)
        if text != self._due and self._due.startswith(text):
            self._find(Kind.TORN_WORD, f"{text!r} is torn: {self._due!r} is due")
            return
        if whole.lstrip(" ") != text.lstrip(" "):
            self._find(Kind.TORN_WORD, f"{text!r} should be {whole!r}", index)
        elif whole != text:
            self._find(Kind.BLANK, f"{text!r} should be {whole!r}", index)
        self._index(index)

    def _index(self, index: int) -> None:
        """A well-spelled word at any index."""
        due = self._place()
        detour, self._detour = self._detour, None
        if index == due or (self._is_after_torn and index == due + 1):
            # After a torn word comes the word itself or, where only its end was lost, the next one.
            self._expect(index)
            self._accept()
            return
        if detour and index == detour[0]:
            self._report.relabel(
                detour[1], detour[2], Kind.REORDER, "a word comes a second time, out of order"
            )
            self._expect(index)
            self._accept()
        elif index > due:
            missing = f"word {due} is" if index == due + 1 else f"words {due} to {index - 1} are"
            place = self._find(Kind.GAP, f"{missing} missing", due)
            if index - due <= _REORDER_WINDOW:
                self._gap, self._gap_finding = set(range(due, index)), place
                self._gap_reordered = False
            self._expect(index)
            self._accept()
        elif index in self._gap:
            self._gap.discard(index)
            was = Kind.REORDER if self._gap_reordered else Kind.GAP
            self._gap_reordered = True
            self._report.relabel(self._gap_finding, was, Kind.REORDER, "words come out of order")
            self._accept()
            self._expect(due)
        else:
            back = f"the words go back from {due} to {index}"
            kind = Kind.REPEAT if index else Kind.RESTART
            place = self._find(kind, back, index)
            self._expect(index)
            self._accept()
            self._detour = (due, place, kind)

    def _other(self, text: str) -> None:
        """Text that is no word."""
        due = self._due_for(text)
        if self._run and self._run[0] is Kind.OTHER_TEXT:
            self._report.extend(self._run[1])
        elif text.strip(" ") == "":
            self._find(Kind.BLANK, f"{text[:_HELD_CHARACTERS]!r} is a blank too many")
        elif due.startswith(text):
            self._find(Kind.TORN_WORD, f"{text!r} is torn: {due!r} is due")
        else:
            self._find(Kind.OTHER_TEXT, f"{text[:_HELD_CHARACTERS]!r} is no word of an answer")

    def _find(self, kind: Kind, message: str, index: int | None = None) -> int:
        """Report; foreign words and other text in a row are one finding."""
        if self._run and self._run[0] is kind and kind in {Kind.FOREIGN_WORD, Kind.OTHER_TEXT}:
            self._report.extend(self._run[1])
            return self._run[1]
        self._is_after_torn = kind is Kind.TORN_WORD
        place = self._report.find(kind, message, self._channel, self._place() if index is None else index)
        self._run = (kind, place)
        return place
