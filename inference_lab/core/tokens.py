"""The lab tokenizer: text to ids and back with no vocabulary file, and the digest of a prompt's ids.

An id is a u32 below 2^31; `decode(encode(text)) == text` for every text that is Unicode (a lone surrogate is
not).

| id | stands for |
| --- | --- |
| 0 | beginning of sequence: no text |
| 1 … 2^28 - 1 | one to four ASCII characters, seven bits each, the first lowest |
| 2^28 + c | the code point c: all that is not ASCII, and NUL |
| 2^29 + t * 2^20 + i | word i of the answer with tag number t, its blank and its é included |
| 2^29 + (676 + t) * 2^20 + i | the same for reasoning words, in capitals |
| anything else | U+FFFD |

Words are cut out first; what lies between is packed in fours from the left, and no pack crosses the place
before `<` or after `>`, so markup begins and ends on an id. Hence `encode(a) + encode(b) == encode(a + b)`
whenever a ends at `>`, at a word, or at the quote before one, and b begins with no digit, é or É.
"""

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

BEGIN_OF_SEQUENCE: Final = 0
TAG_COUNT: Final = 26 * 26
FIRST_TEXT_WORD: Final = 2**20
"""The first word index that has no id of its own: such a word is encoded as ordinary text."""

_CODE_POINTS: Final = 2**28
_WORDS: Final = 2**29
_REPLACEMENT: Final = "\ufffd"
_MEMO_SIZE: Final = 2**16
_BLOCK: Final = 2**14
"""Characters that are cut in one call, some milliseconds."""
_MARGIN: Final = 64

# The last three digits of an index i with i mod 8 = 7: 100 mod 8 is 4, so the parity of the hundreds decides.
_ACCENTED: Final = (
    r"[02468](?:07|15|23|31|39|47|55|63|71|79|87|95)|[13579](?:03|11|19|27|35|43|51|59|67|75|83|91|99)"
)
_BELOW_2_20: Final = r"10(?:[0-3][0-9]{4}|4[0-7][0-9]{3}|48[0-4][0-9]{2}|485[0-6][0-9]|4857[0-5])"


def _word_pattern(long_index: str) -> re.Pattern[str]:
    """One whole word, blank and accent included, whose index has four digits or is as `long_index` says."""
    patterns = []
    for letter, accent in (("[a-z]", "é"), ("[A-Z]", "É")):
        end = rf"(?:(?<={_ACCENTED}){accent}|(?<!{_ACCENTED})(?!{accent}))"
        index = rf"(?!0000)(?:[0-9]{{4}}|{long_index})(?![0-9])"
        patterns.append(rf"{letter}{{2}}0000(?![0-9{accent}])| {letter}{{2}}{index}{end}")
    return re.compile(f"({'|'.join(patterns)})")


_WORD: Final = _word_pattern(rf"[1-9][0-9]{{4,5}}|{_BELOW_2_20}")
ANY_WORD: Final = _word_pattern("[1-9][0-9]{4,9}")
"""A word of any answer that `max_tokens` allows, whether it has an id of its own or not."""

_PACK: Final = re.compile(
    r"[\x01-\x3d\x3f-\x7f](?:[\x01-\x3b\x3d\x3f-\x7f]{0,2}>|[\x01-\x3b\x3d\x3f-\x7f]{0,3})|>|[^\x01-\x7f]"
)


def tag_number(tag: str) -> int:
    """Place of two letters of one case among the 676 tags, `aa` or `AA` being 0."""
    first, second = tag.lower().encode()
    return (first - 97) * 26 + second - 97


def _number_of(piece: str) -> int:
    """Id of one piece as the patterns cut it: a word, a pack or a code point."""
    if len(piece) > 4:
        letters, index = parts_of(piece)
        kind = tag_number(letters) + (TAG_COUNT if letters <= "ZZ" else 0)
        return _WORDS + kind * 2**20 + index
    if not piece.isascii() or piece == "\0":
        return _CODE_POINTS + ord(piece)
    number = 0
    for character in reversed(piece):
        number = number << 7 | ord(character)
    return number


def _text_of(number: int) -> str:
    """Text of one id, U+FFFD where it stands for nothing."""
    if number < _CODE_POINTS:
        text = ""
        while number > 0:
            text += chr(number & 127)
            number >>= 7
        return text
    if number < _WORDS:
        point = number - _CODE_POINTS
        return chr(point) if point < 0x110000 and not 0xD800 <= point < 0xE000 else _REPLACEMENT
    kind, index = divmod(number - _WORDS, 2**20)
    if kind >= 2 * TAG_COUNT:
        return _REPLACEMENT
    tag = tag_at(kind % TAG_COUNT)
    return spell(tag, index) if kind < TAG_COUNT else spell(tag.upper(), index)


def tag_at(number: int) -> str:
    """The two lower-case letters of tag `number`, 0 … 675."""
    return chr(97 + number // 26) + chr(97 + number % 26)


def parts_of(word: str) -> tuple[str, int]:
    """The two letters and the index of a word as `ANY_WORD` finds it."""
    stem = word.lstrip(" ").rstrip("éÉ")
    return stem[:2], int(stem[2:])


def spell(letters: str, index: int) -> str:
    """Word `index` in the case its two letters have: ` qu0007é`, ` QU0007É`; word 0 has no blank."""
    accent = "" if index % 8 != 7 else "é" if letters >= "a" else "É"
    return f"{' ' if index else ''}{letters}{index:04d}{accent}"


class _Ids(dict[str, int]):
    """Piece to id, remembered, as pieces recur. Bounded; emptied when full, so that junk cannot stay."""

    def __missing__(self, piece: str) -> int:
        if len(self) >= _MEMO_SIZE:
            self.clear()
        self[piece] = number = _number_of(piece)
        return number


class _Texts(dict[int, str]):
    """Id to text, remembered in the same way."""

    def __missing__(self, number: int) -> str:
        if len(self) >= _MEMO_SIZE:
            self.clear()
        self[number] = text = _text_of(number)
        return text


_id_of: Final = _Ids().__getitem__
_text_at: Final = _Texts().__getitem__


def encode(text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Ids of a text, in linear time; id 0 before it if asked for."""
    ids = [BEGIN_OF_SEQUENCE] if add_special_tokens else []
    for pieces in _cut(text):
        ids += map(_id_of, pieces)
    return ids


def count_tokens(text: str) -> int:
    """How many ids a text has, in bounded memory."""
    return sum(map(len, _cut(text)))


def _cut(text: str) -> Iterator[list[str]]:
    """The pieces of a text, each of an id, a block of the text at a time.

    What a piece is depends on nothing before it, and on fewer than `_MARGIN` characters after its begin.
    """
    place = 0
    while len(text) - place > _BLOCK:
        pieces = _pieces_of(text[place : place + _BLOCK])
        size = _BLOCK
        while size > _BLOCK - _MARGIN:
            size -= len(pieces.pop())
        yield pieces
        place += size
    yield _pieces_of(text[place:] if place else text)


def _pieces_of(block: str) -> list[str]:
    pieces: list[str] = []
    for number, part in enumerate(_WORD.split(block)):
        if number % 2:
            pieces.append(part)
        elif part:
            pieces += _PACK.findall(part)
    return pieces


def decode(ids: Iterable[int]) -> str:
    """Text of u32 ids; every id is accepted."""
    return "".join(map(_text_at, ids))


def digest(ids: Sequence[int]) -> int:
    """64-bit digest of a prompt: BLAKE2b over its ids (little-endian u32, no id 0), read big-endian."""
    counted = array("I", ids)
    if BEGIN_OF_SEQUENCE in ids:
        counted = array("I", (number for number in ids if number))
    if sys.byteorder == "big":
        counted.byteswap()
    return int.from_bytes(blake2b(counted, digest_size=8).digest(), "big")


def tag_of(prompt_digest: int) -> str:
    """The tag of a prompt: its digest's short form, two lower-case letters. 676 values, so tags collide."""
    return tag_at(prompt_digest % TAG_COUNT)
