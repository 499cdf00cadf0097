"""The script of a response: a fault or a healthy answer turned into head, frames, pauses and exactly one ending.

Pure and lazy: the same arguments give the same events for ever, in constant memory for any number of frames.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec

from inference_lab.core.faults.constraints import COUNTED_FRAMES
from inference_lab.core.faults.death import HEALTHY, SPELLING_KEYS, Close, Death, at_defaults, changed
from inference_lab.core.stream import framing, sse
from inference_lab.core.stream.answer_frames import AnswerFrames
from inference_lab.core.stream.content import Cut
from inference_lab.core.stream.edits import Scene, edited
from inference_lab.core.stream.events import (
    TURN,
    TURN_BYTES,
    BodyEnd,
    Draft,
    Event,
    FaultPoint,
    Frame,
    Head,
    Pause,
    Stub,
    Torn,
    Trailers,
    Turn,
    single,
)
from inference_lab.core.stream.stream_checks import check_stream
from inference_lab.core.stream.whole_answer import answered, head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from inference_lab.core.apis.contract import Form, StreamWriter
    from inference_lab.core.apis.dialects import Dialect
    from inference_lab.core.stream.content import AnswerSource
    from inference_lab.core.stream.whole_answer import Whole

# What each close adds to the stream, and the ending it comes to.
_ENDINGS: Final[dict[str, tuple[Stub | Trailers | None, Close]]] = {
    "terminator": (None, Close.TERMINATOR),
    "fin": (None, Close.FIN),
    "fin_close": (None, Close.FIN),
    "eof": (None, Close.FIN),
    "rst": (None, Close.RST),
    "hang": (None, Close.HANG),
    "tls_raw": (None, Close.TLS_RAW),
    "terminator_rst": (None, Close.TERMINATOR_RST),
    "idle_close": (None, Close.TERMINATOR),
    "stale": (None, Close.STALE),
    "partial_terminator": (Stub("terminator"), Close.FIN),
    "torn_chunk": (Stub("chunk", b'data: {"id":"'), Close.FIN),
}
_TRAILERS: Final = Trailers(((b"x-inference-lab-trailer", b"late"),))

_FORM_KEYS: Final = (
    "usage_off_by",
    "instant_stop",
    "bos_shift",
    "reasoning_key",
    "given",
    "usage",
    "empty_finish",
)
"""The axes that act inside the frames."""

_FRAME_KEYS: Final = (*SPELLING_KEYS, "tear", "segment", "encoding", "chunk_error", "length")
"""The axes that look at each frame after it was made."""

_KEYS_OF_ALL_FRAMES: Final = (*SPELLING_KEYS, "segment", "empty_finish")
"""The axes that act on all frames alike, `final_blank` and some segments on whichever there are."""

MOST_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""The longest stream that is collected to be sent in one piece."""

_USAGE_IN_EACH: Final[dict[str, Literal["null", "zero", "so_far"]]] = {
    "every_chunk": "so_far",
    "null_every_chunk": "null",
    "zero_every_chunk": "zero",
}

_E = TypeVar("_E")
_PROBED: Final = 64
"""So many frames of a stream show whether an axis that acts on all frames alike acts at all."""


class _Shape(NamedTuple):
    """What of a death is asked for each time that it is met: whether it changes the form, and each frame made."""

    is_formed: bool
    is_reframed: bool
    keys_of_all_frames: tuple[str, ...]
    is_cut: bool
    is_counted: bool


@lru_cache(maxsize=256)
def _shape_of(death: Death) -> _Shape:
    return _Shape(
        is_formed=not at_defaults(death, _FORM_KEYS),
        is_reframed=not at_defaults(death, _FRAME_KEYS),
        keys_of_all_frames=tuple(changed(death, _KEYS_OF_ALL_FRAMES)),
        is_cut=bool(death.gap_ms) and isinstance(death.segment, int),
        is_counted=death.length != "none" or death.segment == "whole",
    )


def fault_script(
    death: Death,
    writer_of: Callable[[Form], StreamWriter],
    dialect: Dialect,
    source: AnswerSource,
    *,
    form: Form,
    whole: Whole,
    streaming: bool = True,
) -> Iterator[Event]:
    """The events of a faulted response; `whole` makes the JSON of an answer that is not streamed, and what it says.

    `form` is what the request asks of the frames that `writer_of` writes, as `dialect` has them; the death adds its
    own.

    Raises:
        ValueError: what only shows when the script is made: a tear or a padding that the frame does not allow, a
            channel the answer has left. It is raised before the first event; after the turns that come first, where
            a long stream is counted before its head.
    """
    if death.at == "request":
        events: Iterator[Draft] = iter([Pause(death.ttft_ms)] if death.ttft_ms else [])
    elif not death.may_stream or not (streaming or death.answer_as == "sse"):
        events = _begun(answered(death, writer_of(form), whole))
    else:

        def stream(death: Death) -> Iterator[Draft]:
            shape = _shape_of(death)
            formed = _formed(form, death) if shape.is_formed else form
            events = _death_of(death, partial(writer_of, formed), source, form)
            return single(events) if shape.is_reframed else events

        events = _streamed(death, dialect, stream)
    return _ended(events, death)


def _formed(form: Form, death: Death) -> Form:
    """The form with what the death wants inside each frame."""
    # The stop token of an instant stop is counted, though it says nothing.
    off_by = death.usage_off_by if isinstance(death.usage_off_by, int) else int(death.instant_stop)
    return msgspec.structs.replace(
        form,
        prompt_tokens=form.prompt_tokens + death.bos_shift,
        tokens_off_by=off_by,
        reasoning_key=death.given_reasoning_key,
        usage_in_each=_USAGE_IN_EACH.get(death.usage, ""),
        empty_finish=death.empty_finish,
    )


def _death_of(
    death: Death, new_writer: Callable[[], StreamWriter], source: AnswerSource, form: Form
) -> Iterator[Draft]:
    """The frames of a death, in plain SSE and with their pauses; dressing and framing come later.

    Raises:
        ValueError: this answer does not allow the death: see `Cut` and `check_stream`.
    """
    cut, writer = Cut(death, source), new_writer()
    check_stream(death, new_writer, cut)
    answer = AnswerFrames(death, writer, cut, usage_asked=form.usage_asked)
    return edited(answer.frames(), Scene(death, writer, cut, answer))


def _ended(events: Iterator[Draft], death: Death) -> Iterator[Event]:
    for event in events:
        if not isinstance(event, (FaultPoint, Torn)):
            yield event
    last, close = _ENDINGS[death.close]
    if death.chunk_error == "trailer":
        last, close = _TRAILERS, Close.COMPLETE if close is Close.TERMINATOR else close
    if last is not None:
        yield last
    yield close


def _streamed(death: Death, dialect: Dialect, stream: Callable[[Death], Iterator[Draft]]) -> Iterator[Draft]:
    """The events of a stream; what refuses it is raised now, before the first of them."""
    drafts, shape = stream(death), _shape_of(death)
    for key in shape.keys_of_all_frames:
        _require_effect(death, key, stream)
    if shape.is_cut:
        pieces = (event for event in _spelled(stream(death), death) if isinstance(event, Frame))
        if len(list(islice(pieces, 2))) < 2:
            raise ValueError("gap_ms changes nothing in this stream, which is one piece")
    if shape.is_counted:
        return _begun(_counted(death, dialect, drafts, sse.respelled(stream(death), death)))
    head = _head_of(death, dialect)
    return chain((head,), framing.broken(_spelled(drafts, death), death) if shape.is_reframed else drafts)


@lru_cache(maxsize=256)
def _head_of(death: Death, dialect: Dialect) -> Head:
    return head_of(death, dialect, dialect.content_type, "none" if death.close == "eof" else "stream")


def _counted(
    death: Death, dialect: Dialect, drafts: Iterator[Draft], body: Iterator[Draft]
) -> Iterator[Draft]:
    """The events of `drafts` once its bytes are counted, which is done in `body`."""
    size = yield from _measure(body, death)
    content_length, readable_bytes = None, None
    if death.length != "none":
        offset = 0 if death.length == "both" else int(death.length)
        content_length = size + offset
        if content_length < 0:
            raise ValueError(f"length={offset} is more than the {size} bytes that the body has")
        readable_bytes = content_length if offset < 0 else None
    body_end: BodyEnd = "none" if death.close == "eof" else "stream"
    if death.length not in {"none", "both"}:
        body_end = "length"
    yield head_of(death, dialect, dialect.content_type, body_end, content_length)
    yield from framing.broken(_spelled(drafts, death, readable_bytes), death)


def _begun(events: Iterator[_E]) -> Iterator[_E]:
    """The events, the first of which is made now."""
    return chain((next(events),), events)


def from_head_on(script: Iterator[Event]) -> Generator[Event, None, Iterator[Event]]:
    """The script without the turns before its first event, in which it may still be refused."""
    for event in script:
        if not isinstance(event, Turn):
            return chain((event,), script)
        yield event
    return script


def _spelled(events: Iterator[Draft], death: Death, readable_bytes: int | None = None) -> Iterator[Draft]:
    events = sse.respelled(events, death)
    if readable_bytes is not None:
        events = framing.ended_at(events, readable_bytes)
    return framing.segmented(framing.coded(events, death), death)


def _require_effect(death: Death, key: str, stream: Callable[[Death], Iterator[Draft]]) -> None:
    """Refuse an axis of all frames that changes none of the first, of which there may be too few, or none.

    Raises:
        ValueError: it has no effect.
    """
    segment = death.segment if key == "segment" else HEALTHY.segment
    beats = min(death.beats, 2) if isinstance(death.beats, int) else 2
    probe = msgspec.structs.replace(death, segment=segment, delay_ms=0, beats=beats)
    # Whatever is in it: one piece, or one send each, and a last frame.
    on_any = segment in {"whole", 1} or key == "final_blank"
    without = msgspec.structs.replace(probe, **{key: getattr(HEALTHY, key)})
    try:
        others: Iterator[bytes] = iter(()) if on_any else _first_pieces(without, stream)
        has_effect = any(one != other for one, other in zip_longest(_first_pieces(probe, stream), others))
    except ValueError:  # a tear for which the frame is long enough only as it is spelled and numbered
        return
    if not has_effect:
        raise ValueError(f"{key} changes nothing in this stream, which has no place for it")


def _first_pieces(death: Death, stream: Callable[[Death], Iterator[Draft]]) -> Iterator[bytes]:
    """Made one by one, since most often the first shows the difference."""
    drafts = (draft for draft in single(stream(death)) if not isinstance(draft, Turn))
    return (piece.data for piece in _spelled(islice(drafts, _PROBED), death) if isinstance(piece, Frame))


def _measure(events: Iterator[Draft], death: Death) -> Generator[Turn, None, int]:
    """The bytes of a body.

    Raises:
        ValueError: more frames than are counted, or more bytes than are sent in one piece.
    """
    size = number = turn_bytes = 0
    for event in events:
        if isinstance(event, Turn):
            yield event
        elif isinstance(event, Frame):
            number += 1
            size += len(event.data)
            if number > COUNTED_FRAMES:
                raise ValueError(f"a stream that is counted first has at most {COUNTED_FRAMES} frames")
            if death.segment == "whole" and size > MOST_WHOLE_BYTES:
                raise ValueError(f"segment=whole takes a stream of at most {MOST_WHOLE_BYTES} bytes")
            if size - turn_bytes >= TURN_BYTES:
                turn_bytes = size
                yield TURN
    return size
