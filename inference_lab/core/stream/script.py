"""The script of a response: a fault or a healthy answer turned into head, frames, pauses and exactly one ending.

Pure and lazy: the same arguments give the same events for ever, in constant memory for any number of frames.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from inference_lab.core.apis.dialects import LAB, Dialect
from inference_lab.core.faults.constraints import COUNTED_FRAMES
from inference_lab.core.faults.death import HEALTHY, Close, Death, at_defaults, changed
from inference_lab.core.faults.errors import DEFAULT_CODE, DEFAULT_MESSAGE
from inference_lab.core.faults.silence import HEARTBEATS, beats_behind, beats_in, silence
from inference_lab.core.faults.streaming import OPENED_KEYS
from inference_lab.core.faults.values import Bare
from inference_lab.core.stream import framing, sse
from inference_lab.core.stream.answer_frames import AnswerFrames
from inference_lab.core.stream.content import Cut, bursts
from inference_lab.core.stream.edits import Scene, edited
from inference_lab.core.stream.events import (
    AN_ERROR,
    NOTHING,
    Await,
    Burst,
    Draft,
    Event,
    Frame,
    Head,
    Part,
    Pause,
    Raw,
    Said,
    single,
)
from inference_lab.core.stream.stream_checks import check_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from inference_lab.core.answer.pieces import Pieces
    from inference_lab.core.apis.contract import Counts, Form, StreamWriter
    from inference_lab.core.stream.content import Source

STREAM_HEAD: Final = Head(200, ((b"content-type", LAB.content_type), *LAB.headers))
_CLOSING: Final = (b"connection", b"close")
_JSON_TYPE: Final = b"application/json"
_HTML_TYPE: Final = b"text/html"
_TORN_CHUNK_SIZE: Final = 0x200

# What each close adds to the stream, and the ending it comes to.
_ENDINGS: Final[dict[str, tuple[Raw | None, Close]]] = {
    "terminator": (None, Close.TERMINATOR),
    "fin": (None, Close.FIN),
    "fin_close": (None, Close.FIN),
    "eof": (None, Close.FIN),
    "rst": (None, Close.RST),
    "hang": (None, Close.HANG),
    "tls_raw": (None, Close.TLS_RAW),
    "terminator_rst": (framing.TERMINATOR, Close.RST),
    "idle_close": (None, Close.TERMINATOR),
    "stale": (framing.TERMINATOR, Close.STALE),
    "partial_terminator": (Raw(b"0\r\n"), Close.FIN),
    "torn_chunk": (Raw(b"%x\r\n" % _TORN_CHUNK_SIZE + b'data: {"id":"'), Close.FIN),
}
_TRAILER: Final = Raw(b"0\r\nx-inference-lab-trailer: late\r\n\r\n")

_FRAME_KEYS: Final = (*sse.KEYS, "tear", "segment", "encoding", "chunk_error", "length")
"""The axes that look at each frame after it was made."""

_KEYS_OF_ALL_FRAMES: Final = (*sse.KEYS, "segment", "empty_finish")
"""The axes that act on all frames alike, `final_blank` and some segments on whichever there are."""

MOST_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""The longest stream that is collected to be sent in one piece."""

_USAGE_IN_EACH: Final[dict[str, Literal["null", "zero", "so_far"]]] = {
    "every_chunk": "so_far",
    "null_every_chunk": "null",
    "zero_every_chunk": "zero",
}

_PROBED: Final = 64
"""So many frames of a stream show whether an axis that acts on all frames alike acts at all."""


def fault_script(
    death: Death,
    writer_of: Callable[[Form], StreamWriter],
    source: Source,
    *,
    form: Form,
    whole: Callable[[], tuple[bytes, Said]],
    streaming: bool = True,
) -> Iterator[Event]:
    """The events of a faulted response; `whole` makes the JSON of an answer that is not streamed, and what it says.

    `form` is what the request asks of the frames that `writer_of` writes; the death adds its own.

    Raises:
        ValueError: what only shows when the script is made: a tear or a padding that the frame does not allow, a
            channel the answer has left. It is raised before the first event.
    """
    if death.at == "request":
        events: Iterator[Event] = iter([Pause(death.ttft_ms)] if death.ttft_ms else [])
    elif not death.may_stream or not (streaming or death.answer_as == "sse"):
        events = _answered(death, writer_of(form), whole)
    else:

        def stream(death: Death) -> Iterator[Draft]:
            events = _death_of(death, partial(writer_of, _formed(form, death)), source, form)
            return events if at_defaults(death, _FRAME_KEYS) else single(events)

        events = _streamed(death, writer_of(form).dialect, stream)
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
    death: Death, new_writer: Callable[[], StreamWriter], source: Source, form: Form
) -> Iterator[Draft]:
    """The frames of a death, in plain SSE and with their pauses; dressing and framing come later.

    Raises:
        ValueError: this answer does not allow the death: see `Cut` and `check_stream`.
    """
    cut, writer = Cut(death, source), new_writer()
    check_stream(death, new_writer, cut)
    answer = AnswerFrames(death, writer, cut, usage_asked=form.usage_asked)
    return edited(answer.frames(), Scene(death, writer, cut, answer))


def _ended(events: Iterator[Event], death: Death) -> Iterator[Event]:
    yield from events
    last, close = _ENDINGS[death.close]
    if death.chunk_error == "trailer":
        last, close = _TRAILER, Close.COMPLETE if close is Close.TERMINATOR else close
    if last is not None:
        yield last
    yield close


def _streamed(death: Death, dialect: Dialect, stream: Callable[[Death], Iterator[Draft]]) -> Iterator[Event]:
    """The events of a stream; what refuses it is raised now, before the first of them."""
    drafts = stream(death)
    for key in changed(death, _KEYS_OF_ALL_FRAMES):
        _require_effect(death, key, stream)
    if death.gap_ms and isinstance(death.segment, int):
        pieces = (event for event in _spelled(stream(death), death) if isinstance(event, Frame))
        if len(list(islice(pieces, 2))) < 2:
            raise ValueError("gap_ms changes nothing in this stream, which is one piece")
    content_length, readable_bytes = None, None
    if death.length != "none" or death.segment == "whole":
        size = _measure(sse.respelled(stream(death), death), death)
        if death.length != "none":
            offset = 0 if death.length == "both" else int(death.length)
            content_length = size + offset
            if content_length < 0:
                raise ValueError(f"length={offset} is more than the {size} bytes that the body has")
            readable_bytes = content_length if offset < 0 else None
    chunked = death.close != "eof" and death.length in {"none", "both"}
    head = _head(death, dialect, dialect.content_type, chunked=chunked, content_length=content_length)
    return chain((head,), framing.broken(_spelled(drafts, death, readable_bytes), death))


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
        has_effect = _first_pieces(probe, stream) != ([] if on_any else _first_pieces(without, stream))
    except ValueError:  # a tear for which the frame is long enough only as it is spelled and numbered
        return
    if not has_effect:
        raise ValueError(f"{key} changes nothing in this stream, which has no place for it")


def _first_pieces(death: Death, stream: Callable[[Death], Iterator[Draft]]) -> list[bytes]:
    pieces = _spelled(islice(single(stream(death)), _PROBED), death)
    return [piece.data for piece in pieces if isinstance(piece, Frame)]


def _measure(events: Iterator[Draft], death: Death) -> int:
    """The bytes of a body.

    Raises:
        ValueError: more frames than are counted, or more bytes than are sent in one piece.
    """
    size = 0
    for number, event in enumerate(event for event in events if isinstance(event, Frame)):
        size += len(event.data)
        if number >= COUNTED_FRAMES:
            raise ValueError(f"a stream that is counted first has at most {COUNTED_FRAMES} frames")
        if death.segment == "whole" and size > MOST_WHOLE_BYTES:
            raise ValueError(f"segment=whole takes a stream of at most {MOST_WHOLE_BYTES} bytes")
    return size


def _head(
    death: Death, dialect: Dialect, kind: bytes, *, chunked: bool = True, content_length: int | None = None
) -> Head:
    """The head of a stream, or of what begins like one; its content type is `kind` unless the death has its own."""
    kind = kind if death.content_type is None else death.content_type.encode("ascii")
    headers = [(b"content-type", kind), *dialect.headers]
    if death.encoding in {"gzip", "gzip_truncated"}:
        headers.append((b"content-encoding", b"gzip"))
    if death.close in {"fin_close", "eof"}:
        headers.append(_CLOSING)
    idle_ms = death.idle_ms if death.close == "idle_close" else None
    return Head(200, tuple(headers), chunked, content_length, idle_ms)


def _answered(death: Death, writer: StreamWriter, whole: Callable[[], tuple[bytes, Said]]) -> Iterator[Event]:
    """A response that is no stream, though it may begin like one."""
    kind, body, told = _body(death, whole)
    if not at_defaults(death, OPENED_KEYS):
        yield _head(death, writer.dialect, kind or writer.dialect.content_type)
    else:
        yield _whole_head(death, kind, len(body))
    block = HEARTBEATS.get(death.heartbeat)
    beat = writer.empty() if block is None else Frame(block, part=Part.PING)
    yield from silence(death, death.ttft_ms, beat)
    if body:
        # Behind a heartbeat it is a line that is no field, which a reader of events passes over.
        yield Frame(body, said=NOTHING if beats_in(death, death.ttft_ms) else told)
    yield from beats_behind(death, beat)


def _whole_head(death: Death, kind: bytes, size: int) -> Head:
    headers = [(b"content-type", kind)] if kind else []
    if death.retry_after is not None:
        headers.append((b"retry-after", str(death.retry_after).encode("ascii")))
    # RFC 9110 section 8.6: no content-length in a 204, and in a 304 only that of the 200 it stands for.
    content_length = None if death.status in {204, 304} else size
    return Head(death.status, tuple(headers), chunked=False, content_length=content_length)


def _body(death: Death, whole: Callable[[], tuple[bytes, Said]]) -> tuple[bytes, bytes, Said]:
    """Its content type, its bytes and what it says."""
    if death.status != HEALTHY.status:
        if death.body == "html":
            return _HTML_TYPE, _html(death.status), AN_ERROR
        if death.body == "empty":
            return b"", b"", NOTHING
        return _JSON_TYPE, _error_json(death, nested=death.body == "json"), AN_ERROR
    if death.answer_as == "json_error":
        return _JSON_TYPE, _error_json(death, nested=True), AN_ERROR
    if death.answer_as == "html":
        return _HTML_TYPE, _html(502), AN_ERROR
    if death.answer_as == "empty":
        return b"", b"", NOTHING
    return (_JSON_TYPE, *whole())


def _html(status: int) -> bytes:
    return b"<html><head><title>%d</title></head><body><h1>%d</h1></body></html>\n" % (status, status)


def _error_json(death: Death, *, nested: bool) -> bytes:
    """An OpenAI error; `nested` false: its fields alone."""
    status = DEFAULT_CODE if death.status == HEALTHY.status else death.status
    code: object = status if death.code is None else death.code
    kind = "rate_limit_error" if death.status == 429 else "server_error"
    error: dict[str, object] = {
        "message": DEFAULT_MESSAGE if death.message is None else death.message,
        "type": kind if death.type is None else death.type,
    }
    if nested:
        error["param"] = None
    if not (isinstance(code, Bare) and code.word == "absent"):
        error["code"] = None if isinstance(code, Bare) else code
    return msgspec.json.encode({"error": error} if nested else error)


def healthy_script(
    writer: StreamWriter,
    pieces: Pieces,
    finish: str,
    counts: Callable[[], Counts],
    *,
    include_usage: bool,
    unseen_tokens: int = 0,
) -> Iterator[Event]:
    """The events of an answer that the engine paces: each content frame waits for its tokens.

    `counts` is called when the usage frame is due, since the engine knows what was cached only then. `unseen_tokens`
    are those of an answer without pieces, which its other frames wait for.
    """
    dialect = writer.dialect
    yield _stream_head(dialect)
    pieces, last = pieces.without_last() if dialect.finish_rides else (pieces, None)
    has_begun = False
    for part in bursts(pieces, None, writer, awaited=True):
        tokens = 1 if isinstance(part, Burst) else part.token_count
        yield from (Await(tokens),) if has_begun else _opened(writer, tokens)
        if isinstance(part, Burst):
            writer.pass_over(len(part.frames), len(part.frames))
            yield part
        else:
            yield from _commented(writer.content(part), dialect)
        has_begun = True
    if last is not None:
        yield from (Await(last.token_count),) if has_begun else _opened(writer, last.token_count)
        yield from _commented(writer.finish_with(last, finish), dialect)
    else:
        yield from () if has_begun else _opened(writer, unseen_tokens)
        yield writer.finish(finish)
    if include_usage:
        yield writer.usage(counts(), finish)
    yield writer.terminal()
    yield Close.TERMINATOR


def _opened(writer: StreamWriter, tokens: int) -> Iterator[Event]:
    """The wait for the first tokens; the opening comes with the first of them, as the time to first token."""
    if writer.has_opening:
        if tokens:
            yield Await(1)
        yield from writer.opening()
        tokens -= 1
    if tokens > 0:
        yield Await(tokens)


def _commented(frame: Frame, dialect: Dialect) -> tuple[Frame, ...]:
    """A content frame, after what the dialect puts before each."""
    return (Frame(dialect.comment, part=Part.COMMENT), frame) if dialect.comment else (frame,)


def _stream_head(dialect: Dialect) -> Head:
    """The head of a stream that nothing is wrong with."""
    if dialect is LAB:
        return STREAM_HEAD
    return Head(200, ((b"content-type", dialect.content_type), *dialect.headers))


def echo_script(
    writer: StreamWriter,
    contents: Iterable[tuple[bytes, Said]],
    finish: str,
    counts: Counts,
    *,
    include_usage: bool,
) -> Iterator[Event]:
    """The events of a verbatim answer: its content frames with what each says, and every frame is due at once."""
    yield _stream_head(writer.dialect)
    yield from writer.opening()
    yield from (Frame(content, said=told) for content, told in contents)
    yield writer.finish(finish)
    if include_usage:
        yield writer.usage(counts, finish)
    yield writer.terminal()
    yield Close.TERMINATOR
