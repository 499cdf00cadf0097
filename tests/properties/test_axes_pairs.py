"""Every two values of two axes: served as asked, or refused with a reason; and never without an effect.

What is served is held against two things of their own: the model of `axes_model`, byte by byte, and the promises of
each value in what a strict parser makes of the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from inference_lab.core.apis.dialects import DIALECTS
from inference_lab.core.faults.death import AXES, HEALTHY
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.faults.values import Choice, Integer, IntegerOrHeader, NumberedChoice, SignedInteger
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.reference_model.model import Response, respond
from tests.reference_model.promises import broken_promises
from tests.support.axes_scripts import answer_for, played, served
from tests.support.axes_values import ON_LEGS, PAIRED, changes_of, directive_of, settings_for, values_of

if TYPE_CHECKING:
    from inference_lab.core.stream.events import Event

OF_A_CHAT = {"at": ["role"], "reasoning_key": ["reasoning"], "role_again": ["true"]}
"""What needs a role frame or a channel of reasoning, which completions do not have."""


def test_the_values_are_all_there_are() -> None:
    for key in PAIRED:
        kind, values = AXES[key].kind, values_of(key)
        words: set[str] = set()
        if isinstance(kind, (Choice, Integer, SignedInteger, NumberedChoice)):
            words |= set(kind.words)
        if isinstance(kind, NumberedChoice):
            values = tuple(value.partition(":")[0] for value in values)
            words |= set(kind.numbered)
        assert words <= set(values) or key in {"error", "content"}, key
        assert not isinstance(kind, IntegerOrHeader) or key == "retry_after"


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("key", PAIRED)
def test_any_two_values_are_served_as_asked_or_refused(key: str, endpoint: str) -> None:
    others = PAIRED[PAIRED.index(key) + 1 :]
    some = slice(None) if endpoint == CHAT else slice(-1, None)  # the other endpoint meets a part of it
    failures: list[str] = []
    met = 0
    never_served: list[str] = []
    for value in values_of(key):
        before = met
        first = settings_for(key, value)
        pairs = [(other, second) for other in others for second in changes_of(other)[some]]
        for other, second in [(key, value), *pairs]:
            settings = {**settings_for(other, second), **first, other: second, key: value}
            leg = key in ON_LEGS or other in ON_LEGS
            got = served(tuple(settings.items()), endpoint, leg=leg)
            if got is None:
                continue
            met += 1
            directive = directive_of(settings.items())
            response = played(got)
            answer = answer_for(endpoint, leg=leg)
            failures += difference(directive, response, respond(directive, answer))
            if (
                leg
            ):  # some keys of legs take the place of all others; and the promises are those of a first leg
                continue
            failures += [f"{directive}: {text}" for text in broken_promises(directive, response, answer)]
            failures += without_effect(settings, got, endpoint)
        if met == before:
            never_served.append(value)
    assert not failures, "\n".join(failures[:20]) + f"\n… {len(failures)} of {met}"
    assert never_served == (OF_A_CHAT.get(key, []) if endpoint == COMPLETIONS else [])


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "lab"])
def test_any_value_is_served_in_any_dialect_or_refused(dialect: str, endpoint: str) -> None:
    answer = answer_for(endpoint)
    failures: list[str] = []
    met = 0
    for key in PAIRED:
        for value in values_of(key):
            settings = {**settings_for(key, value), "dialect": dialect}
            got = served(tuple(settings.items()), endpoint)
            if got is None:
                continue
            met += 1
            directive = directive_of(settings.items())
            kept = broken_promises(
                directive, played(got), answer, ("after_chunks", "bom", "done", "eol", "multiline")
            )
            failures += [f"{directive}: {text}" for text in kept]
    assert not failures, "\n".join(failures[:20])
    assert met > 100


def without_effect(settings: dict[str, str], got: list[Event], endpoint: str) -> list[str]:
    """The settings that change nothing: the same script comes without them."""
    found = []
    death = parse_directive(directive_of(settings.items())).death
    for key, value in settings.items():
        is_default = getattr(death, key) == getattr(HEALTHY, key)
        # The request asks for usage and a stream anyway, a torn frame has nothing behind it anyway; an error, a head
        # or a role frame may be the end anyway.
        says_so = (
            (key, value) in {("usage", "always"), ("answer_as", "sse")}
            or (key == "rest_delay_ms" and "gap_ms" in settings)  # the gaps are wider
            or ("tear" in settings and value in {"none", "false"})
            or (key == "done" and {"error", "at"} & settings.keys())
        )
        if is_default or says_so or key in {"name", "test", "times", "delay_ms", "strict_params"}:
            continue
        rest = tuple((name, word) for name, word in settings.items() if name != key)
        if served(rest, endpoint) == got:
            found.append(f"{directive_of(settings.items())}: {key} changes nothing")
    return found


def difference(directive: str, got: Response, wanted: Response) -> list[str]:
    if wanted.infinite_pieces:
        same = got.wire.startswith(wanted.wire) and got.infinite_pieces
    else:
        same = got.wire == wanted.wire and (got.end, got.status) == (wanted.end, wanted.status)
        headers = dict(got.headers)
        same = same and all(headers.get(name) == value for name, value in wanted.headers)
    if same:
        return []
    place = next(
        (i for i, (a, b) in enumerate(zip(got.wire, wanted.wire, strict=False)) if a != b),
        min(len(got.wire), len(wanted.wire)),
    )
    return [
        (
            f"{directive}: {got.end} {got.status} for {wanted.end} {wanted.status}, at byte {place}"
            f" {got.wire[max(0, place - 30) : place + 60]!r} for {wanted.wire[max(0, place - 30) : place + 60]!r}"
            f" {dict(got.headers)} for {dict(wanted.headers)}"
        )
    ]
