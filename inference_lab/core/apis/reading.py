"""What a frame of a stream says, whatever API it is of: what the oracle judges, and the journal adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

Channel = Literal["reasoning", "text", "raw", "call"]
"""What a text is; `raw` is an answer with its markup, of any channel."""

NAME_OF_END: Final = "[DONE]"
"""What the frame that ends a stream is called in sentences for people."""


class Names(msgspec.Struct, frozen=True):
    """Whose frame it is, by what it says beside its text: values of any kind, None where there is none."""

    id: object = None
    model: object = None
    created: object = None


class ReadText(msgspec.Struct, frozen=True):
    """Text of a channel; or the `name` and the `value` of a member that clients would add up, and that is no text."""

    channel: Channel
    text: str = ""
    name: str = ""
    value: object = None


class ReadCall(msgspec.Struct, frozen=True):
    """A call's announcement, or more of its arguments; `id` and `name` are values of any kind."""

    index: int
    id: object = None
    name: object = None
    arguments: ReadText = ReadText("call")


class ReadCounts(msgspec.Struct, frozen=True):
    """Token counts, None where there is no number; `sent` is the object they stand in."""

    sent: dict[str, Any]
    prompt: int | None = None
    completion: int | None = None
    total: int | None = None


class ReadFrame(msgspec.Struct, frozen=True):
    """One frame: its texts in the order in which it has them, then its calls.

    `is_answer`: it is a frame of an answer, and `names` say whose. `is_error`: it says that the stream has failed.
    `is_raw`: it has a place for raw text, whether any is there or not. `is_end`: it says that the stream is over.
    `others` are the numbers of answers beside the one that was asked for; what these say is none of this answer's.
    """

    is_answer: bool = False
    is_error: bool = False
    is_raw: bool = False
    has_role: bool = False
    names: Names = Names()
    texts: tuple[ReadText, ...] = ()
    calls: tuple[ReadCall, ...] = ()
    finish: str | None = None
    counts: ReadCounts | None = None
    others: tuple[object, ...] = ()
    is_end: bool = False


class Misplaced(msgspec.Struct, frozen=True):
    """What is wrong with a stream's events beside what they say: the finding's name, and a sentence."""

    finding: str
    sentence: str


class Structure(Protocol):
    """Follows the events of one stream, in an API that has rules for their order."""

    def take(self, name: str | None, frame: dict[str, Any]) -> Iterator[Misplaced]:
        """The next event: the name that it comes under, and its JSON."""

    def end(self, finish: str | None) -> Iterator[Misplaced]:
        """All has come, and `finish` is a normal end."""

    def whole(self, body: dict[str, Any]) -> Iterator[Misplaced]:
        """An answer that is not streamed."""


class FrameReader(Protocol):
    """Reads an API's frames: one without state, for the oracle, for incidents, and for what an upstream sends."""

    def is_end(self, data: bytes) -> bool:
        """Whether an event's data says that the stream is over."""

    def read(self, frame: dict[str, Any]) -> ReadFrame:
        """What the JSON of an event says."""

    def read_whole(self, body: dict[str, Any]) -> ReadFrame:
        """What the JSON of an answer that is not streamed says; an object without an answer in it is an error."""

    def is_foreign(self, frame: dict[str, Any]) -> bool:
        """Whether a frame is of another API, whose finish is not understood."""

    def is_own(self, frame: dict[str, Any]) -> bool:
        """Whether a frame can be of this API alone."""
        return not self.is_foreign(frame)

    def structure(self, *, is_resumed: bool = False) -> Structure | None:
        """Who follows a stream's events; None where each stands for itself.

        `is_resumed`: the stream may begin anywhere.
        """
        del is_resumed
        return None


def word_of(value: object) -> str:
    """A JSON string, an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> dict[str, Any]:
    """A JSON object, an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """A JSON list, an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def count_of(value: object) -> int | None:
    """A number of tokens, None in place of anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_read(channel: Channel, value: object) -> ReadText:
    """Text of a channel, or what stands there in its place."""
    return (
        ReadText(channel, value) if isinstance(value, str) else ReadText(channel, name="delta", value=value)
    )
