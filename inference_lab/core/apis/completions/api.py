"""`POST /v1/completions` as a value, and the JSON of its answers that are not streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.core.answer.pieces import JOINED_WORDS
from inference_lab.core.answer.resume_point import locate
from inference_lab.core.apis.choices import told_ids, whole_json
from inference_lab.core.apis.completions.request import CompletionsRequest, prompt_of
from inference_lab.core.apis.completions.writer import CompletionsWriter
from inference_lab.core.apis.contract import Api, Prompt
from inference_lab.core.stream.events import TURN, Turn
from inference_lab.core.tokens import decode, encode

if TYPE_CHECKING:
    from collections.abc import Generator

    from inference_lab.core.answer.templates import ChatTemplate
    from inference_lab.core.answer.writer import Plan
    from inference_lab.core.apis.contract import Completion, Counts, Form
    from inference_lab.core.apis.dialects import Dialect


class Completions(Api[CompletionsRequest]):
    """See `contract.Api`."""

    name = "completions"
    path = "/v1/completions"
    prompt_field = "prompt"
    id_prefix = "cmpl-"
    is_raw = True
    body = CompletionsRequest
    lacks = {  # noqa: RUF012 - declared as a class variable by `Api`
        ("at", "role"): "chat, which has a role frame and deltas",
        ("reasoning_key", "reasoning"): "chat, which has a role frame and deltas",
    }

    def prompt(self, body: CompletionsRequest, template: ChatTemplate, *, reasons: bool) -> Prompt:
        """See `Api.prompt`."""
        prompt = prompt_of(body)
        if isinstance(prompt, str):
            ids = encode(prompt)
            return Prompt(ids, locate(template, prompt, ids, is_raw=True), reasons)
        return Prompt(prompt, locate(template, decode(prompt), is_raw=True), reasons)

    def writer(self, completion: Completion, dialect: Dialect, form: Form) -> CompletionsWriter:
        """See `Api.writer`."""
        return CompletionsWriter(completion, dialect, form)

    def whole(
        self, body: CompletionsRequest, completion: Completion, prompt: Prompt, plan: Plan, counts: Counts
    ) -> Generator[Turn, None, bytes]:
        """See `Api.whole`."""
        texts: list[str] = []
        for piece in plan.pieces.joined():
            if piece.words == JOINED_WORDS:
                yield TURN
            texts.append(piece.raw)
        choice = {"index": 0, "text": "".join(texts), "logprobs": None, "finish_reason": plan.finish}
        ids = yield from told_ids(body, prompt, plan)
        return whole_json(completion, "text_completion", choice | ids, counts)


COMPLETIONS: Final = Completions()
