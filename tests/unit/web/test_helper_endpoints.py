"""The helper endpoints and `return_token_ids`, asked of the whole application in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.core.tokens import FIRST_TEXT_WORD, decode, encode
from tests.support.clients.resume_client import CHAT, COMPLETIONS, RENDER, TOKENIZE
from tests.support.lab import MODEL, MemoryLab, write

if TYPE_CHECKING:
    from pathlib import Path

DETOKENIZE = "/detokenize"
USER = [{"role": "user", "content": "hello"}]
PROMPT = "<|user|>hello<|end|><|assistant|>"
DIRECTIVE = [{"role": "user", "content": "hello <<fault:explode"}]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"prompt": "hello qu0000 é"}, "hello qu0000 é"),
        ({"messages": USER}, PROMPT),
        ({"messages": USER, "add_generation_prompt": False}, "<|user|>hello<|end|>"),
        ({"messages": DIRECTIVE}, "<|user|>hello <<fault:explode<|end|><|assistant|>"),
        ({"messages": [*USER, {"role": "assistant", "content": "qu0000"}]}, f"{PROMPT}qu0000"),
        (
            {"messages": [*USER, {"role": "assistant", "content": "x"}], "continue_final_message": False},
            f"{PROMPT}x<|end|><|assistant|>",
        ),
    ],
)
def test_tokenize_tells_the_ids_of_a_prompt_or_a_conversation(
    lab: MemoryLab, asked: dict[str, Any], text: str
) -> None:
    ids = encode(text)
    assert lab.post(TOKENIZE, {"model": "lab", **asked}) == {
        "count": len(ids),
        "max_model_len": 131072,
        "tokens": ids,
    }
    told = lab.post(
        TOKENIZE, {"model": "lab", **asked, "add_special_tokens": True, "return_token_strs": True}
    )
    assert told["tokens"] == [0, *ids]
    assert (told["count"], "".join(told["token_strs"])) == (len(ids) + 1, text)


def test_detokenize_is_the_way_back(lab: MemoryLab) -> None:
    ids = lab.post(TOKENIZE, {"model": "lab", "prompt": "hello qu0000 é"})["tokens"]
    assert lab.post(DETOKENIZE, {"model": "lab", "tokens": [0, *ids, 2**32 - 1]}) == {
        "prompt": "hello qu0000 é\ufffd"
    }


@pytest.mark.parametrize("name", ["model", "virtual_model"])
def test_render_tells_a_leg_s_prompt_by_every_name_a_model_has(tmp_path: Path, name: str) -> None:
    lab = MemoryLab(
        write(tmp_path, {"m": MODEL.format(name="m").replace("[lat", 'aliases = ["org/m"]\n[lat')})
    )
    for model in ("m", "org/m"):
        told = lab.post(
            RENDER,
            {name: model, "messages": USER, "continuation_text": "qu0000 qu00", "return_rendered": True},
        )
        ids = encode(f"{PROMPT}qu0000 qu00")
        assert told == {
            "token_ids": ids,
            "total": len(ids),
            "continuation_tokens": len(ids) - len(encode(PROMPT)),
            "rendered": f"{PROMPT}qu0000 qu00",
        }
    assert "token_ids" not in lab.post(RENDER, {name: "m", "messages": USER, "return_token_ids": False})


def test_render_heeds_template_arguments_and_tools(lab: MemoryLab) -> None:
    asked = {"model": "dsv4-thinks", "messages": USER, "return_rendered": True}
    assert lab.post(RENDER, asked)["rendered"].endswith("<think>")
    plain = {**asked, "chat_template_kwargs": {"thinking": False}, "tools": [{"type": "function"}]}
    rendered = lab.post(RENDER, plain)["rendered"]
    assert rendered.endswith("</think>")
    assert '<tools>\n[{"type":"function"}]\n</tools>' in rendered


BOTH = {"add_generation_prompt": True, "continue_final_message": True}
PREFILL = [*USER, {"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (TOKENIZE, {"model": "lab"}, "invalid_prompt"),
        (TOKENIZE, {"model": "lab", "prompt": "x", "messages": USER}, "invalid_prompt"),
        (TOKENIZE, {"prompt": "x"}, "invalid_request"),
        (TOKENIZE, {"model": "other", "prompt": "x"}, "model_not_found"),
        (DETOKENIZE, {"model": "lab"}, "invalid_request"),
        (DETOKENIZE, {"model": "lab", "tokens": [2**32]}, "invalid_request"),
        (DETOKENIZE, {"model": "lab", "tokens": [-1]}, "invalid_request"),
        (RENDER, {"model": "lab"}, "invalid_request"),
        (RENDER, {"messages": USER}, "invalid_request"),
        (RENDER, {"model": "lab", "messages": [{"role": "user", "content": 5}]}, "invalid_request"),
        *(
            (path, {"model": "lab", "messages": PREFILL, **BOTH}, "invalid_request")
            for path in (TOKENIZE, RENDER, CHAT)
        ),
        *(
            (path, {"model": "lab", "messages": USER, "continue_final_message": True}, "invalid_request")
            for path in (TOKENIZE, RENDER, CHAT)
        ),
    ],
)
def test_what_cannot_be_told_is_refused(lab: MemoryLab, path: str, body: dict[str, Any], code: str) -> None:
    got = lab.exchange(path, body)
    assert (got.status, got.error["code"]) == (404 if code == "model_not_found" else 400, code)


@pytest.mark.parametrize("path", [TOKENIZE, DETOKENIZE, RENDER])
def test_a_fault_header_is_refused(lab: MemoryLab, path: str) -> None:
    got = lab.exchange(path, {"model": "lab"}, {"x-inference-lab-fault": "reset"})
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")


def frames(body: bytes) -> list[dict[str, Any]]:
    events = body.decode().split("\n\n")
    return [json.loads(event[6:]) for event in events if event and event != "data: [DONE]"]


@pytest.mark.parametrize("model", ["lab-thinks", "hermes-thinks", "dsv4-thinks"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fault", [None, "no_done;after_chunks=9", "mid_reasoning"])
def test_token_ids_are_those_of_the_raw_text_frame_by_frame(
    lab: MemoryLab, model: str, path: str, fault: str | None
) -> None:
    ids = lab.post(RENDER, {"model": model, "messages": USER})["token_ids"]
    asked = {"messages": USER} if path == CHAT else {"prompt": ids}
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **asked,
    }
    told = frames(lab.exchange(path, body, {"x-inference-lab-fault": fault} if fault else None).body)
    first, *rest = (frame["choices"][0] for frame in told if frame["choices"])
    assert first["prompt_token_ids"] == ids
    assert not any("prompt_token_ids" in choice for choice in rest)
    spoken = [
        choice for choice in (first, *rest) if choice.get("text") or len(choice.get("delta", {}).values()) > 0
    ]
    content = [choice for choice in spoken if "role" not in choice.get("delta", {})]
    if path == COMPLETIONS:
        assert [decode(choice["token_ids"]) for choice in content] == [choice["text"] for choice in content]
    usage = [frame["usage"] for frame in told if "usage" in frame]
    assert fault == "mid_reasoning" or usage[0]["completion_tokens"] == sum(
        len(c["token_ids"]) for c in content
    )


def test_token_ids_come_with_a_whole_answer(lab: MemoryLab) -> None:
    body = {"model": "hermes-thinks", "prompt": "hello", "return_token_ids": True}
    choice = lab.post(COMPLETIONS, body)["choices"][0]
    assert choice["prompt_token_ids"] == encode("hello")
    assert choice["token_ids"] == encode(choice["text"])


def before(index: int) -> str:
    """A prompt whose answer goes on with word `index`."""
    return f"<|assistant|> qu{index - 1:04d}" + ("é" if (index - 1) % 8 == 7 else "")


@pytest.mark.parametrize(
    ("fault", "limit"),
    [
        (None, None),
        ("cut_between_frames;delay_ms=0;after_chunks={}", 1),
        ("cut_mid_frame;delay_ms=0;after_chunks={}", 1),
        ("ok;after_chunks={};then=rest;malformed=true", 1),
        ("ok;after_chunks=1;then=rest;malformed=true", None),
    ],
)
def test_words_without_an_id_of_their_own_are_refused_where_ids_are_asked_for(
    tmp_path: Path, fault: str | None, limit: int | None
) -> None:
    lab = MemoryLab(
        write(
            tmp_path,
            {
                "m": MODEL.format(name="m").replace(
                    "[lat",
                    "scheduler={max_model_len=2000000,max_num_batched_tokens=1,max_num_seqs=1,block_size=1,policy='fcfs',enable_chunked_prefill=true}\n[lat",
                )
            },
        )
    )
    start = FIRST_TEXT_WORD - 6
    torn = fault is not None and "mid_frame" in fault
    for words, status in ((6 - torn, 200), (7 - torn, 400)):
        header = {"x-inference-lab-fault": fault.format(words)} if fault else None
        body = {"model": "m", "prompt": before(start), "stream": True, "max_tokens": limit or words}
        got = lab.exchange(COMPLETIONS, {**body, "return_token_ids": True}, header)
        assert got.status == status, got.raw
        if status == 400:
            assert (got.error["code"], got.error["param"]) == ("invalid_request", "return_token_ids")
        assert lab.exchange(COMPLETIONS, body, header).status == 200


def test_the_longest_fault_is_judged_at_once(lab: MemoryLab) -> None:
    body = {"model": "lab", "prompt": "x", "stream": True, "return_token_ids": True}
    got = lab.exchange(COMPLETIONS, body, {"x-inference-lab-fault": "stall;after_chunks=4294967295"})
    assert got.error["param"] == "return_token_ids"
