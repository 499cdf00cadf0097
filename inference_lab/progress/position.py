"""Where a request stands in its answer, from the prompt alone, so that any replica can continue it."""

from collections.abc import Sequence

import msgspec

from inference_lab.formats import FORMATS, Format
from inference_lab.json_text import Ends, scan
from inference_lab.progress.place import Place
from inference_lab.progress.reading import read, read_as_call
from inference_lab.progress.region import Region, region_of, without_region
from inference_lab.prompts.calls import CallTarget, targets_of
from inference_lab.tokens import digest, encode, tag_of


class Position(msgspec.Struct, frozen=True):
    """A prompt's place in its answer.

    `key` is the conversation's 64-bit key: the digest of the ids of the prompt proper. `tag` is that of the
    region's words, else the key's short form. `proper` is the prompt proper's text and `region` the answer so
    far; `place` is where that ends. `trapped` says that the region makes the model stop at once.
    """

    key: int
    tag: str
    proper: str
    region: str
    place: Place
    trapped: bool = False

    @property
    def progress(self) -> int:
        """Whole words passed on so far (k): over reasoning, content and each call, the last index + 1."""
        return self.place.progress

    @property
    def first_tool(self) -> CallTarget:
        """What a call would call that the request itself has no tools for: the first in the prompt's tools block."""
        return _tools_of(self.proper)[0]

    def call_place(self, style: Format) -> Place | None:
        """The region read as ending in a call's torn opening, where it could be something else too."""
        place = read_as_call(style, self.region, lambda: _tools_of(self.proper))
        return place and msgspec.structs.replace(place, progress=self.place.progress)


def locate(style: Format, text: str, ids: Sequence[int] | None = None) -> Position:
    """Read a rendered prompt. `ids` are `encode(text)` where the caller has them already.

    The tag is that of the last whole word; without one, a torn first word's letters count before the key's,
    so that even a prompt that was rendered anew is continued.
    """
    region = region_of(style, text)
    if not region.text:
        return _fresh(style, region if region.marked else without_region(style, text), ids)
    key = digest(encode(region.proper))
    tag = tag_of(key)
    place = read(style, region, tag, lambda: _tools_of(region.proper))
    if not region.marked and not (place.readable and place.progress):
        return _fresh(style, without_region(style, text), ids)
    trapped = region.text.endswith(style.traps)
    return Position(key, place.tag or tag, region.proper, region.text, place, trapped)


def restarted(style: Format, position: Position) -> Position:
    """The place of a server that takes no notice of the answer so far; the words keep their tag."""
    region = region_of(style, position.proper)
    fresh = _fresh(style, region if region.marked else without_region(style, position.proper), None)
    return msgspec.structs.replace(fresh, key=position.key, tag=position.tag)


def _fresh(style: Format, region: Region, ids: Sequence[int] | None) -> Position:
    key = digest(encode(region.proper) if ids is None else ids)
    tag = tag_of(key)
    return Position(key, tag, region.proper, "", read(style, region, tag, list))


def _tools_of(proper: str) -> list[CallTarget]:
    """The tools block of a prompt, whichever format rendered it, and the tool called where none is there."""
    targets: list[CallTarget] = []
    for family in FORMATS.values():
        opening = family.begin + family.tools_open
        found = scan(proper, len(opening)) if proper.startswith(f"{opening}[") else None
        if found and found.ends is Ends.WHOLE:
            try:
                targets += targets_of(msgspec.json.decode(proper[len(opening) : found.end]))
            except (ValueError, RecursionError):
                continue
    return [*targets, CallTarget()]
