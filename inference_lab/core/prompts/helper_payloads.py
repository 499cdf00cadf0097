"""The answers of the helper endpoints: tokenize, detokenize and render, as values."""

from collections.abc import Iterable

from inference_lab.core.tokens import decode, encode


def tokenized(
    text: str, *, max_model_len: int, add_special_tokens: bool = False, return_token_strs: bool = False
) -> dict[str, object]:
    """`{count, max_model_len, tokens[, token_strs]}`, vLLM's shape; nothing is added unless asked for."""
    ids = encode(text, add_special_tokens=add_special_tokens)
    payload: dict[str, object] = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    if return_token_strs:
        payload["token_strs"] = [decode([number]) for number in ids]
    return payload


def detokenized(ids: Iterable[int]) -> dict[str, object]:
    """`{prompt}`, vLLM's shape."""
    return {"prompt": decode(ids)}


def rendered(
    prompt: str,
    continuation_text: str = "",
    *,
    return_token_ids: bool = True,
    return_rendered: bool = False,
) -> dict[str, object]:
    """`{token_ids, total, continuation_tokens[, rendered]}` of a prompt with the answer so far behind it.

    `continuation_tokens` is what the text adds to the prompt's ids, so that a leg's prompt less the
    continuation is the first prompt even where the two share an id.
    """
    ids = encode(prompt + continuation_text)
    payload: dict[str, object] = {"token_ids": ids} if return_token_ids else {}
    payload |= {"total": len(ids), "continuation_tokens": len(ids) - len(encode(prompt))}
    if return_rendered:
        payload["rendered"] = prompt + continuation_text
    return payload
