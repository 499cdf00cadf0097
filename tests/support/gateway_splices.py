"""What gateways do to an answer and must not; see `tests/support/gateways.py`.

Each takes the answer as it is, changes it, and returns the findings of which it must show one; None where the answer
gives it nothing to work on.
"""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from inference_lab.core.oracle import Kind
from inference_lab.core.tokens import parts_of
from tests.support.gateways import DONE, ERROR, WORD, silent_frame
from tests.support.streams import usage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.gateways import Body

    Splice = Callable[[random.Random, Body], set[Kind] | None]

SPLICES: dict[str, Splice] = {}

WORD_KINDS = {
    *(Kind.GAP, Kind.REPEAT, Kind.RESTART, Kind.REORDER),
    *(Kind.FOREIGN_WORD, Kind.TORN_WORD, Kind.BLANK, Kind.OTHER_TEXT),
}
NOT_TEXT: tuple[Any, ...] = (4, 0, 1.5, True, False, [], {}, ["qu0000"], {"text": "qu0000"})


def splice(move: Splice) -> Splice:
    SPLICES[move.__name__] = move
    return move


def between_texts(rng: random.Random, body: Body) -> int | None:
    """A frame with text, behind another one."""
    places = sorted({index for index, _, _ in body.texts()})
    return rng.choice(places[1:]) if body.is_stream and len(places) > 1 else None


@splice
def a_finish_of_no_call(_: random.Random, body: Body) -> set[Kind] | None:
    if "call" in body.channels:
        return None
    body.finish("tool_calls")
    return {Kind.PHANTOM_CALL}


ARGUMENTS = re.compile(r'("arguments": )\{[^{}]*\}')
PARAMETER = re.compile("<[^<>]*parameter name=[^<>]*>[^<]*</[^<>]*parameter>\n?")


@splice
def a_call_without_arguments(rng: random.Random, body: Body) -> set[Kind] | None:
    if "call" not in body.channels:
        return None
    if body.is_chat:
        calls = [
            call
            for index in range(len(body.frames))
            for choice in [body.choice(index) or {}]
            for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ()
        ]
        wanted = rng.choice(sorted({call["index"] for call in calls}))
        for call in (mine := [call for call in calls if call["index"] == wanted]):
            call["function"]["arguments"] = ""
        mine[-1]["function"]["arguments"] = "{}"
    else:
        text = body.join_texts()
        empty = ARGUMENTS.sub(r"\1{}", text, count=1)
        body.texts()[0][1]["text"] = empty if empty != text else PARAMETER.sub("", text, count=1)
    body.finish(rng.choice(("stop", "tool_calls")))
    return {Kind.PHANTOM_CALL}


@splice
def the_rest_as_another_choice(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream:
        choices = body.frames[0]["choices"]
        choices.append(copy.deepcopy(choices[0]))
        choices[rng.randint(0, 1)]["index"] = rng.choice((1, 2, -1, "1"))
        return {Kind.OTHER_CHOICE}
    places = sorted({index for index, _, _ in body.texts()} | {body.finish_at()})
    start = rng.choice(places)
    for place in [place for place in places if place >= start][: rng.randint(1, 9)]:
        body.frames[place]["choices"][0]["index"] = rng.choice((1, 2, "0"))
    return {Kind.OTHER_CHOICE}


@splice
def another_choice_in_the_same_frame(rng: random.Random, body: Body) -> set[Kind] | None:
    index, _, _ = rng.choice(body.texts())
    choices = body.frames[index]["choices"]
    choices.append(copy.deepcopy(choices[0]) | {"index": rng.choice((0, 1, None))})
    return {Kind.OTHER_CHOICE}


@splice
def text_that_is_none(rng: random.Random, body: Body) -> set[Kind] | None:
    index, members, name = rng.choice(body.texts())
    if body.is_stream and rng.random() < 0.5:  # beside the text, which stays
        other = copy.deepcopy(body.frames[index])
        body.frames.insert(index, other)
        said = other["choices"][0].get("delta", other["choices"][0])
        if name == "arguments":
            said["tool_calls"][0]["function"] = {"arguments": rng.choice(NOT_TEXT)}
        else:
            said[name] = rng.choice(NOT_TEXT)
        other["choices"][0]["finish_reason"] = None
    else:
        members[name] = rng.choice(NOT_TEXT)
    return {Kind.OTHER_TEXT}


@splice
def count_too_many(rng: random.Random, body: Body) -> set[Kind] | None:
    words = body.words()
    body.put_usage(words + (rng.randint(1, 99) if body.channels == {"text"} else rng.randint(150, 2000)))
    return {Kind.USAGE_WORDS}


@splice
def count_too_few(rng: random.Random, body: Body) -> set[Kind] | None:
    words = body.words()
    if words < 2:
        return None
    body.put_usage(rng.randint(1, words - 1))
    return {Kind.USAGE_WORDS}


@splice
def count_wrong_when_it_came(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream or body.channels != {"text"}:
        return None
    place = rng.randint(0, body.finish_at() - 1)
    body.put_usage(body.words())
    count = body.words(place) + rng.choice((2, 5, 50))
    body.frames.insert(place, silent_frame(rng) | {"usage": usage(count)})
    if rng.random() < 0.5:
        del body.frames[body.finish_at() :]
    return {Kind.USAGE_WORDS}


@splice
def count_that_does_not_add_up(rng: random.Random, body: Body) -> set[Kind] | None:
    body.put_usage(body.words())
    counted = next(frame for frame in body.frames if isinstance(frame, dict) and frame.get("usage"))
    counted["usage"]["total_tokens"] += rng.randint(1, 9)
    return {Kind.USAGE_SUM}


@splice
def an_empty_success(rng: random.Random, body: Body) -> set[Kind] | None:
    for index in {index for index, _, _ in body.texts()} | body.calls_at():
        choice = body.choice(index) or {}
        said = choice.get("delta") or choice.get("message") or choice
        for name in ("content", "reasoning_content", "text"):
            if name in said:
                said[name] = rng.choice(("", None))
        said.pop("tool_calls", None)
    body.finish(rng.choice(("stop", "tool_calls")))
    if rng.random() < 0.5:
        body.take_usage()
    return {Kind.SILENT_TRUNCATION}


@splice
def a_stop_after_reasoning_alone(rng: random.Random, body: Body) -> set[Kind] | None:
    if "reasoning" not in body.channels or "text" not in body.channels:
        return None
    if body.is_chat:
        for _, members, name in body.texts():
            if name == "content":
                members[name] = rng.choice(("", None))
    else:
        text = body.join_texts()
        head, tag, rest = text.partition("</think>")
        body.texts()[0][1]["text"] = head + rng.choice(("", tag + rest[: len(rest) - len(rest.lstrip())]))
    body.finish("stop")
    return {Kind.SILENT_TRUNCATION}


@splice
def an_end_inside_a_call(rng: random.Random, body: Body) -> set[Kind] | None:
    if "call" not in body.channels:
        return None
    _, members, name = body.texts()[-1]
    members[name] = members[name][:-1]
    body.finish(rng.choice(("stop", "tool_calls")))
    return {Kind.SILENT_TRUNCATION}


@splice
def text_after_an_error(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream:
        return None
    place = rng.choice([index for index, _, _ in body.texts()])
    body.frames[place:place] = rng.choice(([ERROR], [ERROR, DONE], [ERROR, {**ERROR, "id": "b"}]))
    if rng.random() < 0.3:
        body.frames[:] = body.frames[: body.last_text + 1]
    return {Kind.TEXT_AFTER_ERROR}


@splice
def text_after_a_frame_that_is_no_json(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream:
        return None
    body.frames.insert(rng.choice([index for index, _, _ in body.texts()]), rng.choice(("oops", "{", "[1]")))
    return {Kind.NOT_JSON}


@splice
def text_after_the_end(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream:
        return None
    body.frames.append(body.silent({"content": " qu0099"}))
    if rng.random() < 0.5:
        body.frames.insert(-1, DONE)
    return {Kind.TEXT_AFTER_DONE, Kind.TEXT_AFTER_FINISH}


@splice
def words_in_disorder(rng: random.Random, body: Body) -> set[Kind] | None:
    found = []
    for _, members, name in body.texts():
        found += [(members, name, match) for match in WORD.finditer(members[name])]
    # The last word of a channel may be missing without a trace.
    later = [
        (a, b) for a, b in pairwise(found) if a[1] == b[1] and parts_of(a[2][0])[1] < parts_of(b[2][0])[1]
    ]
    if not later:
        return None
    (members, name, match), (other, _, other_match) = rng.choice(later)
    text = members[name]
    how = rng.choice(("drop", "twice", "swap", "foreign", "torn", "blank"))
    if how == "swap":
        if members is other:
            return None
        other[name] = other[name].replace(other_match[0], match[0], 1)
        new = other_match[0]
    elif how == "foreign":
        new = match[0].replace(match[0].strip()[:2], "zz" if match[0].strip()[0].islower() else "ZZ")
    else:
        new = {
            "drop": "",
            "twice": match[0] * 2,
            "torn": match[0].rstrip("éÉ")[:-1],
            "blank": f" {match[0]}",
        }[how]
    members[name] = text[: match.start()] + new + text[match.end() :]
    return WORD_KINDS


@splice
def another_name_from_here_on(rng: random.Random, body: Body) -> set[Kind] | None:
    place = between_texts(rng, body)
    if place is None:
        return None
    name = rng.choice(("id", "model"))
    for frame in body.frames[place:]:
        if isinstance(frame, dict):
            frame[name] = "b"
    return {Kind.ID_CHANGED, Kind.MODEL_CHANGED}


@splice
def a_second_role(rng: random.Random, body: Body) -> set[Kind] | None:
    place = between_texts(rng, body)
    if place is None or not body.is_chat:
        return None
    if rng.random() < 0.3:
        first = rng.choice([index for index, _, _ in body.texts() if index < place])
        body.frames[first]["choices"][0]["delta"]["role"] = "assistant"
    said: dict[str, Any] = {"role": "assistant"} | rng.choice(({}, {"content": ""}))
    body.frames.insert(place, body.silent(said))
    return {Kind.SECOND_ROLE}


@splice
def another_finish(rng: random.Random, body: Body) -> set[Kind] | None:
    if not body.is_stream:
        return None
    other = "length" if body.frames[body.finish_at()]["choices"][0]["finish_reason"] != "length" else "abort"
    body.frames.insert(rng.randint(body.finish_at() + 1, len(body.frames)), body.silent({}, other))
    return {Kind.TWO_FINISHES}


@splice
def a_call_announced_again(rng: random.Random, body: Body) -> set[Kind] | None:
    if not (body.is_chat and body.is_stream and "call" in body.channels):
        return None
    first = min(body.calls_at())
    again = copy.deepcopy(body.frames[first])
    if rng.random() < 0.5:
        again["choices"][0]["delta"]["tool_calls"][0]["id"] = "other"
    body.frames.insert(rng.randint(first + 1, body.last_text + 1), again)
    return {Kind.SECOND_CALL}
