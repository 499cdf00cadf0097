"""The edits that make a death of an answer's frames: each goes by what a frame is, never by what it looks like.

An edit takes the frames as they come and passes on at once what it does not change: words that are still to be said
may wait for an engine, or for an upstream. It acts after the frame that it counts. Only those hold frames back that
must: as many as are to be repeated or turned around.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard, TypeVar

from inference_lab.core.apis.errors import DEFAULT_CODE, DEFAULT_MESSAGE, ErrorFields
from inference_lab.core.faults.silence import beats_behind, hangs_with_beats
from inference_lab.core.faults.values import Keyword
from inference_lab.core.stream.events import (
    TURN,
    TURN_BYTES,
    Burst,
    Draft,
    Event,
    FaultPoint,
    Frame,
    Long,
    Part,
    Pause,
    Torn,
)

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import StreamWriter
    from inference_lab.core.faults.death import Death
    from inference_lab.core.stream.answer_frames import AnswerFrames
    from inference_lab.core.stream.content import Cut

_UNPACED: Final = (Part.PING, Part.TERMINAL)
_LEADING: Final = (Part.COMMENT, Part.BLOCK_START, Part.BLOCK_END)
"""What is due together with what comes after it."""
_TAIL: Final = (Part.FINISH, Part.USAGE, Part.TERMINAL)


class Scene(NamedTuple):
    """What an edit may ask for: the death, its answer, and who writes its frames."""

    death: Death
    writer: StreamWriter
    cut: Cut
    answer: AnswerFrames


Drafts: TypeAlias = Iterator[Draft]
Edit: TypeAlias = Callable[[Drafts, Scene], Drafts]
_Of = TypeVar("_Of", Event, Draft)


def edited(frames: Drafts, scene: Scene) -> Drafts:
    """The frames with every edit that the death asks for."""
    for edit in _edits_of(
        scene.death, has_comment=bool(scene.writer.dialect.comment), is_numbered=scene.writer.numbers
    ):
        frames = edit(frames, scene)
    return frames


@lru_cache(maxsize=256)
def _edits_of(death: Death, *, has_comment: bool, is_numbered: bool) -> tuple[Edit, ...]:
    idle = {edit for edit, has_work in ((_comment, has_comment), (_stamp, is_numbered)) if not has_work}
    return tuple(edit for is_wanted, edit in EDITS if is_wanted(death) and edit not in idle)


# -- what is said in another order, once more, or not at all


def _swap(frames: Drafts, scene: Scene) -> Drafts:
    """The first content frames after the fault point in reverse; what stands between them stays in its place."""
    yield from _up_to_fault_point(frames)
    held: list[Draft] = []
    new_bytes = 0
    for event in frames:
        if not _is(event, Part.CONTENT):
            yield event
            continue
        held.append(event)
        new_bytes += len(event.data)
        if len(held) == scene.death.sequence.number:
            break
        if new_bytes >= TURN_BYTES:
            new_bytes = 0
            yield TURN
    yield from reversed(held)
    yield from frames


def _up_to_fault_point(frames: Drafts) -> Drafts:
    for event in frames:
        yield event
        if isinstance(event, FaultPoint):
            return


def _repeat(frames: Drafts, scene: Scene) -> Drafts:
    """The last content frames once more, after the fault point."""
    last: deque[Frame] = deque(maxlen=scene.death.sequence.number)
    for event in frames:
        yield event
        if _is(event, Part.CONTENT):
            last.append(event)
        elif isinstance(event, FaultPoint):
            if scene.death.malformed:  # stands before them
                yield next(frames)
            yield from (_again(frame) for frame in last)
            last = deque(maxlen=0)


def _finish_twice(frames: Drafts, _: Scene) -> Drafts:
    is_first = True
    for event in frames:
        yield event
        if is_first and _is(event, Part.FINISH):
            is_first = False
            yield _again(event)


def _say_after_finish(frames: Drafts, scene: Scene) -> Drafts:
    """One more word after the finish."""
    is_said = False
    for event in frames:
        yield event
        if not is_said and _is(event, Part.FINISH):
            is_said = True
            yield from scene.answer.next_content()


def _end_twice(frames: Drafts, _: Scene) -> Drafts:
    for event in frames:
        yield event
        if _is(event, Part.TERMINAL):
            yield event


def _leave_out_end(frames: Drafts, _: Scene) -> Drafts:
    terminal = Part.TERMINAL
    return (event for event in frames if not (isinstance(event, Frame) and event.part is terminal))


# -- what is none of the answer's


def _insert_null(frames: Drafts, scene: Scene) -> Drafts:
    return _at_fault_point(frames, lambda: scene.writer.bare(b"null"))


def _insert_empty(frames: Drafts, scene: Scene) -> Drafts:
    return _at_fault_point(frames, lambda: scene.writer.bare(b"[]"))


def _insert_malformed(frames: Drafts, scene: Scene) -> Drafts:
    return _at_fault_point(frames, scene.writer.malformed)


def _at_fault_point(frames: Drafts, make: Callable[[], Frame]) -> Drafts:
    for event in frames:
        yield event
        if isinstance(event, FaultPoint):
            yield make()


def _insert_error(frames: Drafts, scene: Scene) -> Drafts:
    """An error after all content."""
    death = scene.death
    is_first, is_sent = death.retry != "alone", False
    for event in frames:
        if not is_sent and isinstance(event, Frame) and event.part in _TAIL:
            yield from scene.writer.error(death.error, _fields_of(death), is_first=is_first)
            is_sent = True
        yield event
        is_first = is_first and not _is_paced(event)


def _fields_of(death: Death) -> ErrorFields:
    return ErrorFields(
        DEFAULT_MESSAGE if death.message is None else death.message,
        DEFAULT_CODE if death.code is None else None if isinstance(death.code, Keyword) else death.code,
        has_code=death.code != Keyword("absent"),
        type=death.type,
    )


def _stamp(frames: Drafts, scene: Scene) -> Drafts:
    return stamped(frames, scene.writer)


def stamped(frames: Iterator[_Of], writer: StreamWriter) -> Iterator[_Of]:
    """The frames with what depends on those before them, in an API that numbers what it sends."""
    for event in frames:
        yield writer.stamp(event) if isinstance(event, Frame) else event


def _comment(frames: Drafts, scene: Scene) -> Drafts:
    return commented(frames, scene.writer.dialect.comment)


def commented(frames: Iterator[_Of], block: bytes) -> Iterator[_Of]:
    """The frames with what a dialect puts before each of content."""
    comment = Frame(block, part=Part.COMMENT)
    for event in frames:
        if _is(event, Part.CONTENT):
            yield comment
        yield event


# -- what breaks a frame


def _tear(frames: Drafts, _: Scene) -> Drafts:
    """The last content frame before the fault point torn, and nothing after it."""
    held: Frame | None = None
    after: list[Draft] = []  # what goes out with it, and is lost where it is the last
    for event in frames:
        if isinstance(event, FaultPoint):
            if held is not None:
                yield Torn(held.data, held.said)
            yield event
            return
        if held is not None and isinstance(event, Frame) and event.part is Part.PING:
            after.append(event)
            continue
        if held is not None:
            yield held
            yield from after
            held, after = None, []
        if _is(event, Part.CONTENT):
            held = event
        else:
            yield event


def _pad(frames: Drafts, scene: Scene) -> Drafts:
    """The last content frame before the fault point, with blanks before its closing brace."""
    left: int | None = scene.cut.frames
    for event in frames:
        if _is(event, Part.CONTENT) and left is not None:
            left -= 1
            if not left:
                left = None
                end = len(event.data) - len(b"}\n\n")
                blanks = (scene.death.frame_bytes or 0) - len(event.data)
                yield Long(event.data[:end], blanks, event.data[end:], event.said)
                continue
        yield event


# -- when it is said


def _pace(frames: Drafts, scene: Scene) -> Drafts:
    """The first frame at once, each further one `delay_ms` after the one before; the end and signs of life at once."""
    death = scene.death
    rest_ms = death.delay_ms if death.rest_delay_ms is None else death.rest_delay_ms
    pause_ms = death.delay_ms
    is_due = True
    for event in frames:
        if isinstance(event, FaultPoint):
            pause_ms = rest_ms
        elif isinstance(event, Burst) or (isinstance(event, Frame) and event.part not in _UNPACED):
            if pause_ms and not is_due:
                yield Pause(pause_ms)
            is_due = isinstance(event, Frame) and event.part in _LEADING
        yield event


def _is_paced(event: Draft) -> bool:
    return isinstance(event, Burst) or (isinstance(event, Frame) and event.part not in _UNPACED)


def _is(event: Draft, part: Part) -> TypeGuard[Frame]:
    return isinstance(event, Frame) and event.part is part


def _again(frame: Frame) -> Frame:
    """A frame that is sent once more; its words are not new."""
    return Frame(frame.data, said=frame.said.again(), part=frame.part)


def _say_after_end(frames: Drafts, scene: Scene) -> Drafts:
    """One more word after everything."""
    yield from frames
    yield from map(scene.writer.stamp, scene.answer.next_content())


def _beat_after_end(frames: Drafts, scene: Scene) -> Drafts:
    """The signs of life of a connection that stays open."""
    yield from frames
    yield from beats_behind(scene.death, scene.answer.beat())


EDITS: Final[tuple[tuple[Callable[[Death], bool], Edit], ...]] = (
    (lambda death: death.sequence.word == "choices_empty", _insert_empty),
    (lambda death: death.sequence.word == "choices_null", _insert_null),
    (lambda death: death.malformed, _insert_malformed),
    (lambda death: death.error != "none", _insert_error),
    (lambda death: death.sequence.word == "after_finish", _say_after_finish),
    (lambda death: death.done == "false", _leave_out_end),
    (lambda death: True, _stamp),  # noqa: ARG005 - where frames are numbered
    (lambda death: death.sequence.word == "swap", _swap),
    (lambda death: death.sequence.word == "dup", _repeat),
    (lambda death: death.sequence.word == "double_finish", _finish_twice),
    (lambda death: death.done == "twice", _end_twice),
    (lambda death: "comments" not in death.given, _comment),
    (lambda death: True, _pace),  # noqa: ARG005 - whatever the death
    (lambda death: death.frame_bytes is not None, _pad),
    (lambda death: death.sequence.word == "after_done", _say_after_end),
    (lambda death: death.tear.word != "none", _tear),
    (hangs_with_beats, _beat_after_end),
)
"""When each edit is wanted, in the order in which they are made. Each works on what those before it have made.

Those that make events or leave them out come before the numbering of an API that numbers its frames, those that lose
or repeat what was written after it.
"""
