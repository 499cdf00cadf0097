"""What a client tells its user about one answer: frames, text, finish reason, and how it says the answer ended."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DONE: Final = "[DONE]"
CLEAN: Final = "ends"
"""The end of an answer that the client gave no reason to doubt."""
_CHANNELS: Final = {"content": "text", "text": "text", "reasoning_content": "reasoning", "tool_calls": "call"}


@dataclass(slots=True)
class Observation:
    """Filled while a client reads, as the loop around its stream would be in a gateway.

    `frames` counts content frames by channel, `strange` JSON that has neither choices nor usage, `torn` data lines that
    are no JSON. `end` is `CLEAN`, the exception's name, or curl's exit code.
    """

    frames: Counter[str] = field(default_factory=Counter)
    text: str = ""
    strange: int = 0
    torn: int = 0
    finish: str | None = None
    usage: bool = False
    done: bool = False
    end: str = CLEAN
    seconds: float = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around a client's whole work on the answer: what it raises is how the answer ended."""
        begun = time.monotonic()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a client raises is what is to be seen
            self.end = name(error)
        self.seconds = time.monotonic() - begun

    def line(self, line: str) -> None:
        """A line of the body, read as most gateways do: by its beginning, without waiting for the blank line."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == DONE:
            self.done = True
            return
        try:
            self.chunk(json.loads(data))
        except json.JSONDecodeError:
            self.torn += 1

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        """A chunk's JSON."""
        choices, usage = chunk.get("choices"), chunk.get("usage")
        self.usage |= usage is not None
        self.strange += choices is None and usage is None
        for choice in choices or ():
            self.finish = choice.get("finish_reason") or self.finish
            for channel, piece in _pieces(choice):
                self.frames[channel] += 1
                self.text += piece

    def words(self) -> list[int]:
        """The numbers of the words in the text, in its order."""
        return [int(digits) for digits in re.findall(r"[a-zA-Z]{2}(\d{4})", self.text)]

    def seen(self, *, done: bool = True) -> str:
        """What was seen of the answer, in words; without `[DONE]` if that is not the client's to show."""
        parts = [f"{count} {channel}" for channel, count in self.frames.items()]
        parts += [f"{self.strange} without choices"] * (self.strange > 0)
        parts += [f"{self.torn} torn"] * (self.torn > 0)
        parts += [f"`{self.finish}`"] * (self.finish is not None)
        parts += ["usage"] * self.usage
        parts += [DONE] * (self.done and done)
        return ", ".join(parts) or "nothing"


def name(error: BaseException) -> str:
    """An exception's class as its users write it: with its package, without the module that is nobody's business."""
    kind = type(error)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def _pieces(choice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The channels in which a choice says something, with what it says."""
    delta = choice.get("delta", choice)
    for key, channel in _CHANNELS.items():
        said = delta.get(key)
        if isinstance(said, str) and said:
            yield channel, said
        elif isinstance(said, list):
            yield channel, "".join(call["function"].get("arguments") or "" for call in said)
