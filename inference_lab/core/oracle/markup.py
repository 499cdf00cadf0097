"""What markup costs in tokens, as the formats' tables say: how far a count may stand above the words."""

from typing import Final

import msgspec

from inference_lab.core.answer.templates import FORMATS, ChatTemplate
from inference_lab.core.tokens import encode

_UNSEEN_NAME: Final = "n" * 64
"""Of a call that no delta shows: no API takes a longer name."""
_MEMBER_CHARACTERS: Final = 8
"""What JSON writes around each key and text of a call's arguments; what else stands there costs a token a character."""


class Markup(msgspec.Struct, frozen=True):
    """What has been seen of an answer's markup, as deltas or as text.

    `call_names` are the tokens of all calls' names, `members` how many arguments there were, `outline` the characters
    of their JSON beside its strings, `keys` those of the keys.
    """

    reasoning: bool = False
    after_reasoning: bool = False
    calls: int = 0
    call_names: int = 0
    members: int = 0
    outline: int = 0
    keys: int = 0


class _Costs(msgspec.Struct, frozen=True):
    """One format's markup in tokens."""

    reasoning_open: int
    reasoning_close: int
    around_calls: int
    call_open: int
    call_close: int
    member: int

    @classmethod
    def of(cls, template: ChatTemplate) -> "_Costs":
        """As a format's table says. Pieces cost no less apart than together."""
        tokens = {name: len(encode(getattr(template, name))) for name in _PARTS}
        return cls(
            tokens["reasoning_open"],
            tokens["reasoning_close"],
            tokens["calls_open"] + tokens["calls_close"],
            tokens["call_open"] + tokens["name_close"],
            tokens["call_close"] + tokens["call_between"],
            tokens["key_open"] + tokens["key_close"] + tokens["value_close"],
        )

    def most(self, seen: Markup) -> int:
        """All of what was seen, opened and closed."""
        total = self.reasoning_open + self.reasoning_close if seen.reasoning else 0
        if seen.calls:
            extra = max(0, seen.outline - _MEMBER_CHARACTERS * seen.members)
            total += self.around_calls + seen.calls * (self.call_open + self.call_close) + seen.call_names
            total += max(seen.members, seen.calls) * self.member + seen.keys + extra
        return total

    def least(self, seen: Markup) -> int:
        """What must have been written for it: the prompt may have opened the reasoning, and an opening may be torn."""
        closed = self.reasoning_close if seen.reasoning and seen.after_reasoning else 0
        return closed + min(seen.calls, seen.members) * self.call_open

    @property
    def opening(self) -> int:
        """All that may stand before a first word."""
        name = 2 * len(encode(_UNSEEN_NAME))
        before_call = self.around_calls + self.call_open + self.call_close + self.member + name
        return self.reasoning_open + self.reasoning_close + before_call


_PARTS: Final = (
    *("reasoning_open", "reasoning_close", "calls_open", "calls_close", "call_open", "name_close"),
    *("call_close", "call_between", "key_open", "key_close", "value_close"),
)
_COSTS: Final = tuple(map(_Costs.of, FORMATS.values()))

OPENING_TOKENS: Final = max(cost.opening for cost in _COSTS)
"""Tokens of markup that may stand before a word that no longer fitted."""


def most_tokens(seen: Markup) -> int:
    """What the markup costs at most: in the format where it is dearest."""
    return max(cost.most(seen) for cost in _COSTS)


def least_tokens(seen: Markup) -> int:
    """What the markup costs at least."""
    return min(cost.least(seen) for cost in _COSTS)
