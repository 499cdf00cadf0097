"""A tear at a byte: every byte of the frame that is torn, and not one more."""

from __future__ import annotations

import pytest

from inference_lab.core.answer.pieces import Piece, Pieces, Run
from inference_lab.core.stream.events import Frame
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.axes_scripts import served
from tests.support.axes_values import ON_LEGS


def frames(path: str, leg: bool, settings: str) -> list[bytes] | None:
    pairs = (part.partition("=")[::2] for part in settings.split(";") if part)
    events = served(tuple(pairs), path, leg=leg)
    return None if events is None else [event.data for event in events if isinstance(event, Frame)]


SPELLINGS = (
    "",
    "usage=every_chunk",
    "usage=every_chunk;tokens_per_frame=varied",
    "usage=every_chunk;content=reasoning",
    "usage=every_chunk;content=tool_call",
    "usage=null_every_chunk;empty_finish=true",
    "id=true",
    "id=true;retry=12345;multiline=3",
    "retry=12345",
    "id=true;heartbeat=event;ttft_ms=96000",
    "id=true;heartbeat=empty_delta;ttft_ms=9000;beats=5;usage=every_chunk",
    "id=true;heartbeat=ping;ttft_ms=96000",
    "spacing=python;eol=crlf",
    "space=false",
    *(f"dialect={name};id=true;usage=every_chunk" for name in ("openai", "vllm", "dynamo", "openrouter")),
    "dialect=openrouter;empty_finish=true",
    "role_again=true;id=true",
    "usage=every_chunk;usage_off_by=+98",
    "usage=every_chunk;bos_shift=true",
    "usage=every_chunk;skip=3;id=true",
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("settings", SPELLINGS)
def test_every_byte_of_the_torn_frame_may_be_the_last_and_no_other(settings: str, path: str) -> None:
    leg = any(f"{key}=" in settings for key in ON_LEGS)
    met = 0
    for before in (0, 1, 2, 8, 9, 10, 11, 98, 99, 100, 101):
        whole = frames(path, leg, f"after_chunks={before + 1};finish=none;done=false;{settings}")
        if whole is None:  # what has no role frame, or no word yet
            continue
        size = len(whole[-1])
        for byte in (size, size - 1, 1):
            cut = frames(path, leg, f"after_chunks={before};tear=byte:{byte};close=fin;{settings}")
            if cut is None:
                assert byte < size, (before, byte)  # where too little is left for a setting to show
                continue
            assert cut[-1] == whole[-1][:byte], (before, byte)
            met += byte == size
        assert frames(path, leg, f"after_chunks={before};tear=byte:{size + 1};close=fin;{settings}") is None
    assert met or (path == COMPLETIONS and "role_again" in settings)


def test_the_ids_of_the_first_pieces_are_counted_at_once() -> None:
    pieces = Pieces(
        (
            Piece("reasoning", "A", "<A", 3, 1),
            Run("reasoning", "QU", 1, 4),
            Piece("text", "a", ">a", 5, 1),
            Run("text", "qu", 1, None),
        )
    )
    made = [piece.token_count for piece, _ in zip(pieces, range(20), strict=False)]
    for count in range(20):
        assert pieces.token_count(count) == sum(made[:count])
    assert pieces.token_count(2**40) == 2**40 + 2 + 4
