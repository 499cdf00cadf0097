"""The lab tokenizer: exact ids, the way back, the seam, and what hostile texts cost."""

import hashlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.core import tokens
from inference_lab.core.tokens import count_tokens, decode, digest, encode, spell, tag_at, tag_number, tag_of

QU = 26 * 16 + 20
WORD = 2**29
MARKUP = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<|end|>",
        "qu0000",
        " qu0001",
        " qu0007é",
        " QU0015É",
        " qu9999",
        " qu10000",
        " qu1048576",
    ]
)
TEXTS = st.lists(st.one_of(st.text(max_size=6), MARKUP, st.text("qu0178é <>\0", max_size=9))).map("".join)


def pack(text: str) -> int:
    return sum(ord(character) << 7 * place for place, character in enumerate(text))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("hello", [pack("hell"), pack("o")]),
        ("a<b>c", [pack("a"), pack("<b>"), pack("c")]),
        ("</think>x", [pack("</th"), pack("ink>"), pack("x")]),
        ("a\0b", [pack("a"), 2**28, pack("b")]),
        ("aéb😀", [pack("a"), 2**28 + 0xE9, pack("b"), 2**28 + 0x1F600]),
        ("qu0000", [WORD + QU * 2**20]),
        ("QU0000", [WORD + (676 + QU) * 2**20]),
        ("hellqu0000", [pack("hell"), WORD + QU * 2**20]),
        (" qu0000", [pack(" "), WORD + QU * 2**20]),
        ("qu0000 qu0001 qu0007é", [WORD + QU * 2**20, WORD + QU * 2**20 + 1, WORD + QU * 2**20 + 7]),
        (" QU0007É", [WORD + (676 + QU) * 2**20 + 7]),
        (" zz1048575é", [WORD + 676 * 2**20 - 1]),
        (" qu1048576", [pack(" qu1"), pack("0485"), pack("76")]),
        ("qu00001", [pack("qu00"), pack("001")]),
        (" qu00010", [pack(" qu0"), pack("0010")]),
        (" qu0007", [pack(" qu0"), pack("007")]),
        (" qu0008é", [pack(" qu0"), pack("008"), 2**28 + 0xE9]),
        ("qu0000é", [pack("qu00"), pack("00"), 2**28 + 0xE9]),
        ("qu0000É", [WORD + QU * 2**20, 2**28 + 0xC9]),
        ("Qu0000", [pack("Qu00"), pack("00")]),
        (" qu0001 qu0002", [WORD + QU * 2**20 + 1, WORD + QU * 2**20 + 2]),
        ("\ud800", [2**28 + 0xD800]),
    ],
)
def test_each_shape_of_text_has_its_ids(text: str, ids: list[int]) -> None:
    assert encode(text) == ids


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, ""),
        (65, "A"),
        (pack("abcd"), "abcd"),
        (1 << 7, "\0\x01"),
        (2**28 - 1, "\x7f" * 4),
        (2**28, "\0"),
        (2**28 + 0xD800, "\ufffd"),
        (2**28 + 0x10FFFF, "\U0010ffff"),
        (2**28 + 0x110000, "\ufffd"),
        (2**29 - 1, "\ufffd"),
        (2**29, "aa0000"),
        (2**29 + 676 * 2**20, "AA0000"),
        (2**29 + 2 * 676 * 2**20 - 1, " ZZ1048575É"),
        (2**29 + 2 * 676 * 2**20, "\ufffd"),
        (2**32 - 1, "\ufffd"),
    ],
)
def test_every_id_decodes(number: int, text: str) -> None:
    assert decode([number]) == text


@given(TEXTS)
@example("qu0000qu0000 qu00010 qu0007 qu0007é")
def test_decode_is_the_way_back(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert all(0 < number < 2**31 for number in ids)
    assert encode(text, add_special_tokens=True) == [0, *ids]


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_any_u32_list_has_a_canonical_form(ids: list[int]) -> None:
    canonical = encode(decode(ids))
    assert encode(decode(canonical)) == canonical


@given(TEXTS, st.sampled_from([">", "qu0000", " qu0006", " QU0015É", '"']), TEXTS)
def test_ids_join_at_the_seams_of_markup_and_words(before: str, seam: str, after: str) -> None:
    if seam == '"':
        after = "qu0000" + ("" if after[:1] in set("0123456789éÉ") else after)
    elif after[:1] in set("0123456789éÉ"):
        after = "." + after
    assert encode(before + seam) + encode(after) == encode(before + seam + after)


@given(st.integers(0, 2**20 - 1), st.integers(0, 675), st.booleans())
def test_each_word_is_one_id(index: int, number: int, upper: bool) -> None:
    letters = tag_at(number).upper() if upper else tag_at(number)
    assert encode(spell(letters, index)) == [WORD + (number + 676 * upper) * 2**20 + index]
    assert tag_number(letters) == number


def test_the_digest_is_blake2b_over_the_ids_without_the_first() -> None:
    ids = encode("<|user|>hello<|end|><|assistant|>")
    expected = hashlib.blake2b(struct.pack(f"<{len(ids)}I", *ids), digest_size=8).digest()
    assert digest(ids) == int.from_bytes(expected, "big")
    assert digest([0, *ids, 0]) == digest(ids)
    assert tag_of(digest(ids)) == tag_at(digest(ids) % 676)


def test_the_digest_of_a_known_prompt_never_changes() -> None:
    known = digest(encode("<|user|>hello<|end|><|assistant|>"))
    assert (f"{known:016x}", tag_of(known)) == ("f0b8b4529f00f26d", "dx")


@pytest.mark.parametrize(
    "unit", [" qu000", "<", ">", "0", " qu1", "é", "\0", "qu0000", " qu00071", "a", " QU0007"]
)
def test_a_long_text_of_any_shape_is_encoded_piece_by_piece(unit: str) -> None:
    text = unit * (2**18 // len(unit.encode()))
    assert decode(encode(text)) == text


PARTS = (
    " qu0001",
    " qu0007é",
    " QU0007",
    "qu0000",
    "<",
    ">",
    "a",
    "0",
    " ",
    "é",
    "\0",
    " qu1048575",
    "😀",
    "ab1",
)


@given(st.lists(st.sampled_from(PARTS), min_size=200, max_size=400), st.integers(96, 300))
def test_a_text_that_is_cut_in_blocks_has_the_ids_of_the_whole(parts: list[str], block: int) -> None:
    text = "".join(parts)
    whole = encode(text)
    assert len(text) < tokens._BLOCK  # noqa: SLF001 - or the whole were in blocks itself
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_BLOCK", block)
        assert encode(text) == whole
        assert count_tokens(text) == len(whole)
