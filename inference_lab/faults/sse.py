"""SSE in other spellings: line ends, blanks, fields and comments around the frames of a stream.

Frames come in as this server writes them by default and go out as a death wants them; what the defaults want is not
touched, so an ordinary stream does not pass through here at all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from inference_lab.faults.death import HEALTHY, Death
from inference_lab.faults.events import Event, Frame, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference_lab.faults.stream import FaultPoint

KEYS: Final = ("eol", "space", "multiline", "comments", "id", "retry", "bom", "final_blank", "spacing")
_EOLS: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_RETRY_ALONE_MS: Final = 3000
_COMMENT: Final = b": inference-lab\n"


def respelled(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event | FaultPoint]:
    """The events with their frames in the death's spelling of SSE."""
    if all(getattr(death, key) == getattr(HEALTHY, key) for key in KEYS):
        return events
    return _respelled(events, death)


def _respelled(events: Iterator[Event | FaultPoint], death: Death) -> Iterator[Event | FaultPoint]:
    held: Frame | None = None  # the last frame may have to lose its blank line
    waiting: list[Event | FaultPoint] = []
    number = 0
    begun = False  # a block that is an event is out
    for event in events:
        if not isinstance(event, (Frame, Raw)):
            if held is None:
                yield event
            else:
                waiting.append(event)
            continue
        if held is not None:
            yield held
            yield from waiting
            waiting = []
        if isinstance(event, Raw):
            held = None
            yield event
            continue
        prefix = _prefix(death, number)
        is_first = not begun and not event.data.startswith(b":")
        begun = begun or is_first
        held = Frame(prefix + _spelled(event.data, death, number, is_first=is_first))
        number += 1
    if held is not None:
        yield held if death.final_blank else Frame(held.data.removesuffix(_EOLS[death.eol]))
        yield from waiting


def _prefix(death: Death, number: int) -> bytes:
    """What stands in front of frame `number`."""
    eol = _EOLS[death.eol]
    if number:
        return (_COMMENT.replace(b"\n", eol) * death.comments + eol) if death.comments else b""
    mark = b"\xef\xbb\xbf" if death.bom else b""
    alone = b"retry: %d" % _RETRY_ALONE_MS + eol + eol if death.retry == "alone" else b""
    return mark + alone


def _spelled(block: bytes, death: Death, number: int, *, is_first: bool) -> bytes:
    """One block in the death's spelling; a torn one keeps its tear."""
    whole = block.endswith(b"\n\n")
    lines = (block[:-2] if whole else block).split(b"\n")
    written: list[bytes] = []
    if death.id and not block.startswith(b":"):
        written.append(b"id: %d" % number)
    if is_first and isinstance(death.retry, int):
        written.append(b"retry: %d" % death.retry)
    for line in lines:
        if line.startswith(b"data: "):
            written += _data_lines(line[len(b"data: ") :], death)
        else:
            written.append(line)
    eol = _EOLS[death.eol]
    return eol.join(written) + (eol + eol if whole else b"")


def _data_lines(payload: bytes, death: Death) -> list[bytes]:
    field = b"data: " if death.space else b"data:"
    if death.spacing == "python" or death.multiline > 1:
        try:
            value = json.loads(payload)
        except ValueError:  # [DONE], plain text, a torn or malformed frame: as it is
            return [field + payload]
        if death.multiline > 1:
            indented = json.dumps(value, ensure_ascii=False, indent=1).split("\n")
            # Line breaks inside a string are escaped, so any cut between lines is one between tokens.
            kept = indented[: death.multiline - 1]
            kept.append(" ".join(line.strip() for line in indented[death.multiline - 1 :]))
            return [field + line.encode() for line in kept]
        payload = json.dumps(value, ensure_ascii=False).encode()
    return [field + payload]
