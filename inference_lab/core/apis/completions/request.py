"""The body of `POST /v1/completions`, and its prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from inference_lab.core.apis.request import Common, Ids, call_target_of
from inference_lab.core.errors import invalid_prompt


class CompletionsRequest(Common, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`; `prompt` is judged by `prompt_of`."""

    prompt: Any = None

    def check(self) -> None:
        """See `Common.check`."""
        super().check()
        call_target_of(self)
        prompt_of(self)


def prompt_of(request: CompletionsRequest) -> str | list[int]:
    """The prompt as text or as ids (u32): a string, `[string]`, `[ids]` or `[[ids]]`, and no batch.

    Raises:
        ApiError: 400 `invalid_prompt`.
    """
    prompt = request.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise invalid_prompt(f"prompt: a batch of {len(prompt)}, expected one prompt")
        prompt = prompt[0]
    if prompt is None:
        raise invalid_prompt("prompt: missing")
    if not isinstance(prompt, (str, list)):
        raise invalid_prompt("prompt: expected a string, [string], [ids] or [[ids]]")
    if not prompt:
        raise invalid_prompt("prompt: empty")
    if isinstance(prompt, str):
        return prompt
    try:
        return msgspec.convert(prompt, Ids)
    except msgspec.ValidationError as error:
        raise invalid_prompt(
            f"prompt: ids are integers from 0 to {2**32 - 1}: {error}".replace("$", "prompt")
        ) from None
