"""Where a request stands in its answer, from the prompt alone, so that any replica can continue it.

Theory of operation. No request leaves anything behind on the server. A leg can be answered all the same, since the
text of an answer records its own place:

- Word i of a channel is a tag of two letters, i with at least four digits, an `é` where i mod 8 = 7, and a blank before
  all but word 0: `qu0000 qu0001`. Reasoning has capitals, and reasoning, content and each call count from 0. So the
  last whole word of a text gives the tag, the channel and the index of the next word.
- The tag comes from the prompt without the answer (the *prompt proper*): a digest of its token ids modulo 676. No
  setting and no limit changes it, so all legs of an answer agree on it.
- The whole answer is one raw text: reasoning, content, calls, in the markup of the model's format (`templates/`). It
  is a function of the tag and of how many words each channel is to have. A leg gets the rest of that text.

`locate` finds the end of what is there already, in three steps:

1. `region_of` splits the prompt into the prompt proper and the *region*, the answer so far. The region begins after the
   last generation marker of any format, as another server may have rendered the prompt. In a prompt without a marker it
   is a guess: the last run of consecutive words of one tag, with the markup before it and between its channels.
2. `read` (`reading.py`; `call_reading.py` inside a call) reads the region as an answer that may break off at any
   character: in a word, a markup tag, a tool's name, a JSON string. It returns a `Place`: the channel, the index of the
   next word, and what is missing of what was torn.
3. A guessed region must hold a whole word and read as the beginning of an answer. If not, it is read again without the
   markup before its words, and after that it is taken for a part of the prompt. A marked region is always one: after
   text that no answer begins with, the words go on after the last whole one.

The tag is that of the words in the region, else of a torn first word; the digest counts where there is neither. So an
answer can be continued after its prompt was rendered with another template or with one more message.

`Writer` (`writer.py`) starts at the `Place`: it first completes what was torn, closes what has to be closed, then
writes words, and `pieces.py` cuts the text into frames. One law holds it together: wherever an answer is cut, the text
before the cut and the leg that follows are the whole answer (`tests/properties/test_resume_cuts.py`). `progress`, the
whole words of all channels, decides which element of a list of faults meets the leg (`legs.py`).
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from inference_lab.core.answer.cursor import Cursor
from inference_lab.core.answer.partial_answer import PartialAnswer, region_of, without_region
from inference_lab.core.answer.reading import read, read_as_call
from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.json_text import Ends, scan
from inference_lab.core.prompts.messages import CallTarget, targets_of
from inference_lab.core.tokens import digest, encode, tag_of


class ResumePoint(msgspec.Struct, frozen=True):
    """A prompt's place in its answer.

    `key` is the conversation's 64-bit key: the digest of the ids of the prompt proper. `tag` is that of the
    region's words, else the key's short form. `proper` is the prompt proper's text and `region` the answer so
    far; `place` is where that ends. `trapped` says that the region makes the model stop at once. `is_raw`: the answer
    is shown as raw text with its markup, where a call is no more than text.
    """

    key: int
    tag: str
    proper: str
    region: str
    place: Cursor
    trapped: bool = False
    is_raw: bool = False

    @property
    def progress(self) -> int:
        """Whole words passed on so far (k): over reasoning, content and each call, the last index + 1."""
        return self.place.progress

    @property
    def first_tool(self) -> CallTarget:
        """What a call would call that the request itself has no tools for: the first in the prompt's tools block."""
        return _tools_of(self.proper)[0]

    @property
    def tools(self) -> list[CallTarget]:
        """The function tools of the prompt's tools block."""
        return _tools_of(self.proper)[:-1]

    def call_place(self, template: ChatTemplate, first: Sequence[CallTarget] = ()) -> Cursor | None:
        """The region read as ending in a call's torn opening, where it could be something else too.

        `first` is what its name may become before the tools of the prompt's own.
        """
        place = read_as_call(template, self.region, lambda: [*first, *_tools_of(self.proper)])
        return place and msgspec.structs.replace(place, progress=self.place.progress)

    def place_for(self, template: ChatTemplate, targets: Sequence[CallTarget]) -> Cursor:
        """The place of an answer that calls one of the `targets`: a torn name becomes the first that it fits."""
        if not self.region:
            return self.place
        region = region_of(template, self.proper + self.region)
        region = msgspec.structs.replace(region, text=self.region)
        return read(template, region, self.tag, lambda: [*targets, *_tools_of(self.proper)])


def locate(
    template: ChatTemplate, text: str, ids: Sequence[int] | None = None, *, is_raw: bool = False
) -> ResumePoint:
    """Read a rendered prompt. `ids` are `encode(text)` where the caller has them already.

    The tag is that of the last whole word; without one, a torn first word's letters count before the key's,
    so that even a prompt that was rendered anew is continued.
    """
    region = region_of(template, text)
    while region.text:
        key = digest(encode(region.proper))
        tag = tag_of(key)
        place = read(template, region, tag, partial(_tools_of, region.proper))
        if region.marked or (place.readable and place.progress):
            trapped = region.text.endswith(template.traps)
            return ResumePoint(key, place.tag or tag, region.proper, region.text, place, trapped, is_raw)
        region = region.words_alone
    region = region if region.marked else without_region(template, text)
    return _fresh(template, region, ids, is_raw=is_raw)


def restarted(template: ChatTemplate, position: ResumePoint) -> ResumePoint:
    """The place of a server that takes no notice of the answer so far; the words keep their tag."""
    region = region_of(template, position.proper)
    region = region if region.marked else without_region(template, position.proper)
    fresh = _fresh(template, region, None, is_raw=position.is_raw)
    return msgspec.structs.replace(fresh, key=position.key, tag=position.tag)


def _fresh(
    template: ChatTemplate, region: PartialAnswer, ids: Sequence[int] | None, *, is_raw: bool
) -> ResumePoint:
    key = digest(encode(region.proper) if ids is None else ids)
    tag = tag_of(key)
    return ResumePoint(key, tag, region.proper, "", read(template, region, tag, list), is_raw=is_raw)


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
