"""What goes over HTTP/1.0 is what goes over HTTP/1.1 without its chunks, for any two values of axes, or is refused."""

from __future__ import annotations

import pytest

from inference_lab.core.faults.applies import UNSEEN, needs_http_1_1
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.stream.chunks import Spelled, shown
from inference_lab.core.stream.events import Frame, Head
from tests.reference_model.contract import CHAT
from tests.support.axes_scripts import played, served
from tests.support.axes_values import ON_LEGS, PAIRED, changes_of, directive_of, settings_for, values_of
from tests.support.rawclient import dechunk

FRAMING = (
    "frame_bytes",
    "segment",
    "length",
    "chunk_error",
    "encoding",
    "close",
    "status",
    "answer_as",
    "at",
)


@pytest.mark.parametrize("key", FRAMING)
def test_a_script_without_chunks_is_the_body_of_the_one_with_them(key: str) -> None:
    """Where nothing says that it cannot be: then it is one of the values that need them."""
    failures: list[str] = []
    met = refused = 0
    for value in values_of(key):
        first = settings_for(key, value)
        pairs = [(other, second) for other in PAIRED if other != key for second in changes_of(other)]
        for other, second in [(key, value), *pairs]:
            settings = {**settings_for(other, second), **first, other: second, key: value}
            events = served(tuple(settings.items()), CHAT, leg=key in ON_LEGS or other in ON_LEGS)
            if events is None:
                continue
            directive = directive_of(settings.items())
            if needs_http_1_1(parse_directive(directive).death) is not None:
                refused += 1
                if not any(settings.get(name) in words for name, words, _ in UNSEEN):
                    failures.append(f"{directive}: refused")
                continue
            met += 1
            head, wire = events[0], played(events).wire
            body = dechunk(wire).body if isinstance(head, Head) and head.framing == "stream" else wire
            old = shown(events, http="1.0")
            alone = (event.data for event in old if isinstance(event, (Frame, Spelled)))
            if b"".join(alone) != body:
                failures.append(f"{directive}: other bytes")
    assert not failures, "\n".join(failures[:20]) + f"\n… {len(failures)} of {met}"
    assert met
    assert bool(refused) or key not in {name for name, _, _ in UNSEEN}
