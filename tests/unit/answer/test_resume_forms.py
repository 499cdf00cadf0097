"""Every resume form against every place of a 48-word answer: text, usage and limits across the join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients.resume_client import CHAT, COMPLETIONS
from tests.support.lab import WORDS, files
from tests.support.resuming import FORMS, Case

if TYPE_CHECKING:
    from tests.support.lab import MemoryLab

LIMIT = 47
"""`max_tokens` across the join: less than the whole answer, more than 40 words and the markup of any format."""


@pytest.mark.parametrize("limit", [None, LIMIT], ids=["whole", "limited"])
@pytest.mark.parametrize("model", files())
def test_an_answer_is_continued_from_every_word_by_every_form(
    lab: MemoryLab, model: str, limit: int | None
) -> None:
    case = Case(lab, model)
    more = {} if limit is None else {"max_tokens": limit}
    on_chat, on_completions = (case.first(path, **more) for path in (CHAT, COMPLETIONS))
    assert on_chat.finish == on_completions.finish == ("stop" if limit is None else "length")
    assert on_chat.usage == on_completions.usage
    assert limit or len(on_chat.pieces) == WORDS
    for k in range(41):
        said = on_chat.said(k)
        raw = on_completions.raw(k)
        assert raw == case.family.raw(said, thinking=case.thinking)
        told = case.rendered(raw)
        left = {} if limit is None else {"max_tokens": limit - told["continuation_tokens"]}
        for form in FORMS:
            path, prompt = case.prompt(form, raw, said)
            leg = case.ask(path, **prompt, **left)
            if form in {"ids", "text"}:
                assert raw + leg.raw() == on_completions.raw()
            else:
                for channel in ("reasoning", "text"):
                    assert on_chat.first(k).text(channel) + leg.text(channel) == on_chat.text(channel)
            assert leg.finish == on_chat.finish
            assert leg.usage["prompt_tokens"] == told["total"]
            assert told["total"] == on_chat.usage["prompt_tokens"] + told["continuation_tokens"]
            completion = leg.usage["completion_tokens"] + told["continuation_tokens"]
            assert completion == on_chat.usage["completion_tokens"]
            assert leg.usage["total_tokens"] == on_chat.usage["total_tokens"]


@pytest.mark.parametrize("model", files())
def test_a_leg_that_is_not_streamed_says_the_same(lab: MemoryLab, model: str) -> None:
    case = Case(lab, model)
    heard = case.first(CHAT)
    for k in (0, 5, 8, 9, 47, 48):
        said = heard.said(k)
        for form in FORMS:
            path, prompt = case.prompt(form, case.family.raw(said, thinking=case.thinking), said)
            leg = case.ask(path, **prompt)
            whole = lab.post(path, {"model": model, **prompt})
            choice = whole["choices"][0]
            message = choice.get("message") or {"content": choice["text"]}
            assert message["content"] == (leg.raw() if path == COMPLETIONS else leg.text("text"))
            assert message.get("reasoning_content", "") == leg.text("reasoning")
            assert (choice["finish_reason"], whole["usage"]) == (leg.finish, leg.usage)


@pytest.mark.parametrize("family", ["lab", "hermes", "dsv4"])
def test_a_chat_may_be_told_not_to_think(lab: MemoryLab, family: str) -> None:
    """A prompt of the other mode is continued in it, for every form."""
    thinker = Case(lab, f"{family}-thinks")
    off = {"chat_template_kwargs": {"thinking": False}}
    heard = thinker.first(CHAT, **off)
    assert heard.text("reasoning") == ""
    rendered = {"model": thinker.model, "messages": [*thinker.messages], **off, "return_rendered": True}
    for k in (1, 7, 8, 39, 40):
        said = heard.said(k)
        told = lab.post("/v1/render", {**rendered, "continuation_text": said.content})
        for prompt in (told["token_ids"], told["rendered"]):
            assert said.content + thinker.ask(COMPLETIONS, prompt=prompt).raw() == heard.text("text")
        for form in ("prefill", "continue"):
            assert said.content + thinker.leg(form, "", said, **off).text("text") == heard.text("text")
