"""What gateways do to an answer and may; see `tests/support/gateways.py`.

Each takes the answer as it is, changes it, and returns what it then is (with `!`: however its transport ended, and
nothing more may be done to it); None where the answer gives it nothing to work on.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.support.gateways import DONE, ERROR, HEAD, silent_frame
from tests.support.streams import usage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.gateways import Body

    Rewrite = Callable[[random.Random, Body], str | None]

REWRITES: dict[str, Rewrite] = {}


def rewrite(move: Rewrite) -> Rewrite:
    REWRITES[move.__name__] = move
    return move


def anywhere(rng: random.Random, body: Body) -> int:
    return rng.randint(0, len(body.frames))


@rewrite
def role_after_the_end(rng: random.Random, body: Body) -> str | None:
    if not (body.is_stream and body.is_chat):
        return None
    said: dict[str, Any] = {"role": "assistant"} | rng.choice(({}, {"content": ""}, {"content": None}))
    body.frames.insert(rng.randint(body.finish_at() + 1, len(body.frames)), body.silent(said))
    return "whole"


@rewrite
def role_on_every_text(rng: random.Random, body: Body) -> str | None:
    if not (body.is_stream and body.is_chat):
        return None
    for index in {index for index, _, _ in body.texts()}:
        body.frames[index]["choices"][0]["delta"]["role"] = "assistant"
    if rng.random() < 0.5:
        body.frames.insert(body.last_text + 1, body.silent({"role": "assistant", "content": ""}))
    return "whole"


@rewrite
def role_on_the_first_text(_: random.Random, body: Body) -> str | None:
    if not (body.is_stream and body.is_chat):
        return None
    body.frames[body.texts()[0][0]]["choices"][0]["delta"]["role"] = "assistant"
    return "whole"


@rewrite
def pings_of_another_id(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    for _ in range(rng.randint(1, 3)):
        body.frames.insert(anywhere(rng, body), silent_frame(rng))
    return "whole"


@rewrite
def comments(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    body.frames.insert(anywhere(rng, body), ": ping")
    return "whole"


@rewrite
def running_usage(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream or body.channels != {"text"}:
        return None
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, body.finish_at())
        body.frames.insert(place, silent_frame(rng) | {"usage": usage(body.words(place))})
    # At a normal end the last one counts all words.
    body.put_last_usage(body.words())
    return cut_short(rng, body) if rng.random() < 0.5 else "whole"


@rewrite
def text_cut_anew(rng: random.Random, body: Body) -> str | None:
    places = [found for found in body.texts() if len(found[1][found[2]]) > 1]
    if not body.is_stream or not places:
        return None
    index, members, name = rng.choice(places)
    text = members[name]
    cut = rng.randint(1, len(text) - 1)
    members[name] = text[cut:]
    second = copy.deepcopy(body.frames[index])
    members[name] = text[:cut]
    body.frames[index].pop("usage", None)
    body.frames[index]["choices"][0]["finish_reason"] = None
    if name == "arguments":
        (call,) = second["choices"][0]["delta"]["tool_calls"]
        call.pop("id", None)
        call["function"].pop("name", None)
    body.frames.insert(index + 1, second)
    return "whole"


@rewrite
def an_id_of_its_own(rng: random.Random, body: Body) -> str | None:
    body.id = "gateway-1"
    for frame in body.frames:
        if isinstance(frame, dict) and frame.get("choices"):
            frame["id"] = body.id
            frame["created"] = rng.randint(0, 9)
    return "whole"


@rewrite
def said_twice(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    what = rng.choice(("done", "finish", "usage"))
    if what == "done":
        body.frames += [DONE, DONE]
    elif what == "finish" and not any(index == body.finish_at() for index, _, _ in body.texts()):
        body.frames.insert(body.finish_at(), copy.deepcopy(body.frames[body.finish_at()]))
    elif what == "usage":
        last = [frame for frame in body.frames if isinstance(frame, dict) and frame.get("choices") == []]
        body.frames += copy.deepcopy(last[-1:])
    return "whole"


@rewrite
def nothing_said(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    said = {
        "content": rng.choice(("", None)),
        "reasoning_content": None,
        "tool_calls": rng.choice((None, [])),
    }
    body.frames.insert(anywhere(rng, body), body.silent(said))
    return "whole"


@rewrite
def a_forced_call(_: random.Random, body: Body) -> str | None:
    if "call" not in body.channels:
        return None
    body.finish("stop")
    return "whole"


@rewrite
def markup_fills_the_limit(rng: random.Random, body: Body) -> str | None:
    if body.is_stream:
        body.frames = [
            body.silent({"role": "assistant"} if body.is_chat else {}),
            body.silent({}, "length"),
            DONE,
        ]
    else:
        said = (
            {"message": {"role": "assistant", "content": rng.choice(("", None))}}
            if body.is_chat
            else {"text": ""}
        )
        body.frames = [{**HEAD, "choices": [{"index": 0, "finish_reason": "length", **said}]}]
    body.put_usage(rng.randint(0, 2))
    return "whole!"


@rewrite
def cut_short(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    del body.frames[rng.randint(0, body.finish_at()) :]
    return "honest prefix"


@rewrite
def an_error_in_the_stream(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    finish = rng.random() < 0.5
    reason = body.frames[body.finish_at()]["choices"][0]["finish_reason"]
    del body.frames[rng.randint(0, body.finish_at()) :]
    body.frames.append(copy.deepcopy(ERROR) | rng.choice(({}, {"id": "b", "model": "other"})))
    tail = [body.silent({"role": "assistant"}), silent_frame(rng), DONE, ERROR]
    body.frames += rng.sample(tail, rng.randint(0, 4))
    body.frames += [body.silent({}, reason)] if finish else []
    return "honest prefix!"


@rewrite
def an_error_after_the_end(rng: random.Random, body: Body) -> str | None:
    if not body.is_stream:
        return None
    body.frames += [ERROR, DONE][: rng.randint(1, 2)]
    return "honest prefix!"


@rewrite
def an_unusual_finish(rng: random.Random, body: Body) -> str | None:
    body.finish(rng.choice(("abort", "error", "cancelled", "content_filter")))
    body.take_usage()
    return "honest prefix!"


@rewrite
def an_error_for_an_answer(rng: random.Random, body: Body) -> str | None:
    if body.is_stream:
        return None
    said = (
        {"status": "failure", "message": "M"},
        {"detail": "Not Found"},
        {"code": 500, "choices": None},
        ERROR,
    )
    body.frames = [copy.deepcopy(rng.choice(said))]
    return "honest prefix!"
