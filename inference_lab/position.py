"""Where a request stands: the answer's tag and what the prompt has already opened, from the prompt alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference_lab.formats import Format
from inference_lab.tokens import digest, encode, tag_of


@dataclass(frozen=True, slots=True)
class Position:
    """A prompt's place in its answer.

    `key` is the conversation's 64-bit key: the digest of the prompt's ids. `tag` is its short form in the
    words. `block_open` says that the prompt ends inside an open reasoning block.
    """

    key: int
    tag: str
    block_open: bool


def locate(style: Format, text: str, ids: Sequence[int] | None = None) -> Position:
    """Read a rendered prompt; `ids` are `encode(text)` where the caller has them already."""
    key = digest(encode(text) if ids is None else ids)
    opened = text.rfind(style.reasoning_open.rstrip("\n"), text.rfind(style.generation) + 1)
    closed = text.find(style.reasoning_close.rstrip("\n"), opened) >= 0
    return Position(key, tag_of(key), opened >= 0 and not closed)
