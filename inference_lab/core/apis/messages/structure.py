"""Whether a message's events come as they may: in order, under their names, in blocks that open and close.

What they say is judged elsewhere, as that of any API. Memory is constant: of a block its type and the digest of its
thinking is kept, and of those that are closed only how many there were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.messages.signature import Signature
from inference_lab.core.apis.reading import Misplaced, count_of, list_of, object_of, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOWN_EVENTS: Final = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    }
)
"""Events of this API; a client passes over others."""
DELTAS: Final = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
}
"""The deltas that a block of a type can have."""
_ANYWHERE: Final = frozenset({"ping", "error"})
_ERASED: Final = "erased"
"""What dynamo signs with: nothing that anybody could check."""


class MessageStructure:
    """See `reading.Structure`."""

    def __init__(self) -> None:
        self._has_begun = self._has_ended = False
        self._blocks = 0
        self._open: tuple[int | None, str] | None = None  # its index and its type
        self._thinking: Signature | None = None
        self._signed = ""
        self._has_signature = False
        self._unsigned = 0
        self._has_call = self._has_finished = False

    def take(self, name: str | None, frame: dict[str, Any]) -> Iterator[Misplaced]:
        """See `Structure.take`."""
        kind = frame.get("type")
        if not isinstance(kind, str):
            if frame.get("error") is not None:
                yield Misplaced("event_name", "an error without a type, which no SDK sees")
            return
        if name != kind:
            shown = "has no event line" if name is None else f"comes under the name {name[:40]!r}"
            yield Misplaced("event_name", f"an event of type {kind[:40]!r} {shown}")
        if kind not in KNOWN_EVENTS or kind in _ANYWHERE:
            return
        yield from self._order(kind)
        if kind == "content_block_start":
            yield from self._start(frame)
        elif kind == "content_block_delta":
            yield from self._delta(frame)
        elif kind == "content_block_stop":
            yield from self._stop(frame)
        elif kind == "message_delta" and object_of(frame.get("delta")).get("stop_reason") is not None:
            if self._has_finished:
                yield Misplaced("two_finishes", "a second message_delta with a stop_reason")
            self._has_finished = True

    def whole(self, body: dict[str, Any]) -> Iterator[Misplaced]:
        """See `Structure.whole`."""
        has_call = any(object_of(block).get("type") == "tool_use" for block in list_of(body.get("content")))
        if has_call and body.get("stop_reason") == "end_turn":
            yield Misplaced("phantom_call", "a call, and stop_reason 'end_turn'")

    def end(self, finish: str | None) -> Iterator[Misplaced]:
        """See `Structure.end`."""
        if self._open is not None:
            yield Misplaced("unclosed_block", f"block {self._open[0]} is open at a normal end")
        if self._unsigned and self._has_signature:
            yield Misplaced("signature", f"{self._unsigned} thinking blocks were closed without a signature")
        if self._has_call and finish == "stop":
            yield Misplaced("phantom_call", "a call, and stop_reason 'end_turn'")

    def _order(self, kind: str) -> Iterator[Misplaced]:
        if self._has_ended:
            yield Misplaced("event_order", f"{kind} comes after message_stop")
        elif kind == "message_start":
            if self._has_begun:
                yield Misplaced("event_order", "a second message_start")
            self._has_begun = True
        elif not self._has_begun:
            self._has_begun = True  # said once
            yield Misplaced("event_order", f"{kind} comes before message_start")
        self._has_ended = self._has_ended or kind == "message_stop"

    def _start(self, frame: dict[str, Any]) -> Iterator[Misplaced]:
        index, kind = count_of(frame.get("index")), word_of(object_of(frame.get("content_block")).get("type"))
        if self._open is not None:
            yield Misplaced(
                "block_index", f"block {_shown(index)} begins while block {_shown(self._open[0])} is open"
            )
        elif index != self._blocks:
            yield Misplaced("block_index", f"block {_shown(index)} begins where {self._blocks} is next")
        self._blocks = self._blocks + 1 if index is None else index + 1
        self._open = (index, kind)
        self._thinking = Signature() if kind == "thinking" else None
        self._signed = ""
        self._has_call = self._has_call or kind == "tool_use"

    def _delta(self, frame: dict[str, Any]) -> Iterator[Misplaced]:
        index, delta = count_of(frame.get("index")), object_of(frame.get("delta"))
        kind = word_of(delta.get("type"))
        if self._open is None or self._open[0] != index:
            yield Misplaced("block_index", f"a delta of block {_shown(index)}, which is not open")
            return
        allowed = DELTAS.get(self._open[1])
        if allowed is not None and kind not in allowed:
            yield Misplaced("block_type", f"a {kind[:40]} in a block of type {self._open[1]}")
        if self._thinking is None:
            return
        if isinstance(text := delta.get("thinking"), str):
            self._thinking.add(text)
        if kind == "signature_delta":
            self._signed = word_of(delta.get("signature"))

    def _stop(self, frame: dict[str, Any]) -> Iterator[Misplaced]:
        index = count_of(frame.get("index"))
        if self._open is None or self._open[0] != index:
            yield Misplaced("block_index", f"the end of block {_shown(index)}, which is not open")
            return
        self._open = None
        if self._thinking is None:
            return
        if self._signed in {"", _ERASED}:
            self._unsigned += 1
        else:
            self._has_signature = True
            if self._signed != self._thinking.text:
                yield Misplaced(
                    "signature", f"the signature of block {_shown(index)} is not that of its text"
                )
        self._thinking = None


def _shown(index: object) -> str:
    return str(index)[:20] if isinstance(index, int) else "without an index"
