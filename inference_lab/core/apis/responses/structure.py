"""Whether a response's events come as they may: in order, numbered, in items that are closed with what they said.

Memory is constant: of what an item has said there is a digest, and of the items that were closed one of all.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.reading import Misplaced, count_of, list_of, object_of, word_of

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
_OPEN_ITEMS: Final = 16
"""So many are followed at once; one is open at a time."""


class _Item:
    """An item that is open: its id, its parts, and what it has said."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.parts = 0
        self.said = blake2b()
        self.has_said = False

    def add(self, delta: str) -> None:
        self.said.update(_encoded(delta))
        self.has_said = True

    def has_not_said(self, text: str) -> bool:
        """Whether this is not the sum of the deltas; where there were none, it is all that was said."""
        return self.has_said and blake2b(_encoded(text)).digest() != self.said.digest()


class ResponseStructure:
    """See `reading.Structure`; `is_resumed`: the stream may begin anywhere, and have items that began before it."""

    def __init__(self, *, is_resumed: bool = False) -> None:
        self._is_resumed = is_resumed
        self._has_begun = is_resumed
        self._has_ended = self._has_unnumbered = False
        self._number: int | None = None
        self._open: dict[int | None, _Item] = {}
        self._items = 0
        self._done = blake2b()
        self._output_differs = False

    def take(self, name: str | None, frame: dict[str, Any]) -> Iterator[Misplaced]:
        """See `Structure.take`."""
        kind = word_of(frame.get("type"))
        if not kind:
            return
        if name is not None and name != kind:
            yield Misplaced(
                "event_name", f"an event of type {kind[:40]!r} comes under the name {name[:40]!r}"
            )
        yield from self._count(kind, frame)
        if kind not in _ENDS and kind not in _OPENINGS and not kind.startswith(_OF_ITEMS):
            return
        if self._has_ended:
            finding = "two_finishes" if kind in _ENDS else "event_order"
            yield Misplaced(finding, f"{kind[:60]} comes after the end of the response")
            return
        if kind == "response.created":
            if self._has_begun and not self._is_resumed:
                yield Misplaced("event_order", "a second response.created")
        elif not self._has_begun:
            yield Misplaced("event_order", f"{kind[:60]} comes before response.created")
        self._has_begun = True
        if kind in _ENDS:
            yield from self._end(kind, object_of(frame.get("response")))
        elif kind not in _OPENINGS:
            yield from self._item(kind, frame)

    def end(self, finish: str | None) -> Iterator[Misplaced]:
        """See `Structure.end`."""
        del finish
        if self._open:
            yield Misplaced("unfinished_item", f"{len(self._open)} items are not closed at a normal end")
        if self._output_differs:
            yield Misplaced("output_items", "the last event's output is not the items that were closed")

    def whole(self, body: dict[str, Any]) -> Iterator[Misplaced]:
        """See `Structure.whole`: an object has no order."""
        del body
        yield from ()

    def _count(self, kind: str, frame: dict[str, Any]) -> Iterator[Misplaced]:
        number = count_of(frame.get("sequence_number"))
        if number is None:
            if kind.startswith("response.") or kind == "error":  # a sign of life may have none
                self._has_unnumbered = True
                if self._number is not None:
                    yield Misplaced("sequence_number", f"an event without a number after {self._number}")
            return
        if self._number is None:
            if self._has_unnumbered:
                yield Misplaced("sequence_number", f"the first number, {number}, after events without one")
            elif number and not self._is_resumed:
                yield Misplaced("sequence_number", f"number {number} where 0 is the first")
        elif number != self._number + 1:
            yield Misplaced("sequence_number", f"number {number} where {self._number + 1} is next")
        self._number = number

    def _end(self, kind: str, response: dict[str, Any]) -> Iterator[Misplaced]:
        self._has_ended = True
        status = response.get("status")
        if kind == "response.completed" and status not in ("completed", "incomplete"):  # vLLM's at the limit
            yield Misplaced("event_order", f"a completed response whose status is {str(status)[:20]!r}")
        if kind == "response.failed" or self._is_resumed:
            return
        output = blake2b()
        for item in list_of(response.get("output")):
            _add_item(output, object_of(item))
        self._output_differs = output.digest() != self._done.digest()

    def _item(self, kind: str, frame: dict[str, Any]) -> Iterator[Misplaced]:
        index = count_of(frame.get("output_index"))
        if kind == "response.output_item.added":
            if index != self._items and not self._is_resumed:
                yield Misplaced("item_index", f"item {_shown(index)} is added where {self._items} is next")
            self._items += 1
            if len(self._open) < _OPEN_ITEMS:
                self._open[index] = _Item(word_of(object_of(frame.get("item")).get("id")))
            return
        item = self._open.get(index)
        if item is None:
            if not self._is_resumed:
                yield Misplaced("event_order", f"{kind[:60]} of item {_shown(index)}, which is not open")
            return
        closed = object_of(frame.get("item"))
        ident = (
            word_of(closed.get("id"))
            if kind == "response.output_item.done"
            else word_of(frame.get("item_id"))
        )
        if ident != item.ident:
            yield Misplaced(
                "item_id", f"{kind[:60]} of item {ident[:40]!r} where {item.ident[:40]!r} is open"
            )
        if kind == "response.content_part.added":
            if count_of(frame.get("content_index")) != item.parts:
                yield Misplaced("item_index", f"a part of item {_shown(index)} that is not the next")
            item.parts += 1
        elif (
            kind.startswith("response.output_text.")
            and count_of(frame.get("content_index")) != item.parts - 1
        ):
            yield Misplaced("item_index", f"text in a part of item {_shown(index)} that is not open")
        if kind.endswith(".delta"):
            item.add(word_of(frame.get("delta")))
        elif kind.endswith(".done"):
            text = _text_of(frame, closed)
            if text is not None and item.has_not_said(text):
                yield Misplaced("done_text", f"{kind[:60]} does not repeat what the deltas said")
        if kind == "response.output_item.done":
            del self._open[index]
            _add_item(self._done, closed)


def _text_of(frame: dict[str, Any], item: dict[str, Any]) -> str | None:
    """What closing events repeat: an item, its part, or its text alone."""
    if item:
        return _said_by(item)
    for value in (frame.get("text"), frame.get("arguments"), object_of(frame.get("part")).get("text")):
        if isinstance(value, str):
            return value
    return None


def _said_by(item: dict[str, Any]) -> str | None:
    """What an item says; None for one of a kind that says nothing."""
    if isinstance(arguments := item.get("arguments"), str):
        return arguments
    parts = [*list_of(item.get("summary")), *list_of(item.get("content"))]
    texts = [text for part in parts if isinstance(text := object_of(part).get("text"), str)]
    return "".join(texts) if texts else None


def _add_item(digest: Any, item: dict[str, Any]) -> None:  # noqa: ANN401 - a digest of hashlib's
    for text in (word_of(item.get("type")), word_of(item.get("id")), _said_by(item) or ""):
        data = _encoded(text)
        digest.update(b"%d:" % len(data) + data)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _shown(index: int | None) -> str:
    return "without an index" if index is None else str(index)[:20]
