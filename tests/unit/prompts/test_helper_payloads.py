"""The answers of the helper endpoints."""

from inference_lab.core.answer.templates import FORMATS
from inference_lab.core.prompts.messages import Message
from inference_lab.core.tokens import encode
from inference_lab.web.helpers import detokenized, rendered, tokenized


def test_tokenize_adds_nothing_unless_asked() -> None:
    ids = encode("hello qu0001")
    assert tokenized("hello qu0001", max_model_len=10) == {"count": 3, "max_model_len": 10, "tokens": ids}
    assert tokenized("hello qu0001", max_model_len=10, add_special_tokens=True, return_token_strs=True) == {
        "count": 4,
        "max_model_len": 10,
        "tokens": [0, *ids],
        "token_strs": ["", "hell", "o", " qu0001"],
    }


def test_detokenize_is_the_way_back() -> None:
    assert detokenized([0, *encode("hello é")]) == {"prompt": "hello é"}


def test_render_counts_what_the_continuation_adds_to_the_prompt() -> None:
    for template in FORMATS.values():
        prompt = template.render([Message("user", "hello")])
        for text in ("", "qu0000 qu0001", "qu00"):
            ids = encode(prompt + text)
            payload = {"total": len(ids), "continuation_tokens": len(ids) - len(encode(prompt))}
            assert rendered(prompt, text) == {"token_ids": ids, **payload}
            assert rendered(prompt, text, return_token_ids=False, return_rendered=True) == {
                **payload,
                "rendered": prompt + text,
            }
