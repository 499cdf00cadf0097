"""Whether a response's events come as they may: in order, numbered, in items that are closed with what they said."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.reading import Misplaced

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS: Final = frozenset(
    {"response.completed", "response.incomplete", "response.cancelled", "response.failed"}
)
_OPENINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_OF_ITEMS: Final = tuple(
    f"response.{word}."
    for word in (
        "output_item",
        "content_part",
        "output_text",
        "reasoning_text",
        "reasoning_summary_part",
        "reasoning_summary_text",
        "function_call_arguments",
    )
)


class ResponseStructure:
    """See `reading.Structure`."""

    def __init__(self) -> None:
        self._has_begun = self._has_ended = False
        self._number: int | None = None
        self._open: dict[object, object] = {}  # the digest of what each open item has said, by its index
        self._items = 0
        self._done = 0
        self._is_short = False

    def take(self, name: str | None, frame: dict[str, Any]) -> Iterator[Misplaced]:
        """See `Structure.take`."""
        kind = frame.get("type")
        if not isinstance(kind, str):
            return
        if name is not None and name != kind:
            yield Misplaced(
                "event_name", f"an event of type {kind[:40]!r} comes under the name {name[:40]!r}"
            )
        yield from self._count(frame)
        if kind not in _ENDS and kind not in _OPENINGS and not kind.startswith(_OF_ITEMS):
            return
        if self._has_ended:
            yield Misplaced("event_order", f"{kind[:60]} comes after the end of the response")
        elif kind == "response.created":
            if self._has_begun:
                yield Misplaced("event_order", "a second response.created")
        elif not self._has_begun:
            yield Misplaced("event_order", f"{kind[:60]} comes before response.created")
        self._has_begun = True
        if kind in _ENDS:
            self._has_ended = True
            response = frame.get("response")
            output = response.get("output") if isinstance(response, dict) else None
            self._is_short = (
                kind != "response.failed" and len(output if isinstance(output, list) else ()) != self._done
            )
        elif kind.startswith(_OF_ITEMS):
            yield from self._item(kind, frame)

    def end(self, finish: str | None) -> Iterator[Misplaced]:
        """See `Structure.end`."""
        del finish
        if self._open:
            yield Misplaced("unfinished_item", f"{len(self._open)} items are not closed at a normal end")
        if self._is_short:
            yield Misplaced(
                "output_items", f"the last event's output is not the {self._done} items that were closed"
            )

    def _count(self, frame: dict[str, Any]) -> Iterator[Misplaced]:
        number = frame.get("sequence_number")
        expected = 0 if self._number is None and not self._has_begun else (self._number or 0) + 1
        if not isinstance(number, int) or isinstance(number, bool):
            if self._number is not None:
                yield Misplaced("sequence_number", f"an event without a number after {self._number}")
            return
        if number != expected:
            yield Misplaced("sequence_number", f"number {number} where {expected} is next")
        self._number = number

    def _item(self, kind: str, frame: dict[str, Any]) -> Iterator[Misplaced]:
        index = frame.get("output_index")
        if kind == "response.output_item.added":
            if index != self._items:
                yield Misplaced("item_index", f"item {_shown(index)} is added where {self._items} is next")
            self._items += 1
            self._open[_key(index)] = blake2b()
            return
        said = self._open.get(_key(index))
        if said is None:
            yield Misplaced("event_order", f"{kind[:60]} of item {_shown(index)}, which is not open")
            return
        delta = frame.get("delta")
        if kind.endswith(".delta") and isinstance(delta, str):
            said.update(delta.encode("utf-8", "surrogatepass"))  # type: ignore[attr-defined] # a digest
        for text in (frame.get("text"), frame.get("arguments")):
            if kind.endswith(".done") and isinstance(text, str):
                whole = blake2b(text.encode("utf-8", "surrogatepass")).digest()
                if whole != said.digest():  # type: ignore[attr-defined] # as above
                    yield Misplaced("done_text", f"{kind[:60]} does not repeat what the deltas said")
        if kind == "response.output_item.done":
            del self._open[_key(index)]
            self._done += 1


def _key(index: object) -> object:
    return index if isinstance(index, int) else None


def _shown(index: object) -> str:
    return str(index)[:20] if isinstance(index, int) else "without an index"
