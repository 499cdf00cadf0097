"""`POST /v1/embeddings`, asked of the whole application in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_lab.core.answer.embedding import MOST_DIMENSIONS, packed_vector
from inference_lab.core.tokens import encode
from tests.support.lab import MemoryLab, files, write
from tests.support.rawclient import request

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDINGS = "/v1/embeddings"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    return MemoryLab(write(tmp_path_factory.mktemp("models"), files()))


def vectors(lab: MemoryLab, given: object, **more: object) -> list[Any]:
    data = lab.post(EMBEDDINGS, {"model": "lab", "input": given, **more})["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    assert {item["object"] for item in data} == {"embedding"}
    return [item["embedding"] for item in data]


def floats(text: str) -> list[float]:
    raw = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def test_an_answer_is_openai_s_with_usage(lab: MemoryLab) -> None:
    told = lab.post(EMBEDDINGS, {"model": "lab", "input": ["hello", "more text"], "user": "x"})
    tokens = len(encode("hello")) + len(encode("more text"))
    assert list(told) == ["object", "data", "model", "usage"]
    assert (told["object"], told["model"]) == ("list", "lab")
    assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [len(item["embedding"]) for item in told["data"]] == [16, 16]


def test_a_vector_is_worked_out_a_second_time(lab: MemoryLab) -> None:
    """SHAKE-256 over the ids as little-endian u32, as odd signed integers, divided by their length."""
    digest = hashlib.shake_256(b"".join(number.to_bytes(4, "little") for number in (1, 2**32 - 1))).digest(12)
    numbers = [int.from_bytes(digest[i : i + 4], "little", signed=True) | 1 for i in (0, 4, 8)]
    length = math.sqrt(sum(number**2 for number in numbers))
    ((*got,),) = vectors(lab, [1, 2**32 - 1], dimensions=3)
    assert got == pytest.approx([number / length for number in numbers], rel=1e-6)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9), st.integers(1, MOST_DIMENSIONS))
def test_every_vector_has_unit_length_and_the_directions_of_a_longer_one(
    ids: list[int], dimensions: int
) -> None:
    vector = struct.unpack(f"<{dimensions}f", packed_vector(ids, dimensions))
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    longer = struct.unpack(f"<{MOST_DIMENSIONS}f", packed_vector(ids, MOST_DIMENSIONS))[:dimensions]
    scale = math.hypot(*longer)
    assert vector == pytest.approx([number / scale for number in longer], rel=1e-3, abs=1e-6)


def test_all_four_forms_of_an_input_are_the_same_and_different_texts_are_not(lab: MemoryLab) -> None:
    ids = encode("hello")
    same = [vectors(lab, given)[0] for given in ("hello", ["hello"], ids, [ids])]
    assert same == same[:1] * 4
    assert vectors(lab, ["hello", "hellp", "hello"])[:2] != same[:2]


@pytest.mark.parametrize("dimensions", [None, 1, 16, 4096])
def test_base64_holds_the_same_floats(lab: MemoryLab, dimensions: int | None) -> None:
    more = {} if dimensions is None else {"dimensions": dimensions}
    texts = ["a", "b", "é"]
    packed = vectors(lab, texts, encoding_format="base64", **more)
    assert [floats(text) for text in packed] == vectors(lab, texts, encoding_format="float", **more)
    assert len(floats(packed[0])) == (dimensions or 16)


def test_a_large_request_is_answered_in_turns(lab: MemoryLab) -> None:
    texts = [f"text {number}" for number in range(9)]
    assert vectors(lab, texts, dimensions=4096) == [vectors(lab, text, dimensions=4096)[0] for text in texts]
    channel, transport = lab.connect()
    body = json.dumps({"model": "lab", "input": texts, "dimensions": 4096}).encode()
    channel.dataReceived(request("POST", EMBEDDINGS, body))
    for _ in range(len(texts) - 1):
        assert not transport.value()
        lab.clock.turn()
    assert transport.value().startswith(b"HTTP/1.1 200")
    transport.loseConnection()


REFUSED = [
    ({"input": None}, "input", "missing"),
    ({"input": ""}, "input", "empty"),
    ({"input": []}, "input", "empty"),
    ({"input": [[]]}, "input", "empty"),
    ({"input": ["a", ""]}, "input", "empty"),
    ({"input": 1}, "input", "expected a string"),
    ({"input": {"text": "a"}}, "input", "expected a string"),
    ({"input": ["a", 1]}, "input", "expected a string"),
    ({"input": [1, "a"]}, "input", "expected a string"),
    ({"input": [[1], "a"]}, "input", "expected a string"),
    ({"input": [1.5]}, "input", "integers from 0 to 4294967295"),
    ({"input": [True]}, "input", "integers from 0 to 4294967295"),
    ({"input": [-1]}, "input", "integers from 0 to 4294967295"),
    ({"input": [[2**32]]}, "input", "integers from 0 to 4294967295"),
    ({"input": ["a"] * 2049}, "input", "2049 inputs, expected at most 2048"),
    ({"input": ["x" * 4000] * 301}, "input", "301000 tokens in all, expected at most 300000"),
    ({"dimensions": 0}, "dimensions", "is 0, expected 1 to 4096"),
    ({"dimensions": 4097}, "dimensions", "is 4097, expected 1 to 4096"),
    ({"dimensions": 10**40}, "dimensions", ""),
    ({"dimensions": "16"}, "dimensions", "Expected `int | null`"),
    ({"encoding_format": "hex"}, "encoding_format", "is 'hex', expected float or base64"),
    ({"encoding_format": 1}, "encoding_format", "Expected `str | null`"),
    ({"model": None}, "model", "missing"),
]


@pytest.mark.parametrize(("more", "param", "reason"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_the_api_refuses_is_a_400_with_its_field(
    lab: MemoryLab, more: dict[str, object], param: str, reason: str
) -> None:
    got = lab.exchange(EMBEDDINGS, {"model": "lab", "input": "hello"} | more)
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", param)
    assert reason in got.error["message"]


def test_an_input_past_the_context_and_an_unknown_model_have_codes_of_their_own(lab: MemoryLab) -> None:
    got = lab.exchange(EMBEDDINGS, {"model": "lab", "input": ["a", "x" * 600_000]})
    assert (got.status, got.error["code"], got.error["param"]) == (400, "context_length_exceeded", "input")
    got = lab.exchange(EMBEDDINGS, {"model": "nobody", "input": "a"})
    assert (got.status, got.error["code"]) == (404, "model_not_found")


def test_it_has_no_faults(lab: MemoryLab) -> None:
    body = {"model": "lab", "input": "hello <<fault:reset>>"}
    got = lab.exchange(EMBEDDINGS, body, {"x-inference-lab-fault": "reset"})
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
    assert lab.exchange(EMBEDDINGS, body).status == 200


def test_it_is_the_same_in_another_server(lab: MemoryLab, tmp_path: Path) -> None:
    body = json.dumps({"model": "lab", "input": ["a", "b"]}).encode()
    other = MemoryLab(write(tmp_path, files()))
    assert lab.exchange(EMBEDDINGS, body).body == other.exchange(EMBEDDINGS, body).body
