"""SSE in other spellings: line ends, blanks, fields and comments around the frames of a stream; and torn frames.

Frames come in as this server writes them by default and go out as a death wants them; what the defaults want is not
touched, so an ordinary stream does not pass through here at all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from inference_lab.core.faults.death import HEALTHY, SPELLING_KEYS, Death, at_defaults
from inference_lab.core.stream.events import NOTHING, Draft, Frame, Long, Torn, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

"""The axes that act here, on every frame alike but for `final_blank`."""

_EOLS: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_RETRY_ALONE_MS: Final = 3000
_COMMENT: Final = b": inference-lab"
_BOM: Final = b"\xef\xbb\xbf"
_LEADS: Final = (b"\xc3\xa9", b"\xc3\x89")  # é, É


def respelled(events: Iterator[Draft], death: Death) -> Iterator[Draft]:
    """The events with their frames in the death's spelling of SSE, and a torn one cut."""
    plain = at_defaults(death, SPELLING_KEYS)
    if plain and death.tear == HEALTHY.tear:
        return events
    return _respelled(events, _Speller(death))


def _respelled(events: Iterator[Draft], speller: _Speller) -> Iterator[Draft]:
    held: Frame | None = None  # the last frame may have to lose its blank line
    waiting: list[Draft] = []
    for event in events:
        if isinstance(event, (Frame, Torn)):
            if held is not None:
                yield held
                yield from waiting
                waiting = []
            if isinstance(event, Frame):
                held = Frame(speller.before() + speller.spelled(event.data), said=event.said)
            else:
                whole = speller.spelled(event.data)
                part = torn(whole, speller.death)
                told = event.said if is_read(whole, len(part)) else NOTHING
                held = Frame(speller.before() + part, said=told)
        elif isinstance(event, Turn):
            yield event
        elif held is None or isinstance(event, Long):
            if held is not None:
                yield held
                yield from waiting
                held, waiting = None, []
            yield event
        else:
            waiting.append(event)
    if held is not None:
        # Without its blank line no parser gives a frame out.
        yield held if speller.death.final_blank else Frame(held.data.removesuffix(speller.eol))
        yield from waiting


def is_read(frame: bytes, size: int) -> bool:
    """Whether a parser gives out a frame of which `size` bytes have come: a blank line's CR is enough."""
    return size >= len(frame) - frame.endswith(b"\r\n")


def check_torn(frame: bytes, death: Death, number: int) -> None:
    """Refuse a tear that the frame, as it is going to be spelled after `number` events, has no room for.

    Raises:
        ValueError: see `torn`.
    """
    torn(_Speller(death, number).spelled(frame), death)


def torn(frame: bytes, death: Death) -> bytes:
    """The part of a frame that still goes out.

    Raises:
        ValueError: the frame has not so many bytes.
    """
    tear = death.tear
    if tear.word == "byte":
        if tear.number > len(frame):
            raise ValueError(f"tear=byte:{tear.number} is past the frame, which has {len(frame)} bytes")
        return frame[: tear.number]
    if tear.word == "utf8":
        return frame[: max(frame.rfind(accent) for accent in _LEADS) + 1]
    cut = len(frame) // 2
    while frame[cut] & 0xC0 == 0x80:  # a UTF-8 continuation byte (RFC 3629 section 3): back to the character
        cut -= 1
    return frame[:cut]


def is_event(block: bytes) -> bool:
    """Whether a whole block counts as an event, which a comment does not."""
    return not block.startswith(b":")


class _Speller:
    """Spells blocks one after the other; it counts events from `number` on, since some are spelled by theirs."""

    def __init__(self, death: Death, number: int = 0) -> None:
        self.death = death
        self.eol = _EOLS[death.eol]
        self._begun = False
        self._number = number
        self._field = b"data: " if death.space else b"data:"

    def before(self) -> bytes:
        """What stands before the next block."""
        death, eol = self.death, self.eol
        if self._begun:
            return (_COMMENT + eol) * death.comments + eol if death.comments else b""
        self._begun = True
        mark = _BOM if death.bom else b""
        return mark + (b"retry: %d" % _RETRY_ALONE_MS + eol * 2 if death.retry == "alone" else b"")

    def spelled(self, block: bytes) -> bytes:
        """One block. What is no event (a comment, a proxy's own line) gets no fields."""
        death, eol = self.death, self.eol
        whole = block.endswith(b"\n\n")
        lines = block.removesuffix(b"\n\n").split(b"\n")
        written: list[bytes] = []
        if whole and is_event(block):
            if death.id:
                written.append(b"id: %d" % self._number)
            if self._number == 0 and isinstance(death.retry, int):
                written.append(b"retry: %d" % death.retry)
            self._number += 1
        for line in lines:
            if line.startswith(b"data: "):
                written += [self._field + part for part in self._payload(line[len(b"data: ") :])]
            else:
                written.append(line)
        return eol.join(written) + (eol * 2 if whole else b"")

    def _payload(self, payload: bytes) -> list[bytes]:
        """The payload of one data line as that of one or several."""
        death = self.death
        if death.spacing == "compact" and death.multiline == 1:
            return [payload]
        try:
            value = json.loads(payload)
        except ValueError:  # the end, plain text, a malformed frame: as it is
            return [payload]
        separators = (", ", ": ") if death.spacing == "python" else (",", ":")
        if death.multiline == 1:
            return [json.dumps(value, ensure_ascii=False, separators=separators).encode()]
        pretty = json.dumps(value, ensure_ascii=False, indent=1, separators=(",", separators[1])).split("\n")
        # Line breaks inside a string are escaped, so any cut between lines is one between tokens.
        last = " ".join(line.strip() for line in pretty[death.multiline - 1 :])
        kept = [*pretty[: death.multiline - 1], last]
        # JSON may be followed by as many line breaks as one likes.
        blank = [""] * (death.multiline - len(kept))
        return [line.encode() for line in kept + blank]
