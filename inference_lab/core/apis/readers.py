"""The readers of all APIs, and which of them a body is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.choices_reader import CHOICES
from inference_lab.core.apis.messages.reader import EVENTS
from inference_lab.core.apis.responses.reader import RESPONSE_EVENTS

if TYPE_CHECKING:
    from inference_lab.core.apis.reading import FrameReader

READERS: Final[tuple[FrameReader, ...]] = (CHOICES, EVENTS, RESPONSE_EVENTS)


def reader_of(frame: dict[str, Any]) -> FrameReader | None:
    """Whose a frame is; None where it may be anybody's, as an error or a sign of life."""
    return next((reader for reader in READERS if reader.is_own(frame)), None)
